"""Flows side by side, and how far so many calls go."""

from collections.abc import Generator

from hypothesis import given
from hypothesis import strategies as st

from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt, prompts, together
from metaloop.policies.strategies import HEAT, Meter, drafts
from metaloop.values import Usage


def script(name: str, asks: list[int | None]) -> Flow[str]:
    """A flow that asks one prompt for None, so many at once for a number, and concludes with all that it was told."""
    heard = [name]
    for at, count in enumerate(asks):
        wanted = tuple(Prompt("author", (Message("user", f"{name}.{at}.{n}"),)) for n in range(count or 1))
        answer = yield wanted[0] if count is None else wanted
        heard += [r.text or "" for r in ((answer,) if isinstance(answer, Reply) else answer)]  # type: ignore[union-attr]
    return "; ".join(heard)


def answered(flow: Generator) -> tuple[object, list[int]]:
    """What a flow concludes if every prompt is answered with its own text, and how much it asks each time."""
    asked: list[int] = []
    try:
        ask = next(flow)
        while True:
            replies = tuple(Reply(p.messages[0].text, usage=Usage(tokens_out=1)) for p in prompts(ask))
            asked.append(len(replies))
            ask = flow.send(replies[0] if isinstance(ask, Prompt) else replies)
    except StopIteration as stop:
        return stop.value, asked


scripts = st.lists(st.lists(st.none() | st.integers(1, 4), max_size=5), max_size=5)


@given(scripts)
def test_flows_side_by_side_come_to_what_each_comes_to_alone(asks: list) -> None:
    """And ask as often as the longest of them, everything that they ask at the same time at once."""
    alone = tuple(answered(script(f"f{n}", each))[0] for n, each in enumerate(asks))
    whole, asked = answered(together([script(f"f{n}", each) for n, each in enumerate(asks)]))
    assert whole == alone
    assert len(asked) == max(map(len, asks), default=0)
    assert sum(asked) == sum(count or 1 for each in asks for count in each)


@given(st.lists(st.none() | st.integers(1, 4), max_size=5))
def test_a_meter_counts_every_prompt_and_changes_nothing(asks: list) -> None:
    meter = Meter(30)
    whole, asked = answered(meter.over(script("f", asks)))
    assert whole == answered(script("f", asks))[0]
    assert meter.made == meter.usage.tokens_out == sum(asked)
    assert meter.left == 30 - meter.made


def panels_for(texts: int) -> int:
    """Played out: heats of six, and the winners of those again."""
    panels = 0
    while texts > 1:
        heats = [min(HEAT, texts - at) for at in range(0, texts, HEAT)]
        panels += sum(heat > 1 for heat in heats)
        texts = len(heats)
    return panels


@given(st.integers(1, 200), st.integers(1, 9))
def test_drafts_and_the_panels_that_pick_one_take_no_more_calls_than_there_are(calls: int, judges: int) -> None:
    count = drafts(calls, judges)
    assert count == 0 or count + judges * panels_for(count + 1) <= calls
    assert count + 1 + judges * panels_for(count + 2) > calls
