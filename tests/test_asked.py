"""Policies that ask a model: what it sees, what is done with its replies, what it costs, and what when it is gone."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaloop.audit import audit
from metaloop.config import prompt_files, thought_of
from metaloop.costs import set_aside, spent
from metaloop.events import Abandoned, Asked, Faulted, Replied, Reply
from metaloop.flow import Prompt
from metaloop.policies.brief import brief, fenced, told_test
from metaloop.policies.picture import varied
from metaloop.study import Round, Study, View, fold
from metaloop.terms import Bounds, ModelSpec, Terms
from metaloop.testing import Crash, Lab, Machine, ScriptedModel
from metaloop.values import Choices, Objective, Range, Usage
from metaloop.values import Test as Proof
from metaloop.wording import fill

SPACE = {"lr": Range(1e-5, 1e-1, log=True), "depth": Range(1, 9, whole=True), "opt": Choices(("adam", "sgd"))}
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in prompt_files()}


def score(values, _):
    return f"score={1 - abs(float(values.get('lr', 0.05)) - 0.01) - 0.01 * int(values.get('depth', 9))!r}"


def chosen(prompt: Prompt) -> str:
    """A point drawn from the space, as a model would write it; the same for the same prompt."""
    dice = Random(prompt.digest())
    point = {"lr": 10 ** dice.uniform(-5, -1), "depth": dice.randint(1, 9), "opt": dice.choice(["adam", "sgd"])}
    return f"Let me think.\n```json\n{json.dumps({'params': point, 'why': 'a try'})}\n```"


def lab(script: Callable[[Prompt], str | Reply], trials: int = 6, policy: str = "llm", **terms: object) -> Lab:
    study = Terms("t", Objective("score", "max"), ("train",), policy, SPACE, **terms)
    bounds = Bounds(trials, no_improve_limit=0, failure_rate_limit=1.0, models={"proposer": ModelSpec("m")})
    return Lab(study, thought_of(study), Machine(score), bounds, model=ScriptedModel(script), texts=dict(TEXTS))


def ended(lab: Lab) -> Study:
    lab.session()
    assert not list(audit(lab.entries, thought_of))
    return fold(lab.entries)


def events(lab: Lab, kind: type) -> list:
    return [entry.event for entry in lab.entries if isinstance(entry.event, kind)]


# ---- replies ---------------------------------------------------------------------------------------------------------


def test_the_ledger_says_who_proposed_each_trial_and_why() -> None:
    """The model by its name, in its own words; nothing of it is a stand-in's."""
    told = ended(lab(chosen))
    trials = [trial for trial in told.trials.values() if trial.role == "search"]
    assert len(trials) == 6
    assert {trial.proposal.by for trial in trials} == {"llm: scripted"}
    assert {trial.proposal.why for trial in trials} == {"a try"}
    assert not told.fallbacks


BAD = {
    "a value outside its domain": '{"params": {"lr": 50, "depth": 3, "opt": "adam"}}',
    "a missing parameter": '{"params": {"lr": 0.01, "depth": 3}}',
    "no JSON at all": "I would rather not.",
    "a number as text": '{"params": {"lr": "0.01", "depth": 3, "opt": "adam"}}',
}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_run_goes_back_with_the_reason(bad: str) -> None:
    """In the same conversation: what was said, what is wrong with it; the next reply counts, and no trial is lost."""
    seen: list[Prompt] = []

    def script(prompt: Prompt) -> str:
        seen.append(prompt)
        return BAD[bad] if len(prompt.messages) == 2 else chosen(prompt)

    told = ended(lab(script, trials=1))
    first, second = seen
    assert second.messages[:2] == first.messages
    assert second.messages[2].role == "assistant"
    assert second.messages[2].text == BAD[bad]
    assert "cannot be run" in second.messages[3].text
    assert told.trials[1].score is not None


