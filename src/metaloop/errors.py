"""Everything metaloop raises on purpose, as one tree, with the exit code each leads to.

MetaloopError
├── UsageError            2    the command line or a value given to it
│   └── ConfigError       2    a study file: carries file, line and key
│       └── Faults        2    all that is wrong with a study file, one line each
├── BaselineError         3    baseline or preflight failed
├── NothingMeasured       4    no trial could be measured, or the proposer failed
├── ProposerError        4    a model gave nothing that could be tried, and nobody may stand in for it
├── BudgetError           5    the budget cannot pay for the baseline and one trial
├── LedgerError           6    the ledger could not be written, or is not one
│   └── Damaged           6    the ledger is not what was written: never repaired in silence, never started afresh
├── StudyBusy            75    another controller holds the study
└── ExecutorError         4    a run could not be started at all
    └── Refusal           4    ... because the executor says no (used nonce, no room)

A message says what was expected, what was found and what to type next.
"""

from collections.abc import Sequence


class MetaloopError(Exception):
    """The root. Its text is one line for a person; `code` is the exit code of the command line."""

    code = 1


class UsageError(MetaloopError):
    code = 2


class ConfigError(UsageError):
    """A fault in a study file.

    `str()` is `FILE:LINE: KEY: message`, each part left out where it is unknown. Several faults are several errors,
    joined by `Faults`.
    """

    def __init__(self, message: str, *, file: str = "", line: int | None = None, key: str = "") -> None:
        self.message, self.file, self.line, self.key = message, file, line, key
        place = file + (f":{line}" if file and line is not None else "")
        super().__init__(": ".join(part for part in (place, key, message) if part))


class Faults(ConfigError):
    """Everything that is wrong with a study file, in the order of its lines. `str()` has one line a fault."""

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, faults)))


class BaselineError(MetaloopError):
    code = 3


class NothingMeasured(MetaloopError):
    code = 4


class ProposerError(MetaloopError):
    code = 4


class BudgetError(MetaloopError):
    code = 5


class LedgerError(MetaloopError):
    code = 6


class Damaged(LedgerError):
    code = 6


class StudyBusy(MetaloopError):
    code = 75


class ExecutorError(MetaloopError):
    code = 4


class Refusal(ExecutorError):
    code = 4
