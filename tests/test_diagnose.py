"""What is wrong with a tournament, read from its trace; and the remedies, as edits that apply and undo."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaloop.diagnose import ORIGINAL, SEVERITY, SIGNATURES, Heard, Pass, Trace, diagnose
from metaloop.errors import UsageError
from metaloop.harness import TOURNAMENT, Edit, Harness, applied, changed, undone
from metaloop.mechanisms import BUNDLES, mechanism
from metaloop.searches import REMEDIES, Search, Step, signs
from workshop import Workshop

MIXED = (("A", "B", "AB"), ("A", "AB", "B"), ("B", "A", "AB"))


def made(winner: str | None, *rankings: tuple[str, ...], **more: object) -> Pass:
    """A pass with these ballots; without any, three that agree with the winner in different orders."""
    if winner is None:
        return Pass(None, asked=3, ballots=tuple(Heard(judge, None) for judge in range(3)))
    names = ("A", "B", "AB")
    rest = [name for name in names if name != winner]
    given = rankings or ((winner, *rest), (winner, *reversed(rest)), (rest[0], winner, rest[1]))
    points = {name: sum(3 - ranking.index(name) for ranking in given) for name in names}
    ballots = tuple(Heard(judge, ranking) for judge, ranking in enumerate(given))
    return Pass(winner, points, len(given), len(given), ballots, **more)  # type: ignore[arg-type]


def trace(*winners: str | None, cap: int | None = None, ended: str = "", **more: object) -> Trace:
    return Trace(tuple(made(winner) for winner in winners), cap=cap, ended=ended, **more)  # type: ignore[arg-type]


AGREED = ("A", "B", "AB")
HERDS = Trace((made("A", AGREED, AGREED, AGREED),) * 2)
PREMATURE = Trace((made("A", *MIXED),) * 2)


@pytest.mark.parametrize(
    ("seen", "signature", "also"),
    [
        (HERDS, "judge_herding", "premature_convergence"),
        (PREMATURE, "premature_convergence", ""),
        (trace("B", "AB", "B", "AB", "AB", "B", cap=6), "synthesis_drift", "oscillation"),
        (trace("A", "B", "A", "B", "A", "B", cap=6), "position_bias", "oscillation"),
        (trace("A", "AB", "A", "AB", "A", "AB", cap=6), "oscillation", ""),
        (trace("A", "B", "AB", ended="stopped"), "", ""),
        (trace("AB", "B", "AB", "A", "A"), "", ""),
        (trace("A", "B", "A", "B", "AB", "B", "B", "A", "A"), "", ""),
        (trace(None, None), "judge_failure", ""),
        (Trace(()), "", ""),
    ],
)
def test_the_worked_cases_are_diagnosed_as_they_should_be(seen: Trace, signature: str, also: str) -> None:
    found = diagnose(seen)
    assert found.signature == signature, found
    assert also in found.evidence or not also
    assert found.why


def test_the_original_five_are_selectable_alone() -> None:
    seen = trace("B", "AB", "B", "AB", "AB", "B", cap=6)
    assert diagnose(seen, ORIGINAL).signature == "oscillation"
    assert not diagnose(trace(None, None), ORIGINAL).signature
    assert list(diagnose(trace("A", "B", "A", "B", "A", "B", cap=6), ORIGINAL).evidence) == [
        "position_bias", "oscillation",
    ]  # fmt: skip


def test_a_place_that_decides_is_seen_before_all_that_is_read_from_points() -> None:
    shown = [("A", "B", "AB"), ("B", "AB", "A"), ("AB", "A", "B")]
    ballots = tuple(Heard(judge, order, order) for judge, order in enumerate(shown))
    seen = Trace(tuple(Pass("A", dict.fromkeys(["A", "B", "AB"], 6), 3, 3, ballots) for _ in range(4)))
    assert diagnose(seen).signature == "order_effect"
    assert "first 12, 0, 0 times" in diagnose(seen).why


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ([made("A", *MIXED, cut=("author",)), made("A", *MIXED)], "1 texts were cut off by the token limit: author"),
        ([made("AB", *MIXED, alike=True), made("A", *MIXED), made("A", *MIXED)], "A and B were the same text"),
    ],
)
def test_texts_that_are_cut_off_or_the_same_are_seen(passes: list, said: str) -> None:
    assert said in diagnose(Trace(tuple(passes))).why


def test_a_judge_that_loses_its_ballots_is_seen_while_the_panel_goes_on() -> None:
    ballots = (Heard(0, AGREED), Heard(1, None), Heard(2, ("B", "A", "AB")))
    seen = Trace(tuple(Pass("A", {"A": 5, "B": 5, "AB": 2}, 2, 3, ballots) for _ in range(2)))
    assert diagnose(seen).why == "judge 2 lost 2 of its 2 ballots"
    assert diagnose(Trace((Pass("A", unopposed=True),) * 2)).signature == "premature_convergence"


passes = st.lists(
    st.builds(
        Pass,
        st.sampled_from(["A", "B", "AB", None]),
        valid=st.integers(0, 3),
        asked=st.just(3),
        ballots=st.lists(
            st.builds(Heard, st.integers(0, 2), st.none() | st.permutations(AGREED).map(tuple)), max_size=3
        ).map(tuple),
        alike=st.booleans(),
        unopposed=st.booleans(),
    ),
    max_size=12,
).map(tuple)


@given(
    st.builds(
        Trace, passes, st.integers(1, 4), st.none() | st.integers(1, 12), st.sampled_from(["", "stopped", "max_passes"])
    )
)
def test_a_diagnosis_is_the_first_of_the_signatures_that_fire(seen: Trace) -> None:
    """For any trace; and it always says why."""
    found = diagnose(seen)
    assert found.why
    assert list(found.evidence) == [name for name in SEVERITY if name in found.evidence]
    if found.signature:
        assert found.evidence[found.signature] == found.why == SIGNATURES[found.signature](seen)


# ---- the harness, and remedies ---------------------------------------------------------------------------------------

PLAIN = Harness(
    {
        "tournament.k": 2, "tournament.margin": 2, "tournament.tie_order": ("A", "B", "AB"),
        "tournament.scope_note": False,
        "tournament.critic.mode": "normal", "tournament.critic.lenses": (), "tournament.critic.lens_rotation": "off",
        "tournament.author.constraints": (), "tournament.judges.count": 3, "tournament.judges.order": "latin",
        "tournament.judges.quorum": 2, "tournament.judges.strict_ballot": False, "tournament.judges.retries": 1,
        "tournament.judges.lenses": (), "tournament.judges.dissent_slot": False, "models.author.temperature": 0.8,
        "models.author.max_tokens": 4096,
    }
)  # fmt: skip


@pytest.mark.parametrize("signature", SEVERITY)
def test_every_signature_has_a_remedy_that_applies_and_undoes(signature: str) -> None:
    found = mechanism(signature, PLAIN)  # type: ignore[arg-type]
    assert found is not None
    after = applied(PLAIN, found.edits, TOURNAMENT)
    assert after.hash() != PLAIN.hash()
    assert undone(after, found.edits, TOURNAMENT) == PLAIN
    assert undone(after, found.edits, TOURNAMENT).hash() == PLAIN.hash()


def test_a_remedy_that_changes_nothing_is_void() -> None:
    top = applied(
        PLAIN,
        changed(PLAIN, {"models.author.temperature": 2.0, "tournament.author.constraints": ("no_paraphrase",)}),
        TOURNAMENT,
    )
    assert mechanism("candidate_collapse", top) is None
    assert mechanism("oscillation", PLAIN) is not None


def test_a_panel_that_grows_keeps_its_margin_and_its_quorum_in_proportion() -> None:
    found = mechanism("position_bias", PLAIN)
    assert found is not None
    after = applied(PLAIN, found.edits, TOURNAMENT)
    assert (after["tournament.judges.count"], after["tournament.judges.quorum"], after["tournament.margin"]) == (
        7,
        5,
        5,
    )


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (Edit("tournament.k", 3, 1), "expected 3, as it was when this was meant, found 2"),
        (Edit("tournament.k", 2, 0), "expected a whole number from 1 to 20, found 0"),
        (Edit("tournament.k", 2, 2.5), "expected a whole number"),
        (Edit("tournament.k", 2, True), "expected a whole number"),
        (Edit("models.author.temperature", 0.8, float("nan")), "expected a number from 0 to 2, found nan"),
        (Edit("tournament.critic.mode", "normal", "cruel"), "expected one of normal, hard"),
        (Edit("tournament.author.constraints", (), ("",)), "expected a list of texts"),
        (Edit("tournament.wings", None, 2), "expected a knob that this harness has"),
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing(edit: Edit, said: str) -> None:
    good = Edit("tournament.margin", 2, 3)
    with pytest.raises(UsageError, match=said.replace("(", "\\(")):
        applied(PLAIN, [good, edit], TOURNAMENT)
    assert PLAIN["tournament.margin"] == 2


@given(st.permutations(sorted(PLAIN.values)))
def test_a_hash_is_of_values_and_not_of_the_order_in_which_they_were_set(names: list) -> None:
    assert Harness({name: PLAIN[name] for name in names}).hash() == PLAIN.hash()


def test_every_bundle_has_a_name_of_its_own() -> None:
    assert len({name for name, _, _ in BUNDLES.values()}) == len(BUNDLES) == len(SEVERITY)


# ---- measured trials -------------------------------------------------------------------------------------------------

KEPT, LOST = Step(kept=True, gain=1.0), Step(gain=-1.0)


@pytest.mark.parametrize(
    ("search", "sign"),
    [
        (Search((LOST,) * 4 + (Step(kind="build"),) * 4), "failure_cluster"),
        (Search((KEPT,) + (Step(duplicate=True),) * 2), "duplicate_proposals"),
        (Search((Step(kept=True, gain=0.1), LOST), noise=0.5), "noise_dominated"),
        (Search((KEPT, LOST), edges=("lr high",)), "boundary"),
        (Search((KEPT,) + (LOST,) * 10), "stalled"),
        (Search((KEPT,) + (LOST,) * 9), ""),
        (Search((LOST,) * 5 + (Step(kind="build"),) * 3), ""),
        (Search((Step(kind="build"),) * 3 + (Step(kind="limit"),) * 3 + (LOST,) * 2), ""),
        (Search((KEPT, Step(duplicate=True), LOST)), ""),
        (Search((KEPT, LOST), noise=0.5), ""),
        (Search(()), ""),
    ],
)
def test_a_search_by_measured_trials_has_signs_of_its_own(search: Search, sign: str) -> None:
    assert next(iter(signs(search)), "") == sign
    assert set(signs(search)) <= set(REMEDIES)


def test_a_study_of_parameters_is_diagnosed_from_its_ledger(tmp_path: Path) -> None:
    """The best of a grid stands at the end of its range."""
    made = Workshop(tmp_path)
    script = "import json, os\nprint('score=%r' % json.loads(os.environ['AR_PARAMS_JSON']).get('x', 0.0))\n"
    (tmp_path / "train.py").write_text(script)
    made.write(
        policy={"type": "grid", "params": {"x": {"low": 0, "high": 4, "int": True}}},
        evaluation={"rule": "strict", "baseline_repeats": 1},
        controller={"max_iterations": 9, "no_improve_limit": 0},
    )
    assert made.run().code == 0
    done = made("diagnose", "--json")
    assert done.code == 0, done.err
    (told,) = done.json["traces"]
    assert told["signature"] == "boundary"
    assert told["evidence"]["boundary"] == "the best stands at the end of its range: x high"
