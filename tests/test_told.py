"""What a coding agent's tool says of its session: read where it stands, and nothing is made of anything else."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaloop.policies.told import MOST_TOKENS, MOST_USD, said, told
from metaloop.values import Usage

CLAUDE = {
    "type": "result", "subtype": "success", "is_error": False, "duration_ms": 3952, "num_turns": 3,
    "result": "Done.\nWHY: a larger rate", "session_id": "u", "total_cost_usd": 0.10457895,
    "usage": {"input_tokens": 2, "output_tokens": 9, "cache_creation_input_tokens": 7924,
              "cache_read_input_tokens": 13368, "server_tool_use": {"web_search_requests": 0}},
}  # fmt: skip
COST = Usage(0.0, 2 + 7924 + 13368, 9, 0.10457895)
STRANGE = [True, False, None, -1, -0.5, "3", [3], {"usd": 3}, 10**30, 1e300]
OTHERS = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(), max_size=3)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", ["", "a line\n", '{"type":"system"}\n{"total_cost_usd": 9}\n'])
def test_the_object_is_all_of_it_or_the_last_line(indent: int | None, before: str) -> None:
    """With line ends within, only if it is all."""
    printed = before + json.dumps(CLAUDE, indent=indent) + "\n\n"
    assert told(printed) == (COST if not indent or not before else Usage())
    assert said(printed).endswith("\nWHY: a larger rate") == (not indent or not before)


def test_an_object_that_is_not_the_last_thing_is_no_account() -> None:
    """Whatever it says; nor is a list of them."""
    line = json.dumps(CLAUDE)
    for printed in (f"{line}\nbye", f"cost: {line}", f"[{line}]", f"```\n{line}\n```", line[:-1], ""):
        assert told(printed) == Usage()
        assert said(printed) == printed


def test_tokens_that_are_a_part_of_others_are_not_counted_twice() -> None:
    """As Codex counts them; what it cost it does not say."""
    usage = {"input_tokens": 24763, "cached_input_tokens": 24448, "output_tokens": 122}
    assert told(json.dumps({"type": "turn.completed", "usage": usage})) == Usage(0.0, 24763, 122)


@pytest.mark.parametrize("value", STRANGE)
def test_what_is_no_plain_number_is_not_told(value: object) -> None:
    """Neither of money nor of tokens; what else is told stands."""
    assert told(json.dumps({**CLAUDE, "total_cost_usd": value})) == Usage(0.0, COST.tokens_in, 9)
    more = {**CLAUDE, "usage": {"input_tokens": value, "output_tokens": 9}}
    assert told(json.dumps(more)) == Usage(0.0, 0, 9, COST.usd)
    assert told(json.dumps({**CLAUDE, "usage": value})) == Usage(0.0, 0, 0, COST.usd)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "01", "0x1"])
def test_what_is_no_strict_json_tells_nothing(literal: str) -> None:
    """Rather than a part of it."""
    assert told(f'{{"total_cost_usd": {literal}, "usage": {{"input_tokens": 1}}}}') == Usage()


@given(OTHERS, st.floats(0, MOST_USD), st.integers(0, MOST_TOKENS), st.integers(0, MOST_TOKENS), st.text())
def test_what_is_told_is_what_is_read(others: dict, usd: float, tokens_in: int, tokens_out: int, before: str) -> None:
    """Whatever stands beside it or before it."""
    usage = {"input_tokens": tokens_in, "output_tokens": tokens_out}
    line = json.dumps({**others, "total_cost_usd": usd, "usage": usage})
    assert told(f"{before}\n{line}\n") == Usage(0.0, tokens_in, tokens_out, usd)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["total_cost_usd", "usage", "result", "input_tokens", "output_tokens", "x"]), inner
        )
    ),
)


@given(st.text(st.characters(codec=None)) | JSON.map(json.dumps))
@example("[" * 100_000)
@example('{"usage":' * 100_000)
@example("\ud800")
def test_whatever_is_printed_an_account_is_finite_and_no_less_than_nothing(printed: str) -> None:
    """And nothing that is printed can break the reader."""
    usage = told(printed)
    assert usage.usd is None or (math.isfinite(usage.usd) and 0 <= usage.usd <= MOST_USD)
    assert 0 <= usage.tokens_in <= 3 * MOST_TOKENS
    assert 0 <= usage.tokens_out <= MOST_TOKENS
    assert said(printed).startswith(printed)
