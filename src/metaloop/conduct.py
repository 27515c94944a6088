"""Where thought meets the world: flows are driven through what is recorded, and what they want next becomes facts.

All of it is pure: `wanted` says what somebody is to be asked, and the engine asks. A flow that raises, or that asks
something else than it had asked, faults its round; the round then thinks again from the start.
"""

from collections.abc import Iterator, Sequence
from typing import cast

from msgspec.structs import replace

from metaloop import __version__
from metaloop.costs import session, spec, unaffordable, worst
from metaloop.edits.contract import Broken
from metaloop.errors import ProposerError
from metaloop.events import (
    Abandoned,
    Asked,
    Confirmed,
    Decided,
    Event,
    Faulted,
    Measured,
    Proposed,
    Refused,
    Reply,
    RunsAsked,
    Stage,
)
from metaloop.flow import Concluded, Differs, Flow, Prompt, Runs, Session, Waiting, prompts, replay
from metaloop.plan import AskModel
from metaloop.roles import Measurement, Thought, Verdict
from metaloop.study import HELD_OUT, Round, Study
from metaloop.values import Decision, Edit, Headline, Proposal, Score, accept
from metaloop.values import Refused as Refusal


def think(study: Study, round: Round, stage: Stage, thought: Thought) -> tuple[Event, ...]:
    """The facts that follow from what is known: a conclusion, the next ask, or a fault. Empty: it waits for answers."""
    if failed := _failed(study, round, stage):
        return (Abandoned(round.number, stage, "proposer_failed", failed),)
    try:
        state = _drive(study, round, stage, thought)
    except ProposerError as error:
        return (Faulted(round.number, stage, str(error)),)
    except Exception as error:  # a policy's own mistake must not end the night
        return (Faulted(round.number, stage, f"{type(error).__name__}: {error}"),)
    match state:
        case Differs():
            return (Faulted(round.number, stage, state.reason),)
        case Waiting(missing=None):
            return (_asked(study, round, stage, state),)
        case Waiting():
            why = unaffordable(study)
            return (Abandoned(round.number, stage, "cost", why),) if why else ()
        case Concluded() if stage == "propose":
            return tuple(_proposals(study, round, cast(Sequence[Proposal], state.value)))
        case Concluded() if round.role == "closing":
            return (Confirmed(round.number, cast(Headline, state.value)),)
        case Concluded(value=Verdict(scores=scores, panel=panel)):
            return (Measured(round.number, scores, panel),)
        case Concluded():
            return (Measured(round.number, cast(tuple[Score | None, ...], tuple(state.value))),)  # type: ignore[arg-type]


def _failed(study: Study, round: Round, stage: Stage) -> str:
    """What a provider said that will never answer, unless somebody else may stand in for it."""
    answers = [answer for exchange in round.asked[stage] for answer in exchange.answers]
    fatal = [answer.problem for answer in answers if isinstance(answer, Reply) and answer.trouble == "fatal"]
    rules = study.the_terms.tournament
    if not fatal or study.the_terms.fallback != "none":
        return ""
    if rules is not None and rules.compare and stage == "propose" and len(fatal) < len(answers):
        return ""  # one strategy broke off, and the others go on
    return fatal[0]


def wanted(study: Study, act: AskModel, thought: Thought) -> Prompt | Session | Faulted:
    """What is to be asked for this act; or what is wrong, where the flow does not ask that any more."""
    state = _drive(study, study.open[act.round], act.stage, thought)
    if not isinstance(state, Waiting) or isinstance(state.ask, Runs):
        why = state.reason if isinstance(state, Differs) else "it no longer asks what it had asked"
        return Faulted(act.round, act.stage, why)
    return state.ask if isinstance(state.ask, Session) else prompts(state.ask)[act.member]


def _drive(study: Study, round: Round, stage: Stage, thought: Thought) -> Concluded | Waiting | Differs:
    if stage == "propose":
        return replay(thought.propose(study.view(round)), round.asked["propose"], study.version == __version__)
    bench, past = study.bench(round), round.asked["measure"]
    if round.role == "closing":
        return replay(thought.confirm(bench), past)
    if round.held is not None:
        return replay(_held_out(round.held), past)
    return replay(thought.measure(bench, measurements(study, round)), past)


