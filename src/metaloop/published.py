"""The layout in which runs of the method were published, both ways: a study as files, and files as what was found.

    initial_a.md, final_output.md, incumbent_after_NN.md, history.json
    pass_NN/   version_a.md, critic.md, version_b.md, version_ab.md, result.json

Ours has three things more, which are believed where they are found: `rules.json` (how passes are decided, where that is
not as the published runs did it), `shown` in a ballot (the order of places, where labels stand in another), and
`unopposed` in a result (why a pass had no rival; believed where none is there).
Pure: files come and go as text. What comes is anybody's: whatever is wrong with it is said, and nothing is guessed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from msgspec import UNSET, UnsetType, to_builtins

from metaloop.events import Reply
from metaloop.panels import lost
from metaloop.passes import Heard, history, judged_by, last_said, text, versions
from metaloop.recount import NAMES, Cast, Finals, Found, Record, Rules
from metaloop.study import Pass, Study
from metaloop.values import Ballot

HISTORY, RESULT, RULES = "history.json", "result.json", "rules.json"
FINALS = "results.json", "5way_results.json"
VERSIONS = {"A": "version_a.md", "B": "version_b.md", "AB": "version_ab.md"}

JUDGES, K = 99, 100
"""Ballots of one pass at most, and wins running that a run may be held to."""

# ---- a study, as files -----------------------------------------------------------------------------------------------


def files(study: Study, said: Mapping[int, Heard]) -> Iterator[tuple[str, str]]:
    """Every file of a study's tournament: its path and its text."""
    rules = study.the_terms.tournament
    assert rules is not None
    yield "initial_a.md", study.contents[study.base[rules.document]]
    for index, each in enumerate(study.passes):
        place, there = f"pass_{index + 1:02}", versions(study, each)
        yield from ((f"{place}/{VERSIONS[name]}", version) for name, version in there.items())
        if (told := said.get(each.round)) is not None and told.critique:
            yield f"{place}/critic.md", told.critique
        yield f"{place}/{RESULT}", dumped(_result(index + 1, each, told))
        yield f"incumbent_after_{index + 1:02}.md", there[each.panel.winner or "A"]
    yield "final_output.md", text(study)
    yield HISTORY, dumped(history(study))
    yield RULES, dumped(to_builtins(judged_by(study)))