def test_a_reply_that_was_cut_off_is_not_used() -> None:
    """Even where what came of it could be read."""

    def script(prompt: Prompt) -> str | Reply:
        return chosen(prompt) if len(prompt.messages) > 2 else Reply(chosen(prompt), finish="length", model="m")

    whole = lab(script, trials=1)
    ended(whole)
    assert [event.reply.finish for event in events(whole, Replied)] == ["length", "stop"]


def test_nobody_proposes_in_the_models_name() -> None:
    """Three replies that cannot be run fault the round; five such rounds running end the study, without one trial."""
    whole = lab(lambda _: "no")
    told = ended(whole)
    assert told.closed.reason == "faulted"
    assert len(events(whole, Faulted)) == 5
    assert [trial.role for trial in told.trials.values()] == ["baseline"]


def test_a_stand_in_is_the_users_choice_and_is_always_named() -> None:
    """`fallback: random`: the trial says that it is a stand-in's, and why; the study counts them."""
    told = ended(lab(lambda _: "no", trials=3, fallback="random"))
    trials = [trial for trial in told.trials.values() if trial.role == "search"]
    assert [trial.proposal.by for trial in trials] == ["random"] * 3
    assert all("no reply could be run" in trial.proposal.fallback for trial in trials)
    assert told.fallbacks == 3


def test_a_point_that_was_tried_goes_back() -> None:
    """The same parameters again are no new trial: the model hears of it and chooses others."""
    point = '{"params": {"lr": 0.01, "depth": 3, "opt": "adam"}, "why": "again"}'
    heard: list[str] = []

    def script(prompt: Prompt) -> str:
        if len(prompt.messages) > 2:
            heard.append(prompt.messages[-1].text)
            return chosen(prompt)
        return point

    told = ended(lab(script, trials=2))
    assert len(heard) == 1
    assert "trial 1 had these very parameters" in heard[0]
    assert told.trials[2].change != told.trials[1].change


def test_a_provider_that_will_never_answer_ends_the_study_at_once() -> None:
    """One ask, no storm: what it said is why the study ended; what was tried before stays, with its headline."""
    asked = 0

    def script(prompt: Prompt) -> str | Reply:
        nonlocal asked
        asked += 1
        return chosen(prompt) if asked < 4 else Reply(None, problem="401: the key is not valid", trouble="fatal")

    whole = lab(script, trials=9)
    told = ended(whole)
    assert told.closed.reason == "proposer_failed"
    assert "401" in told.closed.why
    assert asked == 4
    assert told.searched == 3
    assert len(events(whole, Abandoned)) == 1
    whole.model = ScriptedModel(chosen)
    assert ended(whole).searched == 9  # mended: the same command goes on


# ---- what a model sees -----------------------------------------------------------------------------------------------


def long_study(trials: int) -> Study:
    whole = lab(chosen, trials=trials)
    whole.machine = Machine(lambda values, seed: "exit 1" if int(values.get("depth", 1)) == 5 else score(values, seed))
    whole.session()
    return fold(whole.entries)


def seen_at(study: Study, number: int) -> tuple[str, str]:
    """The prompt that a round opened after trial `number` would begin with."""
    place = next(trial.proposed_at for trial in study.trials.values() if trial.number == number + 1) - 1
    system, user = brief(View(study, Round(9999, "search", place, place), place))
    return system.text, user.text