def _held_out(trial: int) -> Flow[tuple[Score, ...]]:
    """One run of a trial on held-out data. What came of it stands with the run: no score is made of it."""
    yield Runs(trial, (HELD_OUT,))
    return ()


def measurements(study: Study, round: Round) -> tuple[Measurement, ...]:
    """The round's trials in slot order, with what their first looks came to."""
    trials = (study.trials[number] for number in round.trials)
    return tuple(Measurement(trial.number, trial.result) for trial in trials)


def _asked(study: Study, round: Round, stage: Stage, state: Waiting) -> Event:
    if isinstance(state.ask, Runs):
        runs = state.ask
        return RunsAsked(round.number, runs.trial, runs.runs, runs.against, runs.against_runs)
    told = prompts(state.ask)
    cases = tuple(worst(prompt, spec(study.bounds, prompt.role)) for prompt in told)
    digests, roles = tuple(prompt.digest() for prompt in told), tuple(prompt.role for prompt in told)
    if isinstance(state.ask, Session):
        digests, roles, cases = (state.ask.digest(),), ("agent",), session(study.bounds.agent)
    if why := unaffordable(study, cases):
        return Abandoned(round.number, stage, "cost", why)
    return Asked(round.number, stage, state.index, digests, roles, cases)


# ---- proposals -------------------------------------------------------------------------------------------------------


def _proposals(study: Study, round: Round, proposals: Sequence[Proposal]) -> Iterator[Event]:
    """What was proposed, each as a trial with its first look, or as a refusal. Nothing at all ends the round."""
    if not proposals:
        points = study.the_terms.space and not study.the_terms.mutable
        why = "nothing is left to try" + (": every point of the space was proposed" if points else "")
        yield Decided(round.number, Decision((), None, why, leads=study.tally.leads))
    for slot, proposal in enumerate(proposals):
        number = study.number(round.role) + slot
        proposal = replace(proposal, texts={d: t for d, t in proposal.texts.items() if d not in study.contents})
        if (refusal := proposal.refused or contract(study, round, proposal)) is not None:
            yield Refused(round.number, number, replace(proposal, refused=None), refusal)
        else:
            yield Proposed(round.number, number, proposal)
            if study.the_terms.tournament is None or (study.the_terms.check and round.role != "baseline"):
                # a document is judged, and not run; but one may be checked
                yield RunsAsked(round.number, number, (0,))


def contract(study: Study, round: Round, proposal: Proposal) -> Refusal | None:
    """Why a proposal may not run, or None. The baseline may be anything, the rest lies in the space and is new."""
    if round.role == "baseline" or study.the_terms.tournament is not None or study.the_terms.campaign is not None:
        return None  # a version that comes again is judged again: what it lost was a vote, and no measurement
    if isinstance(proposal.change, Edit) and (broken := _judged(study, proposal)) is not None:
        return Refusal(broken.code, broken.text)
    values = proposal.change.values
    own = isinstance(proposal.change, Edit) and not values  # the program's own defaults
    held = values if own else accept(study.the_terms.space, values)
    if isinstance(held, str):
        return Refusal("outside_space", held)
    if held != values or any(type(held[name]) is not type(value) for name, value in values.items()):
        return Refusal("not_canonical", f"{values} is not written as the space holds it: {held}")
    if (before := study.view(round).taken(proposal.change)) is not None:
        return Refusal("duplicate", f"the same as trial {before}: a candidate gets one look")
    return None


def _judged(study: Study, proposal: Proposal) -> Broken | None:
    """What the contract says of the code that a proposal leads to, whoever wrote it, and however."""
    from metaloop.edits.judged import judge  # of code studies alone

    base = {path: study.contents[digest] for path, digest in study.base.items()}
    known = {**study.contents, **proposal.texts}
    overlay = {path: known[digest] for path, digest in proposal.change.files.items()}
    return judge(base, {**base, **overlay}, study.the_terms.contract, study.others)
