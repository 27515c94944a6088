"""What sessions of a coding agent are charged, whatever becomes of them and of those who wait for them."""

import math

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metaloop.costs import charged, set_aside, spent, unaffordable
from metaloop.events import (
    Asked,
    Engaged,
    Entry,
    Fact,
    Faulted,
    Replied,
    Reply,
    Resumed,
    RoundOpened,
    StudyClosed,
    StudyOpened,
    Vanished,
)
from metaloop.study import Study, evolve
from metaloop.terms import Bounds, Host, Terms
from metaloop.values import Objective, Usage

WORST = Usage(usd=1.0)
MONEY = st.none() | st.floats(0, 10)


def opened(cap: float | None = None) -> tuple[Study, Resumed]:
    study = Study()
    resumed = Resumed(Bounds(max_cost_usd=cap), Host("f"), "v", "none", "")
    for fact in (StudyOpened(Terms("t", Objective("s", "max"), ("x",), "agent", {})), resumed):
        happen(study, fact)
    happen(study, RoundOpened(1, "search", 0))
    return study, resumed


def happen(study: Study, fact: Fact) -> None:
    evolve(study, Entry(study.place + 1, 0.0, 0.0, fact))


@given(st.lists(st.sampled_from(["ask", "engage", "reply", "vanish", "fault", "resume", "close"]), max_size=40))
def test_a_session_is_charged_once_whatever_befalls_it(fates: list[str]) -> None:
    """What it told where it was heard; its worst case where it was at work and will not be heard; nothing where it was
    not let go. Until one of these is known its worst case is set aside.
    """
    study, resumed = opened()
    told, state = 0.0, "none"
    for fate in fates:
        asked = study.open[1].asked["propose"]
        match fate, state:
            case "ask", "none":
                happen(study, Asked(1, "propose", len(asked), ("d",), ("agent",), (WORST,)))
                state = "asked"
            case "engage", "asked":
                happen(study, Engaged(1, "propose", len(asked) - 1, 65536, "handle"))
                state = "at work"
            case "reply", "at work":
                happen(study, Replied(1, "propose", len(asked) - 1, 0, Reply("{}", usage=Usage(2.0, 1, 1, 0.25))))
                told, state = told + 0.25, "none"
            case "vanish", "at work":
                happen(study, Vanished(1, "propose", len(asked) - 1))
                told, state = told + 1, "none"
            case "fault", _:
                happen(study, Faulted(1, "propose", "it asks something else"))
                told, state = told + (state == "at work"), "none"
            case "resume", _:
                happen(study, resumed)
                state = "at work" if state == "at work" else "none"
            case "close", _:
                happen(study, StudyClosed("wall_clock", "over"))
                happen(study, resumed)
                told, state = told + (state == "at work"), "none"
        assert (spent(study).usd or 0.0) == told
        assert (set_aside(study).usd or 0.0) == (state != "none")


@given(MONEY, MONEY, st.booleans())
def test_a_session_is_charged_no_less_than_it_may_have_cost(
    told: float | None, most: float | None, whole: bool
) -> None:
    """What its tool told, if that is all of it; else its worst case at least, where there is one; and that is said."""
    worst = () if most is None else (Usage(usd=most),)
    usage, notice = charged(Usage(3.0, 5, 6, told), worst, whole)
    assert replace(usage, usd=None) == Usage(3.0, 5, 6)
    sure = told is not None and whole
    assert usage.usd == told if sure or most is None else usage.usd == max(told or 0.0, most)
    assert bool(notice) == (most is not None and (not sure or (told or 0.0) > most))


def test_what_is_at_work_when_a_cap_is_lowered_is_waited_for() -> None:
    """It is paid for already; only what comes after it is not asked."""
    from metaloop.plan import AskModel, plan

    study, resumed = opened(3.0)
    happen(study, Asked(1, "propose", 0, ("d",), ("agent",), (WORST,)))
    happen(study, Engaged(1, "propose", 0, 65536, "handle"))
    happen(study, replace(resumed, bounds=Bounds(max_cost_usd=0.5)))
    assert unaffordable(study)
    assert AskModel(1, "propose", 0, 0) in plan(study, 0.0)
    assert math.isclose(set_aside(study).usd or 0.0, 1.0)
