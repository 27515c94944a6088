"""What a coding agent's tool says of its own session: what that cost, and the text of its answer.

Many print one JSON object when they are done, as the whole of stdout or as its last line. What is read is what Claude
Code's `--output-format json` has (`total_cost_usd`, `usage`, `result`); tokens are also found in what `codex exec
--json` prints last. It is believed: a tool that says nothing true cannot be told from one that does.
"""

from collections.abc import Mapping

import msgspec

from metaloop.values import Usage

MOST_USD, MOST_TOKENS = 1e6, 10**12
"""More than that no session costs: such a number is none."""

TOKENS_IN = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""What was read, in parts that have nothing in common; `cached_input_tokens` of others is a part of the first."""


def told(stdout: str) -> Usage:
    """What the session cost, as far as it is told: `usd` is None and tokens are 0 where nothing is said of them."""
    found = _document(stdout)
    usage = found.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    usd = _number(found.get("total_cost_usd"), MOST_USD)
    tokens_in = sum(_count(counts.get(name)) for name in TOKENS_IN)
    return Usage(0.0, tokens_in, _count(counts.get("output_tokens")), usd)


def said(stdout: str) -> str:
    """All that it printed, and after that the text of its answer, where that stood in such an object."""
    text = _document(stdout).get("result")
    return f"{stdout}\n{text}" if isinstance(text, str) else stdout


def _document(stdout: str) -> Mapping[str, object]:
    """The object that stdout is, or else its last line that is not empty; nothing where neither is strict JSON."""
    text = stdout.strip()
    for candidate in (text, text.rpartition("\n")[2].strip()):
        try:
            found = msgspec.json.decode(candidate.encode(errors="replace"))
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(found, Mapping):
            return found
    return {}


def _number(value: object, most: float) -> float | None:
    """A finite number from 0 to `most`; None for anything else, `true` among it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return abs(float(value)) if 0 <= value <= most else None  # false of what is not finite


def _count(value: object) -> int:
    return int(_number(value, MOST_TOKENS) or 0)
