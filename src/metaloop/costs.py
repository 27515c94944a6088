"""What asking models and agents costs, and whether the next ask may be made: the worst case is set aside before it is.

Pure. A cap holds because nothing is asked that could go over it: spent, set aside and the new worst case together stay
within it. An ask that was lost with its controller stays charged at its worst case.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from metaloop.flow import Prompt
from metaloop.study import Study
from metaloop.terms import AgentSpec, Bounds, ModelSpec, Tournament
from metaloop.values import Ran, Usage, canonical

FRAME = 16
"""Tokens that a message takes beside its text, at most."""


def spec(bounds: Bounds, role: str) -> ModelSpec | None:
    """Who plays `role`: as configured, else who plays `default`; None where nobody does."""
    return bounds.models.get(role) or bounds.models.get("default")


def worst(prompt: Prompt, who: ModelSpec | None) -> Usage:
    """The most that an ask may cost: no tokeniser makes more tokens of a text than it has bytes.

    `usd` is None where the price is not known, `tokens_out` 0 where nothing bounds a reply.
    """
    size = sum(FRAME + len(message.text.encode()) for message in prompt.messages)
    size += len(canonical(prompt.schema)) if prompt.schema is not None else 0
    if who is None:
        return Usage(0.0, size)
    out = who.max_tokens or 0
    return Usage(0.0, size, out, who.usd(size, out))


def session(agent: AgentSpec | None) -> tuple[Usage, ...]:
    """The most that a session may cost, as `Asked` has it; empty where nothing bounds that."""
    return () if agent is None or agent.usd is None else (Usage(usd=agent.usd),)


def charged(told: Usage, worst: Sequence[Usage], whole: bool) -> tuple[Usage, str]:
    """What a session is charged, and what a person should know of it. What its tool told, if that is of the `whole`
    session; where it is not, or it told nothing, no less than the worst case, so that a cap holds.
    """
    most = worst[0].usd if worst else None
    if most is None:
        return told, ""
    if told.usd is not None and told.usd > most:
        return told, f"a session cost ${told.usd:.6g}, and was given ${most:.6g}: its tool did not hold that limit"
    if told.usd is None or not whole:
        why = "did not say what it cost" if told.usd is None else "was ended before it could say what all of it cost"
        return replace(told, usd=most), f"a session {why}, and is charged the ${most:.6g} that it was given"
    return told, ""


def foreseen(texts: Mapping[str, str], trials: int, who: ModelSpec) -> Usage:
    """About what it will cost to ask for so many proposals: four characters a token, a line of 60 tokens for each trial
    that is shown, 150 tokens of reply; where `files` are to be changed, these, and 600 of reply. Corrections, thinking,
    and what runs print are not in it.
    """
    told = ("propose", "next", "guided", "task", "source")
    text, reply = sum(min(len(texts.get(name, "")), 16_000) for name in told) / 4, 150
    if "files" in texts:
        text, reply = sum(len(texts.get(name, "")) for name in ("code", "next", "task", "files")) / 4, 600
    shown = sum(min(number, 37) for number in range(trials)) * 60
    tokens_in, tokens_out = int(text * trials + shown), reply * trials
    return Usage(0.0, tokens_in, tokens_out, who.usd(tokens_in, tokens_out))


def foreseen_calls(texts: Mapping[str, str], calls: int, who: ModelSpec) -> Usage:
    """About what so many calls cost that repair code: four characters a token, 600 tokens of reply, and in all but the
    first call 800 of results and analysis. Thinking is not in it.
    """
    text = sum(min(len(texts.get(name, "")), 60_000) for name in ("revise", "task", "files")) / 4
    tokens_in, tokens_out = int(text * calls + 800 * (calls - 1)), 600 * calls
    return Usage(0.0, tokens_in, tokens_out, who.usd(tokens_in, tokens_out))


def foreseen_passes(roles: Collection[str], rules: Tournament, characters: int, passes: int, who: ModelSpec) -> Usage:
    """About what it costs to ask these roles in so many passes over a document of so many characters, task and facts
    among them: four characters a token; 300 tokens of critique, and of a judge's reasons. Ballots asked for again, and
    thinking, are not in it.
    """
    text = characters / 4
    once: dict[str, tuple[float, float]] = {
        "critic": (text, 300), "author": (text + 300, text), "synthesizer": (2 * text, text), "judge": (3 * text, 300),
    }  # fmt: skip
    panel = rules.judges * (2 if rules.order == "both" else 1)
    asks = {"critic": 1.0, "author": 1.0, "synthesizer": 1.0, "judge": float(panel)}
    if rules.compare:
        asks = _asks(rules, panel)
    played = [(*once[role], passes * asks[role]) for role in roles if role in once and role != "judge"]
    seats = [rules.seat(judge) for judge in range(rules.judges)]
    for seat in {*seats}.intersection(roles):
        played.append((*once["judge"], passes * asks["judge"] * seats.count(seat) / len(seats)))
    if "judge" in roles and not rules.compare:
        played.append((2 * text, 300, float(rules.final)))
    tokens_in = int(sum((into + 250) * times for into, _, times in played))
    tokens_out = int(sum(out * times for _, out, times in played))
    return Usage(0.0, tokens_in, tokens_out, who.usd(tokens_in, tokens_out))


def _asks(rules: Tournament, panel: int) -> dict[str, float]:
    """About how often each role is asked in a comparison: a strategy spends all its calls, and two of three of those
    for drafts that are picked from go into drafts.
    """
    calls, asks = rules.calls, {"critic": 0.0, "author": 0.0, "synthesizer": 0.0, "judge": float(rules.final)}
    for name in rules.compare:
        match name:
            case "single":
                continue
            case "critique_revise":
                shares = {"critic": calls / 2, "author": calls / 2}
            case "best_of_n":
                shares = {"author": calls * 2 / 3, "judge": calls / 3}
            case "autoreason":
                passes = calls // (3 + panel)
                shares = {"critic": passes, "author": passes, "synthesizer": passes, "judge": passes * panel}
            case _:
                shares = {"author": float(calls)}
        for role, times in shares.items():
            asks[role] += times
    return asks


def spent(study: Study) -> Usage:
    """By all roles together, asks that were lost included; of a study of studies also what those spent."""
    costs = list(study.costs.values())
    if study.terms is not None and study.terms.campaign is not None:
        costs += [Usage(usd=usd) for usd in _of_runs(study)]
    return total(costs)


def _of_runs(study: Study) -> Iterator[float]:
    """What each run of a study of studies spent, as far as its price is known."""
    for trial in study.trials.values():
        for run in trial.runs.values():
            if isinstance(run.last, Ran) and "usd" in run.last.metrics:
                yield run.last.metrics["usd"]


def total(usages: Sequence[Usage]) -> Usage:
    """All of them together."""
    whole = Usage()
    for usage in usages:
        whole = whole.plus(usage)
    return whole


def set_aside(study: Study) -> Usage:
    """The worst case of every ask that is not answered yet."""
    exchanges = (exchange for round in study.open.values() for asked in round.asked.values() for exchange in asked)
    return total([e.worst[member] for e in exchanges if e.worst for member in e.missing()])


def unaffordable(study: Study, more: Sequence[Usage] = ()) -> str:
    """Why `more` may not be asked, or what is set aside not be asked again; empty where the caps hold."""
    bounds = study.bounds
    if not bounds.capped:
        return ""
    used = spent(study)
    whole = total([used, set_aside(study), *more])
    if bounds.max_cost_usd is not None and (whole.usd or 0.0) > bounds.max_cost_usd:
        left = bounds.max_cost_usd - (used.usd or 0.0)
        return f"the next ask may cost more than the ${left:.4g} that are left of ${bounds.max_cost_usd:g}"
    if bounds.max_tokens is not None and whole.tokens > bounds.max_tokens:
        left = bounds.max_tokens - used.tokens
        return f"the next ask may take more than the {left} tokens that are left of {bounds.max_tokens}"
    return ""