def dumped(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _result(number: int, each: Pass, said: Heard | None) -> dict[str, object]:
    panel = each.panel
    replies = last_said(panel, said)
    return {
        "pass": number,
        "winner": panel.winner or None,
        "scores": panel.points,
        "valid_judges": panel.valid,
        "elapsed": round(each.seconds, 1),
        "why": panel.why,
        **({"unopposed": panel.why} if panel.winner and not panel.asked else {}),
        "judge_details": [_detail(ballot, reply) for ballot, reply in zip(panel.ballots, replies, strict=True)],
    }


def _detail(ballot: Ballot, reply: Reply | None) -> dict[str, object]:
    problem = lost(reply) if reply is not None else ""
    return {
        "judge": ballot.judge + 1,
        "model": ballot.model,
        "order": dict(sorted(zip(ballot.labels, ballot.shown, strict=True))),
        "shown": ballot.shown,
        "ranking": list(ballot.ranking) or None,
        **({"problem": ballot.problem} if ballot.problem else {}),
        **({"error": problem} if problem else {} if reply is None else {"raw": reply.text}),
    }


# ---- files, as what was found ----------------------------------------------------------------------------------------


class Malformed(Exception):
    """What a file has instead of what it should; one line."""


def parsed(data: bytes) -> object:
    """JSON, whatever it is. Raises Malformed."""
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=lambda _: None)
    except UnicodeDecodeError:
        raise Malformed("expected JSON, found what is no UTF-8") from None
    except RecursionError:
        raise Malformed("expected JSON, found it nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"expected JSON: {str(error)[:120]}") from None


def rules(value: object) -> Rules:
    """What `rules.json` says. Raises Malformed."""
    given = _object(value)
    order = given.get("tie_order", list(NAMES))
    if not isinstance(order, list) or not 0 < len(order) <= JUDGES or not all(_is_name(name) for name in order):
        raise Malformed("expected the names of versions as tie_order")
    return Rules(
        _between(given, "k", 2, 1, K),
        _between(given, "margin", 0, 0, 10_000),
        tuple(order),
        None if given.get("quorum") is None else _between(given, "quorum", 1, 1, JUDGES),
        given.get("both") is True,
    )


def recorded(value: object) -> dict[int, Record]:
    """What `history.json` says of each pass. Raises Malformed."""
    if not isinstance(value, list):
        raise Malformed(f"expected a list of passes, found {_kind(value)}")
    found: dict[int, Record] = {}
    for at, each in enumerate(value):
        given = _object(each)
        number = _whole(given.get("pass", given.get("pass_num")))
        if number is None or number in found:
            raise Malformed(f"expected the number of a pass, each once, found another thing at place {at + 1}")
        found[number] = _record(given)
    return found


def found(
    number: int, value: object, replies: Mapping[int, str], words: Mapping[str, int], history: Record | None = None
) -> Found:
    """A pass by its `result.json`, the raw replies beside it by judge, and the words of the versions that are there.
    Raises Malformed.
    """
    given = _object(value)
    own = _record(given)
    record = _filled(own, history or Record())
    details = next((given[key] for key in ("judge_details", *VALID) if isinstance(given.get(key), list)), [])
    assert isinstance(details, list)
    if len(details) > JUDGES or len(replies) > JUDGES:
        raise Malformed(f"expected at most {JUDGES} ballots, found {max(len(details), len(replies))}")
    ballots = [_cast(judge, each, replies) for judge, each in zip(_judges(details), details, strict=True)]
    ballots += [Cast(judge, raw=reply) for judge, reply in sorted(replies.items()) if judge > len(details)]
    unopposed = given.get("unopposed")
    rivals = {name for name in words if name != NAMES[0]}
    said = _whole(given.get("pass", given.get("pass_num")))
    return Found(
        number,
        _names(record, ballots),
        tuple(ballots),
        min(JUDGES, record.valid) if ballots and record.valid is not UNSET else 0,
        record,
        unopposed[:200] if isinstance(unopposed, str) and not ballots and not rivals else "",
        dict(words),
        (
            *_contradictions(own, history or Record()),
            *([] if said in (None, number) else [f"it calls itself pass {said}"]),
        ),
    )


VALID = "valid_judges", "num_valid", "valid"
"""The keys under which the number of valid ballots is recorded, or the ballots themselves."""


def _record(given: Mapping[str, object]) -> Record:
    won = given.get("winner", UNSET)
    won = won if won is UNSET or _is_name(won) else None
    points = UNSET if given.get("scores") is None else _scores(given["scores"])
    valid = next((given[key] for key in VALID if key in given), None)
    count = len(valid) if isinstance(valid, list) else _whole(valid)
    return Record(won, points, UNSET if count is None else count)


def _filled(record: Record, history: Record) -> Record:
    """A pass by its own result, and by the history where that says nothing."""
    return Record(
        history.winner if record.winner is UNSET else record.winner,
        history.points if record.points is UNSET else record.points,
        history.valid if record.valid is UNSET else record.valid,
    )


def _contradictions(record: Record, history: Record) -> Iterator[str]:
    if UNSET not in (record.winner, history.winner) and record.winner != history.winner:
        yield f"{HISTORY} has {history.winner or 'nobody'} as its winner, {RESULT} {record.winner or 'nobody'}"
    if UNSET not in (record.points, history.points) and record.points != history.points:
        yield f"{HISTORY} has other scores than {RESULT}"


def _names(record: Record, ballots: list[Cast]) -> tuple[str, ...]:
    """The versions of a pass: those that were scored, else those that were shown, else all three; A first."""
    scored = set() if record.points is UNSET else set(record.points)
    shown = {name for ballot in ballots for name in ballot.shown}
    names = next((known for known in (scored, shown) if 1 < len(known) <= JUDGES), set(NAMES))
    return (*(name for name in NAMES if name in names), *sorted(names - {*NAMES}))


def _judges(details: list[object]) -> list[int]:
    """Who cast each ballot: by its own word where all have one, and counted from 1 else."""
    own = [_whole(each.get("judge")) if isinstance(each, dict) else None for each in details]
    said = [number for number in own if number is not None and number > 0]
    return said if len(said) == len(details) else list(range(1, len(details) + 1))


def _cast(judge: int, value: object, replies: Mapping[int, str]) -> Cast:
    if not isinstance(value, dict):
        return Cast(judge, raw=replies.get(judge), lost=f"expected a ballot, found {_kind(value)}")
    labels, shown = _placed(_order(value.get("order", value.get("presentation_order"))), value.get("shown"))
    said, error = value.get("raw"), value.get("error")
    raw = said if isinstance(said, str) else replies.get(judge)
    problem = "" if error is None else str(error)[:200] or "an error"
    refused = problem and value.get("ranking") is None
    return Cast(judge, shown, labels, raw, problem, None if refused else _ranking(value))


def _ranking(given: Mapping[str, object]) -> tuple[str, ...] | UnsetType | None:
    match given.get("ranking", UNSET):
        case None:
            return None
        case list(names):
            return tuple(str(name)[:40] for name in names[:JUDGES])
        case UnsetType():
            return UNSET
        case other:
            return (str(other)[:40],)


_LABEL = re.compile(r"[A-Za-z0-9]{1,20}")


def _order(value: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels, and what stood under each; both empty where that is not recorded, or not as one can be."""
    given = {str(at + 1): name for at, name in enumerate(value)} if isinstance(value, list) else value
    if not isinstance(given, dict) or not 0 < len(given) <= JUDGES:
        return (), ()
    labels = sorted(given, key=lambda label: (len(label), label))
    names = [given[label] for label in labels]
    sound = all(map(_LABEL.fullmatch, labels)) and all(map(_is_name, names)) and len(set(names)) == len(names)
    return (tuple(labels), tuple(names)) if sound else ((), ())


def _placed(order: tuple[tuple[str, ...], tuple[str, ...]], places: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and names by the place shown, where that is not the order of the labels."""
    labels, names = order
    if not isinstance(places, list) or not all(map(_is_name, places)) or sorted(places) != sorted(names):
        return order
    label_of = dict(zip(names, labels, strict=True))
    return tuple(label_of[name] for name in places), tuple(places)


def finals(value: object, replies: Mapping[int, str]) -> Finals:
    """A final panel by its `results.json`. Raises Malformed."""
    given = _object(value)
    points = _scores(given.get("borda"))
    if not 1 < len(points) <= 26:
        raise Malformed(f"expected the points of two methods or more as borda, found {len(points)}")
    valid = next((given[key] for key in ("valid_judges", "num_judges", *VALID) if key in given), None)
    firsts = given.get("first_place")
    return Finals(
        points,
        {} if firsts is None else _scores(firsts),
        len(valid) if isinstance(valid, list) else _whole(valid),
        _whole(given.get("max_borda")),
        dict(replies),
    )


# ---- what JSON has ---------------------------------------------------------------------------------------------------


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Malformed(f"expected an object, found {_kind(value)}")
    return value


def _scores(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > JUDGES:
        raise Malformed(f"expected points by name, found {_kind(value)}")
    points = {name: _whole(count) for name, count in value.items()}
    if odd := [name for name, count in points.items() if count is None or not _is_name(name)]:
        raise Malformed(f"expected whole points by name, found another thing under {odd[0][:40]!r}")
    return {name: count for name, count in points.items() if count is not None}


def _between(given: Mapping[str, object], key: str, absent: int, least: int, most: int) -> int:
    number = _whole(given.get(key, absent))
    if number is None or not least <= number <= most:
        raise Malformed(f"expected a whole number from {least} to {most} as {key}")
    return number


def _whole(value: object) -> int | None:
    """A whole number that is not out of all proportion."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9 or value != int(value):
        return None
    return int(value)


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= 40


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "nothing"}
    return kinds.get(type(value), "a number")
