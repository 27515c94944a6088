"""`metaloop recount` and `export --format autoreason`, by the real command line: what counts, and what is odd."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaloop import cli
from metaloop.adapters.ledger import read_ledger
from metaloop.passes import Heard, heard, last_said
from metaloop.published import Malformed, finals, found, recorded, rules
from metaloop.recount import Rules, counted, final, recount
from metaloop.testing import FakeProvider
from metaloop.values import Ballot, Panel
from test_refine import Desk, best_first, first_shown, play, shown
from workshop import Workshop

ROOT = Path(__file__).parent.parent
CASES = json.loads((ROOT / "tests/data/tournament.json").read_text())
ORDER = {"1": "B", "2": "A", "3": "AB"}
SAID = "RANKING: 3, 2, 1"


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert cli.invoke(["recount", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def lines(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.invoke(["recount", *argv]) == 0
    return capsys.readouterr().out


def write(folder: Path, *results: object, history: object = None) -> Path:
    """A run as it was published: a folder a pass, and a history."""
    for at, result in enumerate(results):
        place = folder / f"pass_{at + 1:02}"
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps(result))
        for name, words in (("a", 3), ("b", 5), ("ab", 4)):
            (place / f"version_{name}.md").write_text("word " * words)
    if history is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.json").write_text(json.dumps(history))
    return folder


def ballot(ranking: Sequence[str] | None, raw: str | None = None) -> dict:
    said = {"raw": raw} if raw is not None else {}
    return {"ranking": None if ranking is None else list(ranking), "order": ORDER, **said}


def spoken(ranking: Sequence[str]) -> dict:
    """A ballot with the reply that says so."""
    label_of = {name: label for label, name in ORDER.items()}
    return ballot(ranking, f"Well.\n\nRANKING: {', '.join(label_of[name] for name in ranking)}")


def result(ballots: Sequence[dict], winner: str, scores: Mapping[str, int], valid: int) -> dict:
    return {"pass": 1, "winner": winner, "scores": scores, "valid_judges": valid, "judge_details": list(ballots)}


A_WINS = [("A", "B", "AB")] * 3
AB_WINS = [("AB", "A", "B")] * 3


def won(by: str) -> dict:
    """A pass that three judges agree on."""
    order = (by, *(name for name in ("A", "B", "AB") if name != by))
    return result([spoken(order)] * 3, by, dict(zip(order, (9, 6, 3), strict=True)), 3) | {"pass": None}


# ---- studies ---------------------------------------------------------------------------------------------------------


def synthesis_first(body: dict) -> bool:
    """Of one judge of three, as orders are balanced."""
    return "Both of them" in next(iter(shown(body).values()))


def hasty(body: dict) -> str:
    """Two of three have to be asked twice."""
    return best_first(body) if len(body["messages"]) > 2 or synthesis_first(body) else "RANKING: 1, 1, 2"


def mute(body: dict) -> str:
    """One of three never says anything that counts."""
    return "RANKING: [best], [next]" if synthesis_first(body) else best_first(body)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("players", "words"),
    [
        (play(), ()),
        (play(hasty), ()),
        (play(mute), ("--max-passes", "4")),
        (play(lambda _: "I cannot say."), ("--max-passes", "2")),
        (play(first_shown), ("--order", "both", "--max-passes", "2")),
        (play(), ("--order", "both")),
        (play(critic=lambda _: "Nothing."), ()),
        (play(synthesizer=lambda _: "none"), ("--max-passes", "3")),
        (play(), ("--judges", "1", "--k", "3")),
    ],
    ids=["fine", "hasty", "mute", "void", "by place", "both", "no problem", "no AB", "one judge"],
)
def test_a_study_and_its_published_folder_are_counted_alike(
    tmp_path: Path, players: Callable[[dict], str], words: tuple[str, ...]
) -> None:
    """Winners, scores, ballots, what is said of the panel; and nothing differs from what was recorded."""
    pytest.importorskip("openai")
    with FakeProvider(players) as provider:
        desk = Desk(tmp_path, provider)
        desk(*words)
    assert desk.made("export", "draft", "--format", "autoreason", "--out", "run").code == 0
    (own,) = desk.made("recount", "draft", "--json").json["runs"]
    (copy,) = desk.made("recount", "run", "--json").json["runs"]
    assert own["run"]["differs"] == 0
    assert [each["winner"] or "" for each in own["run"]["passes"]] == desk.passes()
    assert all(b["source"] == "raw" for each in own["run"]["passes"] for b in each["ballots"])
    assert copy["problems"] == []
    assert own["run"]["said"] == copy["run"]["said"]
    keep = ("number", "status", "winner", "points", "valid", "asked", "differs", "words")
    for one, other in zip(own["run"]["passes"], copy["run"]["passes"], strict=True):
        assert {key: one[key] for key in keep} == {key: other[key] for key in keep}
        for mine, theirs in zip(one["ballots"], other["ballots"], strict=True):
            assert {**mine, "source": ""} == {**theirs, "source": ""}
    history = json.loads((tmp_path / "run/history.json").read_text())
    assert history == json.loads((desk.study / "history.json").read_text())
    assert [each["winner"] or "" for each in history] == desk.passes()
    assert (tmp_path / "run/final_output.md").read_text() == (desk.study / "best.md").read_text()
    last = f"incumbent_after_{len(history):02}.md"
    assert (tmp_path / "run" / last).read_text() == (tmp_path / "run/final_output.md").read_text()


@pytest.mark.slow
def test_a_history_stands_beside_the_document_and_grows_with_it(tmp_path: Path) -> None:
    """In the layout of the method; a void pass has nobody as its winner."""
    pytest.importorskip("openai")
    with FakeProvider(play(lambda _: "I cannot say.")) as provider:
        desk = Desk(tmp_path, provider)
        desk("--max-passes", "1")
        (one,) = json.loads((desk.study / "history.json").read_text())
    assert (one["pass"], one["winner"], one["words"]) == (1, None, 11)
    assert one["elapsed"] >= 0
    with FakeProvider(play()) as provider:
        desk.made.env["OPENAI_BASE_URL"] = provider.url
        desk("--max-passes", "2")
        _, two = json.loads((desk.study / "history.json").read_text())
    assert (two["winner"], two["scores"]) == ("B", {"A": 3, "B": 9, "AB": 6})
    assert not list(desk.study.glob(".*.tmp"))
    other = Workshop(tmp_path / "other")
    assert other.run().code == 0
    assert "expected a study of a document" in other("recount").err
    assert other("export", "--format", "autoreason", "--out", "x").code == 2
    assert not (tmp_path / "other/x").exists()
    for words, said in (((), "add --out"), (("--out", "draft.md"), "expected a new folder")):
        refused = desk.made("export", "draft", "--format", "autoreason", *words)
        assert (refused.code, said in refused.err) == (2, True), refused.err
    shutil.copytree(desk.study, tmp_path / "more/one")
    shutil.copytree(desk.study, tmp_path / "more/two")
    with (tmp_path / "more/two/ledger.sqlite").open("r+b") as file:
        file.truncate(5000)
    both = desk.made("recount", "more", "--json").json
    assert both["total"]["runs"] == 1
    assert both["runs"][1]["problems"], "a ledger that is damaged keeps no other from being counted"


@pytest.mark.slow
def test_the_ballot_that_counts_is_the_one_that_was_asked_for_again(tmp_path: Path) -> None:
    """The raw replies of a ballot are those of its second ask, where the first was none; and else of the first."""
    pytest.importorskip("openai")
    with FakeProvider(play(hasty)) as provider:
        desk = Desk(tmp_path, provider)
        desk("--max-passes", "1")
    study, said = heard(read_ledger(desk.study))
    panel, heard_of = study.passes[0].panel, said[study.passes[0].round]
    first, second = heard_of.judges
    assert (len(first), len(second)) == (3, 2)
    replies = last_said(panel, heard_of)
    assert sum(reply in second for reply in replies) >= 2
    assert all("1, 1, 2" not in (reply.text or "") for reply in replies if reply)
    assert last_said(panel, Heard("", (first, second[:1]))) == [
        r if b.ranking else None for b, r in zip(panel.ballots, first, strict=True)
    ]
    assert last_said(panel, None) == [None] * 3


# ---- published runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["borda"], ids=lambda case: case["name"])
def test_the_worked_cases_are_counted_as_they_should_be(tmp_path: Path, capsys, case: dict) -> None:
    """By what is recorded, as there is no reply; ties go to A, and there is no margin. Below the quorum nobody wins."""
    names = ("A", "B", "AB")
    write(tmp_path, {"judge_details": [ballot(ranking) for ranking in case["ballots"]], "winner": case["winner"]})
    (one,) = told(capsys, str(tmp_path))["runs"][0]["run"]["passes"]
    assert {name: one["points"].get(name, 0) for name in names} == case["scores"]
    assert one["valid"] == case["valid"]
    assert one["winner"] == (case["winner"] if 3 * case["valid"] >= 2 * len(case["ballots"]) else None)
    assert "no raw reply: recorded ranking taken" in " ".join(one["notes"]) or not case["valid"]


@pytest.mark.parametrize("case", CASES["convergence"], ids=lambda case: f"{case['winners']} {case['k']}")
def test_a_run_converges_where_it_should(tmp_path: Path, capsys, case: dict) -> None:
    void = result([ballot(None)] * 3, "A", {}, 0) | {"winner": None, "pass": None}
    write(tmp_path, *(void if winner is None else won(winner) for winner in case["winners"]))
    run = told(capsys, str(tmp_path), "--k", str(case["k"]))["runs"][0]["run"]
    assert run["converged"] == (case["stop_pass"] if case["reason"] == "converged" else None)
    assert run["differs"] == 0


def test_what_was_counted_and_is_no_ballot_is_told_and_may_turn_the_pass(tmp_path: Path, capsys) -> None:
    """A partial ballot that the record has in full, and one that the record has the other way round."""
    partial = ballot(("A", "AB", "B"), "RANKING: 2, 3")
    turned = ballot(("A", "B", "AB"), "RANKING: 3, 1, 2")
    write(tmp_path, result([partial, spoken(("AB", "B", "A")), turned], "A", {"A": 7, "B": 5, "AB": 6}, 3))
    (one,) = told(capsys, str(tmp_path))["runs"][0]["run"]["passes"]
    assert (one["winner"], one["valid"], one["points"]) == ("AB", 2, {"A": 2, "B": 4, "AB": 6})
    assert one["differs"] == [
        "judge 1: was counted as A > AB > B, and is invalid: the ranking is partial: it leaves out '1'",
        "judge 3: was counted as A > B > AB, and reads AB > B > A",
        "valid ballots: 3 were recorded, 2 are there",
        "scores: A 7, B 5, AB 6 were recorded, and they are A 2, B 4, AB 6",
        "recorded as a win for A, and it is won by AB",
    ]
    out = lines(capsys, str(tmp_path))
    assert "judge 1  saw B A AB  invalid: the ranking is partial" in out
    assert "5 differences from what was recorded, in pass 1" in out


def test_a_ballot_that_was_refused_and_is_valid_is_told(tmp_path: Path, capsys) -> None:
    write(
        tmp_path,
        result([ballot(None, "**RANKING:** 2 > 1 > 3"), *map(spoken, A_WINS[1:])], "A", {"A": 6, "B": 4, "AB": 2}, 2),
    )
    (one,) = told(capsys, str(tmp_path))["runs"][0]["run"]["passes"]
    assert one["differs"][0] == "judge 1: was refused, and reads A > B > AB"
    assert one["points"] == {"A": 9, "B": 6, "AB": 3}


def test_a_pass_without_ballots_is_no_win_and_ends_no_tournament(tmp_path: Path, capsys) -> None:
    """Of the runs that were published, all of one set converged on such passes."""
    none = {"winner": "A", "scores": {"A": 0, "B": 0, "AB": 0}, "valid_judges": 0}
    write(tmp_path, won("AB"), none, {**none, "judge_details": [{"error": "parse"}] * 3})
    run = told(capsys, str(tmp_path))["runs"][0]["run"]
    assert [each["status"] for each in run["passes"]] == ["decided", "void", "void"]
    assert (run["converged"], run["recorded"], run["rests"]) == (None, 3, [2, 3])
    out = lines(capsys, str(tmp_path))
    assert "differs: recorded as a win for A, and it is void: without ballots" in out
    assert "By what was recorded it converges at pass 3; that rests on passes 2, 3, which it did not win." in out
    assert re.search(r"pass  2  void  without ballots", out)
    assert "judge 2  saw ?  invalid: parse" in out


def test_too_few_ballots_decide_nothing_whatever_was_recorded(tmp_path: Path, capsys) -> None:
    """Two thirds of the judges, rounded up."""
    write(
        tmp_path,
        result([spoken(("A", "B", "AB")), ballot(None, "?"), ballot(None, "?")], "A", {"A": 3, "B": 2, "AB": 1}, 1),
    )
    run = told(capsys, str(tmp_path), "--k", "1")["runs"][0]["run"]
    assert run["passes"][0]["why"] == "1 of 3 ballots, and 2 are needed"
    assert run["passes"][0]["differs"] == ["recorded as a win for A, and it is void: 1 of 3 ballots, and 2 are needed"]
    assert (run["converged"], run["recorded"]) == (None, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"judge_details": [{"presentation_order": ["B", "A", "AB"], "ranking": ["AB", "A", "B"], "raw": SAID}] * 3},
        {"judge_details": [{"order": ORDER, "raw": SAID}] * 3},
        {"judge_details": None, "valid_judges": [spoken(("AB", "A", "B"))] * 3},
        {"judge_details": [{"error": "none"}, *[spoken(("AB", "A", "B"))] * 3], "valid": 3, "valid_judges": None},
    ],
    ids=["a list of names", "no ranking", "ballots as valid_judges", "one error"],
)  # fmt: skip
def test_ballots_are_found_by_whatever_key(tmp_path: Path, capsys, change: dict) -> None:
    plain = {"pass_num": 1, "winner": "AB", "scores": {"A": 6, "B": 3, "AB": 9}, "valid_judges": 3}
    write(tmp_path, {key: value for key, value in {**plain, **change}.items() if value is not None})
    (one,) = told(capsys, str(tmp_path))["runs"][0]["run"]["passes"]
    assert (one["winner"], one["differs"]) == ("AB", [])
    assert all(b["source"] == "raw" and b["shown"] for b in one["ballots"] if b["ranking"])


@pytest.mark.parametrize("name", ["judge_{}_raw.txt", "judge_{}.md", "judge_{}.txt"])
def test_replies_that_stand_in_files_are_read(tmp_path: Path, capsys, name: str) -> None:
    write(tmp_path, result([ballot(("AB", "A", "B"))] * 3, "AB", {"A": 6, "B": 3, "AB": 9}, 3))
    for judge, said in enumerate(("RANKING: 3, 2, 1", "RANKING: 3, 2", "RANKING: 3, 2, 1"), 1):
        (tmp_path / "pass_01" / name.format(judge)).write_text(said)
    (one,) = told(capsys, str(tmp_path))["runs"][0]["run"]["passes"]
    assert one["valid"] == 2
    assert one["differs"][0].startswith("judge 2: was counted as AB > A > B, and is invalid")


def test_replies_whose_labels_nobody_recorded_are_not_guessed(tmp_path: Path, capsys) -> None:
    """Alone they make no tally; where a ranking was recorded, it is taken if its reply is a ballot at all."""
    write(tmp_path, {"winner": "A", "scores": {"A": 9, "B": 6, "AB": 3}, "valid_judges": 3}, won("A"))
    for judge in (1, 2, 3):
        (tmp_path / f"pass_01/judge_{judge}.txt").write_text("RANKING: 1, 2, 3")
    run = told(capsys, str(tmp_path))["runs"][0]["run"]
    assert (run["passes"][0]["status"], run["passes"][0]["winner"], run["differs"]) == ("unknown", None, 0)
    assert "Whether it converges cannot be said: pass 1 cannot be counted again." in run["said"]
    taken = write(
        tmp_path / "b",
        {
            "judge_details": [
                {"ranking": ["A", "B", "AB"], "raw": "RANKING: 1, 2, 3"},
                {"ranking": ["A", "B", "AB"], "raw": "All."},
            ]
        },
    )
    (one,) = told(capsys, str(taken))["runs"][0]["run"]["passes"]
    assert [b["ranking"] for b in one["ballots"]] == [["A", "B", "AB"], None]
    assert "order not recorded" in " ".join(one["notes"])


def test_a_history_is_held_against_the_results(tmp_path: Path, capsys) -> None:
    history = [
        {"pass": n, "winner": who, "scores": {"A": 9, "B": 6, "AB": 3}} for n, who in ((1, "B"), (2, "A"), (3, "A"))
    ]
    write(tmp_path, won("A"), history=history)
    run = told(capsys, str(tmp_path))["runs"][0]["run"]
    assert run["passes"][0]["differs"] == ["history.json has B as its winner, result.json A"]
    assert [each["why"] for each in run["passes"][1:]] == ["without ballots"] * 2
    assert "in history.json alone: there is no pass_03/" in run["passes"][2]["notes"]


def test_what_all_ballots_say_of_the_judges_is_told(tmp_path: Path, capsys) -> None:
    """Who goes by the last place shown is seen in a few passes."""
    last = result([spoken(("AB", "B", "A"))] * 3, "AB", {"A": 3, "B": 6, "AB": 9}, 3) | {"pass": None}
    write(tmp_path, *[last] * 4)
    out = lines(capsys, str(tmp_path))
    assert "By place shown, versions came first 0, 0, 12 times (p = 5.6e-06): **the panel may go by that**." in out
    assert "The longest version came first 0 times of 12 (p = 0.015); Kendall's tau of length and rank is +0.33." in out
    assert "Kendall's W = 1.00" in out
    assert "by lot the document would win 40% of the passes, and 2 running after 8.82 on average" in out


def test_every_run_below_is_counted_and_all_are_summed_up(tmp_path: Path, capsys) -> None:
    """In the order of their numbers, down to some depth."""
    for name in ("run_10", "run_2", "task/deep/er/run_1", "too/deep/to/be/seen"):
        write(tmp_path / name, won("A"), won("A"))
    seen = told(capsys, str(tmp_path))
    assert [Path(one["path"]).name for one in seen["runs"]] == ["run_2", "run_10", "run_1"]
    assert (seen["total"]["runs"], seen["total"]["passes"], seen["total"]["converged"]) == (3, 6, 3)
    assert "total: 3 runs; 3 converge" in lines(capsys, str(tmp_path))


def test_a_final_panel_is_checked_as_far_as_it_can_be(tmp_path: Path, capsys) -> None:
    """Labels were not recorded: only whether replies are ballots, and whether the sums hold."""
    borda = {"one": 9, "two": 7, "three": 5, "four": 6, "five": 3}
    (tmp_path / "results.json").write_text(
        json.dumps({"borda": borda, "valid_judges": 2, "max_borda": 15, "first_place": {"one": 2}})
    )
    for judge, said in enumerate(("RANKING: A, B, C, D, E", "RANKING: E > D > C > B > A", "RANKING: A, B"), 1):
        (tmp_path / f"judge_{judge}_raw.txt").write_text(said)
    panel = told(capsys, str(tmp_path))["runs"][0]["panels"]["results.json"]
    assert (panel["valid"], panel["asked"], list(panel["invalid"])) == (2, 3, ["3"])
    assert panel["differs"] == ["most points: 15 were recorded, and 2 ballots give at most 10"]
    assert "only which replies are valid can be counted again" in lines(capsys, str(tmp_path))
    (tmp_path / "5way_results.json").write_text(json.dumps({"borda": {"a": 1, "b": 1}, "num_judges": 3}))
    assert (
        "scores: 2 points in all" in told(capsys, str(tmp_path))["runs"][0]["panels"]["5way_results.json"]["differs"][1]
    )


# ---- what is odd -----------------------------------------------------------------------------------------------------


def break_it(place: Path, how: str) -> None:
    path = place / "result.json"
    match how:
        case "link":
            (place.parent.parent / "secret.json").write_text(path.read_text())
            path.unlink()
            path.symlink_to(place.parent.parent / "secret.json")
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "folder":
            path.unlink()
            path.mkdir()
        case "huge":
            path.write_text(json.dumps({"winner": "A" + " " * (5 << 20)}))
        case "unreadable":
            path.write_bytes(b"\xff\xfe\x00")
        case text:
            path.write_text(text)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("link", "a link, which is not followed"),
        ("pipe", "expected a file"),
        ("folder", "expected a file"),
        ("huge", "more than 4 MiB"),
        ("unreadable", "no UTF-8"),
        ("{", "expected JSON"),
        ("[" * 200_000, "nested too deeply"),
        ("[]", "expected an object, found a list"),
        ('{"scores": {"A": "many"}}', "expected whole points"),
        ('{"scores": {"A": 1e999}}', "expected whole points"),
        ('{"scores": {"A": 1.5}}', "expected whole points"),
        (json.dumps({"judge_details": [{}] * 200}), "expected at most 99 ballots"),
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_what_cannot_be_read_is_told_in_a_line_and_the_rest_goes_on(
    tmp_path: Path, capsys, how: str, said: str
) -> None:
    run = write(tmp_path / "run", won("AB"), won("A"), won("A"))
    break_it(run / "pass_01", how)
    (one,) = told(capsys, str(run))["runs"]
    assert len(one["problems"]) == 1
    assert one["problems"][0].startswith("pass_01/result.json: ")
    assert said in one["problems"][0]
    assert [each["winner"] for each in one["run"]["passes"]] == [None, "A", "A"]
    (line,) = [line for line in lines(capsys, str(run)).splitlines() if "not counted" in line]
    assert said in line


def test_links_lead_nowhere_and_escapes_move_no_cursor(tmp_path: Path, capsys) -> None:
    run = write(tmp_path / "run", won("A"))
    write(tmp_path / "outside", won("B"))
    (run / "pass_02").symlink_to(tmp_path / "outside/pass_01")
    (run / "more").symlink_to(tmp_path / "outside")
    (run / "pass_1").mkdir()
    (run / "pass_03").mkdir()
    (run / "pass_03/result.json").write_text(
        json.dumps({"winner": "\x1b[2J", "judge_details": [{"error": "\x1b[31m\nred"}]})
    )
    out = lines(capsys, str(run))
    assert "\x1b" not in out
    assert out.count("which is not followed") == 2
    assert "pass 1 is there twice" in out
    assert "outside" not in out


def test_thousands_of_passes_take_seconds(tmp_path: Path, capsys) -> None:
    write(tmp_path, *(won("AB" if at % 2 else "A") for at in range(3000)))
    began = time.process_time()
    run = told(capsys, str(tmp_path))["runs"][0]["run"]
    assert len(run["passes"]) == 3000
    assert time.process_time() - began < 6


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere"], "nothing called 'nowhere'"),
        (["empty"], "published runs (pass_01/result.json, history.json, results.json)"),
        (["empty"], "found notes.txt; type metaloop recount FOLDER"),
        (["empty", "--k", "0"], "--k: expected 1 to 100, found 0"),
    ],
)
def test_where_there_is_nothing_it_says_what_to_type(
    tmp_path: Path, capsys, monkeypatch, argv: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").write_text("")
    assert cli.invoke(["recount", *argv]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, len(err.splitlines())) == ("", 1)


keys = st.sampled_from(
    ["pass", "winner", "scores", "valid_judges", "valid", "judge_details", "ranking", "order", "raw", "error", "shown",
     "presentation_order", "unopposed", "borda", "first_place", "max_borda", "A", "B", "AB", "1", "2", "3", "tie_order",
     "k"]
)  # fmt: skip
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["A", "B", "AB", "RANKING: 1, 2, 3", "1"])
)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6), max_leaves=30
)


@settings(max_examples=400)
@given(anything, st.dictionaries(st.integers(1, 4), st.text(max_size=20), max_size=3), st.booleans())
def test_whatever_json_says_it_is_counted_or_refused_in_words(value: object, replies: dict, both: bool) -> None:
    """Never raises anything else, and nobody wins without a quorum of ballots, or for want of any rival."""
    for read in (rules, recorded, lambda given: final(finals(given, replies))):
        with suppress(Malformed):
            read(value)
    try:
        each = counted(found(1, value, replies, {"A": 3}), Rules(both=both))
    except Malformed:
        return
    again = recount([each], Rules(k=1, both=both))
    json.dumps([again.said, each.differs], allow_nan=False)
    assert each.winner is None or each.status == "unopposed" or 3 * each.valid >= 2 * each.asked > 0


def test_what_is_unopposed_by_its_own_word_has_no_rival_there() -> None:
    said = {"winner": "A", "unopposed": "the critic found nothing", "judge_details": []}
    assert counted(found(1, said, {}, {"A": 3}), Rules()).winner == "A"
    assert counted(found(1, said, {}, {"A": 3, "B": 3}), Rules()).status == "void"


def test_a_ballot_of_a_panel_that_nothing_was_heard_of_is_taken_as_recorded() -> None:
    panel = Panel("A", "", {"A": 3, "B": 2}, 1, 1, (Ballot(0, ("A", "B"), ("1", "2"), ("A", "B")),))
    assert last_said(panel, None) == [None]


def test_the_example_in_the_docs_is_what_the_command_prints(capsys, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    docs = (ROOT / "docs/documents.md").read_text()
    out = lines(capsys, "examples/recount").rstrip()
    assert "\n".join(f"    {line}".rstrip() for line in out.splitlines()) in docs


def test_of_a_run_of_which_nothing_can_be_read_nothing_is_said(tmp_path: Path, capsys) -> None:
    for number in (1, 2):
        (tmp_path / f"pass_{number:02}").mkdir()
        (tmp_path / f"pass_{number:02}/result.json").write_text("[")
    out = lines(capsys, str(tmp_path))
    assert "Nothing could be read, and nothing can be said" in out
    assert "No differences" not in out
