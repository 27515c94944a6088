"""metaloop improves something by experiment, and proves each step. The command line is the front door: `metaloop --help`."""

__version__ = "0.1.0"