def test_a_prompt_is_bounded_at_any_length_of_history_and_holds_the_best() -> None:
    """And most of it is what the prompt before began with, so that it is charged once."""
    study = long_study(160)
    sizes, shares = [], []
    for number in range(60, 159):
        (system, before), (_, after) = seen_at(study, number - 1), seen_at(study, number)
        same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
        shares.append((len(system) + same) / (len(system) + len(after)))
        sizes.append(len(system) + len(after))
        best = max((t for t in study.trials.values() if t.crowned and t.number <= number), key=lambda t: t.number)
        assert json.dumps(best.change.values) in after
    assert max(sizes) < 24_000
    assert sorted(shares)[len(shares) // 10] > 0.8  # but where the window moves, once in 25


def test_what_programs_printed_cannot_leave_its_fence() -> None:
    """Whatever it prints: the line that ends the fence is longer than any like it inside."""
    for text in ("====", "==== end ====", "=" * 50 + " end " + "=" * 50, "a\x1b[2Jb"):
        lines = fenced("x", text).splitlines()
        bars = lines[0].split()[0]
        assert lines[-1] == f"{bars} end {bars}"
        assert not any(bars in line for line in lines[1:-1])
        assert "\x1b" not in "".join(lines)


def test_a_template_is_filled_once() -> None:
    """What is put in is not looked at again: a task with {braces} stays as it is."""
    assert fill("{a} {b} {{c}} {d}", a="{b}", b="x", c="y") == "{b} x {y} {d}"


def test_every_part_of_a_prompt_is_there() -> None:
    """Goal, task, source, space with scales, rule, trials with reasons, what is under way, hints, the question."""
    whole = lab(chosen, trials=3)
    whole.texts |= {"task": "Make it {good}.", "source": "print('score=1')"}
    whole.session()
    first = whole.model.asked
    assert len(first) == 3
    study = fold(whole.entries)
    system, user = seen_at(study, 2)
    assert "The higher `score`" in system
    assert "Make it {good}." in system
    assert "- lr: 1e-05 to 0.1, on a logarithmic scale" in system
    assert '- opt: one of "adam", "sgd"' in system
    assert "print('score=1')" in user
    assert re.search(r'^1 \| \{"lr": .*\} \| score = \S+: .* \| a try$', user, re.MULTILINE)
    assert re.search(r"This is proposal \d+ of at most 3\.", user)


def test_an_audit_takes_the_prompts_of_another_version_on_faith() -> None:
    """Another version may put them otherwise; what follows from the replies has to be the same all the same."""
    whole = lab(chosen, trials=3)
    whole.session()
    whole.entries[1] = replace(
        whole.entries[1], event=replace(whole.entries[1].event, texts={**TEXTS, "next": "Well?"})
    )
    assert list(audit(whole.entries, thought_of))
    whole.entries[1] = replace(whole.entries[1], event=replace(whole.entries[1].event, version="0.0.0"))
    assert not list(audit(whole.entries, thought_of))
    other = next(i for i, entry in enumerate(whole.entries) if isinstance(entry.event, Replied))
    reply = replace(whole.entries[other].event.reply, text=chosen(Prompt("x", ())))
    whole.entries[other] = replace(whole.entries[other], event=replace(whole.entries[other].event, reply=reply))
    assert list(audit(whole.entries, thought_of))


# ---- guided, learned -------------------------------------------------------------------------------------------------


def test_a_guided_model_sees_the_samplers_suggestion_and_its_picture() -> None:
    """It may take it or change it, and the trial says which. While the sampler only draws, the prompt says that."""
    pytest.importorskip("optuna")

    def script(prompt: Prompt) -> str:
        text = prompt.messages[1].text
        suggestion = json.loads(re.search(r"Its (?:suggestion|draw): (\{.*\})", text)[1])
        assert ("it draws at random" in text) == ("explains" not in text)
        if "explains" in text:
            suggestion["depth"] = suggestion["depth"] % 9 + 1
        return json.dumps({"params": suggestion, "why": "as it says"})

    told = ended(lab(script, trials=14, policy="guided"))
    whys = [trial.proposal.why for trial in told.trials.values() if trial.role == "search"]
    assert whys[0] == "as it says"
    assert re.search(r'as it says \(as suggested, but for \{"depth": \d\}\)', whys[-1])


def test_the_learned_policy_goes_where_keeps_come_from() -> None:
    """Each arm once; then the one whose trials were kept gets most of the rounds, and each trial says whose it is."""
    best = iter(range(1, 1000))

    def script(_: Prompt) -> str:
        return json.dumps({"params": {"lr": 0.01 + 1e-6 * (200 - next(best)), "depth": 1, "opt": "sgd"}, "why": "near"})

    told = ended(lab(script, trials=30, policy="learned", arms=("random", "llm"), rule="strict"))
    arms = [trial.proposal.by.split(" < ")[0] for trial in told.trials.values() if trial.role == "search"]
    assert arms[:2] == ["random", "llm"]
    assert arms.count("llm") > 20


# ---- money -----------------------------------------------------------------------------------------------------------

PRICED = ModelSpec("m", max_tokens=500, usd_in=1.0, usd_out=10.0)


@settings(max_examples=40, deadline=None)
@given(
    cap=st.floats(0.001, 0.2),
    crashes=st.lists(st.integers(0, 60), max_size=4),
    used=st.floats(0.0, 1.0),
)
def test_a_cap_on_cost_is_never_exceeded(cap: float, crashes: list[int], used: float) -> None:
    """Spent and set aside together are within it when an ask is made, whatever asks cost and however often we crash."""

    def script(prompt: Prompt) -> Reply:
        worst = sum(16 + len(m.text.encode()) for m in prompt.messages)
        usage = Usage(0.1, int(worst * used), int(500 * used))
        usd = (usage.tokens_in * PRICED.usd_in + usage.tokens_out * PRICED.usd_out) / 1e6
        return Reply(chosen(prompt), model="m", usage=replace(usage, usd=usd))

    whole = lab(script, trials=12)
    whole.bounds = replace(whole.bounds, models={"proposer": PRICED}, max_cost_usd=cap)
    whole.to_the_end(iter(crashes))
    assert not list(audit(whole.entries, thought_of))
    study = Study()
    for entry in whole.entries:
        study = fold([entry], study)
        assert (spent(study).usd or 0.0) <= cap + 1e-12
        if isinstance(entry.event, Asked):
            assert (spent(study).usd or 0.0) + (set_aside(study).usd or 0.0) <= cap + 1e-12
    assert study.closed.reason in ("cost", "max_iterations")
    assert study.costs.keys() <= {"proposer"}


def test_a_study_that_ran_out_of_money_goes_on_with_more() -> None:
    """The round that could not ask is as if it had not been opened: no trial is lost."""

    def script(prompt: Prompt) -> Reply:
        return Reply(chosen(prompt), model="m", usage=Usage(0.1, 100, 100, 0.01))

    whole = lab(script, trials=8)
    whole.bounds = replace(whole.bounds, models={"proposer": PRICED}, max_cost_usd=0.04)
    told = ended(whole)
    assert told.closed.reason == "cost"
    assert 0 < told.searched < 8
    whole.bounds = replace(whole.bounds, max_cost_usd=10.0)
    told = ended(whole)
    assert told.closed.reason == "max_iterations"
    assert sorted(n for n, t in told.trials.items() if t.role == "search") == list(range(1, 9))


def test_an_ask_that_was_lost_stays_charged_at_its_worst() -> None:
    """Nobody knows whether it was paid for."""
    whole = lab(lambda prompt: Reply(chosen(prompt), model="m", usage=Usage(0.1, 10, 10, 0.0)), trials=1)
    whole.bounds = replace(whole.bounds, models={"proposer": PRICED})
    asked = None
    for crash in range(60):
        broken = lab(whole.model._script, trials=1)
        broken.bounds = whole.bounds
        with suppress(Crash):
            broken.session(crash)
        if broken.entries and isinstance(broken.entries[-1].event, Asked):
            asked = broken
            break
    assert asked is not None
    worst = asked.entries[-1].event.worst[0]
    told = ended(asked)
    assert spent(told).tokens_out == worst.tokens_out + 10


# ---- coming back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["more trials", "another task", "another version"])
def test_a_study_that_was_cut_off_while_it_asked_goes_on_with_other_prompts(change: str) -> None:
    """Whatever the prompts are made of may change between sessions: the round asks anew, and nothing is stuck."""
    crashed = 0
    for crash in range(12, 60):
        broken = lab(chosen, trials=3)
        with suppress(Crash):
            broken.session(crash)
            continue
        asked = bool(broken.entries) and isinstance(broken.entries[-1].event, Asked | Replied)
        crashed += asked
        if change == "more trials":
            broken.bounds = replace(broken.bounds, max_iterations=5)
        elif change == "another task":
            broken.texts = {**TEXTS, "task": "Something else."}
        else:
            for place, entry in enumerate(broken.entries):
                if hasattr(entry.event, "version"):
                    broken.entries[place] = replace(entry, event=replace(entry.event, version="0.0.1"))
        told = ended(broken)
        assert told.closed.reason == "max_iterations"
        assert not events(broken, Faulted)
    assert crashed


def test_an_ask_that_was_lost_is_charged_once_however_often_one_comes_back() -> None:
    """Sessions that ask nothing cost nothing."""
    for crash in range(60):
        broken = lab(lambda prompt: Reply(chosen(prompt), model="m", usage=Usage(0.1, 10, 10, 0.0)), trials=1)
        broken.bounds = replace(broken.bounds, models={"proposer": PRICED})
        with suppress(Crash):
            broken.session(crash)
        if broken.entries and isinstance(broken.entries[-1].event, Asked):
            break
    for _ in range(3):
        with suppress(Crash):
            broken.session(0)  # dies before its first append
        with suppress(Crash):
            broken.session(1)  # and after it: it came back, and asked nothing
    worst = next(e.event.worst[0] for e in broken.entries if isinstance(e.event, Asked))
    assert spent(fold(broken.entries)).tokens_out == worst.tokens_out


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "values", "told"),
    [
        (Choices(("a", "b")), ["a"] * 10 + ["b"] * 3, True),
        (Choices(("a", "b")), ["a"] * 18 + ["b"] * 2, False),
        (Range(0.0, 1.0), [0.5, 0.9, 0.52] + [0.51] * 10, False),
        (Range(0.0, 1.0), [0.1, 0.4, 0.8] * 4, True),
        (Range(1e-6, 1.0, log=True), [1e-6, 1e-5, 1e-4] * 4, True),
        (Range(0.0, 1.0), [1e-6, 1e-5, 1e-4] * 4, False),
    ],
)
def test_what_was_hardly_varied_is_said_to_explain_nothing(domain, values, told) -> None:
    """Two trials that differ, or a tenth of the range, are not enough to tell."""
    assert varied(domain, values) is told


