"""metaloop improves something by experiment, and proves each step. The front door is `metaloop --help`."""

__version__ = "0.1.0"