def test_one_run_that_went_astray_does_not_hide_what_matters() -> None:
    """A loss of 130 among 0.2: the share is of ranks."""
    pytest.importorskip("optuna")
    points = iter([round(0.002 * i, 4) for i in range(1, 40)])

    def script(prompt: Prompt) -> str:
        script.last = prompt.messages[1].text  # type: ignore[attr-defined]
        return json.dumps({"params": {"lr": next(points), "depth": 1 + int(next(deep)) % 9, "opt": "sgd"}, "why": "on"})

    deep = iter(range(100))
    measured = lambda values, _: f"score={-(130.0 if values.get('depth') == 3 else values.get('lr', 0.5))!r}"  # noqa: E731
    made = lab(script, trials=24, policy="guided")
    made.machine.function = measured
    ended(made)
    share = re.search(r"- lr: .*explains (\d+) %", script.last)  # type: ignore[attr-defined]
    assert share is not None
    assert int(share[1]) > 30


def test_a_test_that_failed_tells_a_lean_from_nothing() -> None:
    """What gained a little may be better; what lost in its re-runs only looked better."""
    lean, lost = (Proof(3, 1, gains, 0.01, 0.2, False) for gains in ((0.1, 0.2), (-0.1, 0.05)))
    assert told_test(lean) == (
        "looked better, and may be, but that is not proven: +0.15 on average over 2 fresh pairs with trial 3"
    )
    assert told_test(lost) == "only looked better: -0.025 on average over 2 fresh pairs with trial 3"
