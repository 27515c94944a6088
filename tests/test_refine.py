"""`metaloop refine`, by the real command line, with players on this machine: what passes come to, and what stops it."""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from metaloop.adapters.ledger import read_ledger
from metaloop.events import Asked, Measured, Replied
from metaloop.policies.rewrite import alike
from metaloop.testing import FakeProvider
from workshop import Workshop, until

pytest.importorskip("openai")
pytestmark = pytest.mark.slow

DRAFT = "An introduction.\n\nIts quality is 1, and that is not much.\n"
QUALITY = re.compile(r"quality is (\d+)")
VERSION = re.compile(r"<version-(\w+)>\n(.*?)\n</version-\1>", re.DOTALL)


def between(text: str) -> str:
    return f"- the quality is low: raised it\n=== DOCUMENT ===\n{text}\n=== END ==="


def role(body: dict) -> str:
    """Who is asked, by what it is told."""
    told = body["messages"][0]["content"]
    words = {
        "find what is really wrong": "critic",
        "You revise": "author",
        "one document of": "synthesizer",
        "You judge": "judge",
    }
    return next(role for word, role in words.items() if word in told)


def quality(text: str) -> int:
    found = QUALITY.search(text)
    return int(found[1]) if found else 0


def shown(body: dict) -> dict[str, str]:
    """The versions of a prompt, by label, in their order."""
    return dict(VERSION.findall(body["messages"][1]["content"]))


def ranked(labels: list[str]) -> str:
    return f"I compared them.\n\nRANKING: {', '.join(labels)}"


def best_first(body: dict) -> str:
    versions = shown(body)
    return ranked(sorted(versions, key=lambda label: (-quality(versions[label]), len(versions[label]))))


def first_shown(body: dict) -> str:
    return ranked(list(shown(body)))


def play(judge: Callable[[dict], str] = best_first, most: int = 3, **others: Callable[[dict], str]):
    """Players of all roles. Authors raise the quality by one, up to `most`; there they change words."""

    def answer(body: dict) -> str:
        who = role(body)
        if who in others:
            return others[who](body)
        user = body["messages"][1]["content"]
        if who == "critic":
            return f"- its quality is {quality(user)}: a reader wants more"
        if who == "author":
            text = re.search(r"<document>\n(.*?)\n</document>", user, re.DOTALL)[1]  # type: ignore[index]
            raised = min(most, quality(text) + 1)
            again = QUALITY.sub(f"quality is {raised}", text)
            return between(
                again if raised > quality(text) else f"{again}\nMore words were added here, for nobody's good."
            )
        if who == "synthesizer":
            best = max(shown(body).values(), key=quality)
            return between(f"{best}\nBoth of them, made one: {len(best)} letters.")
        return judge(body)

    return answer


class Desk:
    """A draft and its task in a folder, and the command that refines it."""

    def __init__(self, folder: Path, provider: FakeProvider, draft: str = DRAFT) -> None:
        self.made = Workshop(folder, "")
        self.folder, self.provider = folder, provider
        self.made.env = {"OPENAI_API_KEY": "sk-0", "OPENAI_BASE_URL": provider.url}
        (folder / "draft.md").write_text(draft)
        (folder / "task.md").write_text("Write an introduction of high quality.\n")
        self.study = folder / ".metaloop/draft"
        self.words = ("refine", "draft.md", "--task", "task.md", "--model", "fake-1")

    def __call__(self, *words: str, **options: object):
        return self.made(*self.words, *words, **options)

    def passes(self) -> list[str]:
        events = (entry.event for entry in read_ledger(self.study))
        return [event.panel.winner for event in events if isinstance(event, Measured) and event.panel]


def test_a_document_is_improved_until_it_holds(tmp_path: Path) -> None:
    """Two better versions win, then it holds twice; the draft is untouched, and everything can be derived again."""
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        done = desk("--out", "better.md")
    assert done.code == 0, done.err
    assert desk.passes() == ["B", "B", "A", "A"]
    assert "the document won 2 passes running" in done.out
    assert quality((tmp_path / "better.md").read_text()) == 3
    assert (tmp_path / "draft.md").read_text() == DRAFT
    assert (tmp_path / "better.md").read_text() == (desk.study / "best.md").read_text()
    assert "raised it" not in (tmp_path / "better.md").read_text()
    report = (desk.study / "report.md").read_text()
    assert "## Pass 1: B wins" in report
    assert "| 3 | fake-1 |" in report
    assert "by lot" in done.out
    assert desk.made("audit", str(desk.study)).code == 0
    told = [line for line in done.err.splitlines() if line.startswith("pass")]
    assert told[0].startswith("pass  1  B   B wins: A 3")


def test_judges_are_asked_at_once_and_see_no_notes_and_no_names(tmp_path: Path) -> None:
    """Each a fresh conversation; every version stands as often in each place; labels say nothing of who it is."""
    with FakeProvider(play(most=1)) as provider:
        desk = Desk(tmp_path, provider)
        assert desk().code == 0
        judged = [request.body for request in provider.requests if role(request.body) == "judge"]
    assert len(judged) == 3 * len(desk.passes())
    orders = [tuple(shown(body).values()) for body in judged[:3]]
    assert all(len({order[place] for order in orders}) == 3 for place in range(3))
    for body in judged:
        text = json.dumps(body["messages"])
        assert len(body["messages"]) == 2
        assert not re.search(r"raised it|incumbent|=== |author|draft\.md", text)


def test_a_resumed_tournament_has_the_same_passes_and_pays_for_no_answer_twice(tmp_path: Path) -> None:
    """Interrupted in the middle of a pass, at any of its asks."""
    with FakeProvider(play()) as provider:
        whole = Desk(tmp_path / "whole", provider)
        assert whole().code == 0
    for stop in (2, 5, 9):
        count = [0]

        def slow(body: dict, stop: int = stop, count: list[int] = count) -> str:
            count[0] += 1
            if count[0] == stop:
                time.sleep(8)
            return play()(body)

        with FakeProvider(slow) as provider:
            desk = Desk(tmp_path / str(stop), provider)
            process = desk.made.start(*desk.words)
            until(lambda count=count, stop=stop: count[0] >= stop)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=20)
            done = desk()
        assert done.code == 0, done.err
        assert desk.passes() == whole.passes()
        assert desk.made("audit", str(desk.study)).code == 0
        events = [entry.event for entry in read_ledger(desk.study)]
        answered = [(e.round, e.stage, e.index, e.member) for e in events if isinstance(e, Replied)]
        assert len(answered) == len(set(answered))
        assert len(provider.requests) <= len(answered) + 3  # those that were under way when it was killed


def test_a_judge_that_goes_by_position_alone_decides_nothing_when_asked_twice(tmp_path: Path) -> None:
    """Its first place is another one in the other order, so it abstains; nobody wins, and the study says why."""
    with FakeProvider(play(first_shown)) as provider:
        desk = Desk(tmp_path, provider)
        done = desk("--order", "both")
    assert desk.passes() == ["", "", ""]
    assert done.code == 4
    assert "3 passes running had no winner" in done.out
    assert (desk.study / "best.md").read_text() == DRAFT


@pytest.mark.parametrize(
    "said",
    [
        "All three are fine in their way.",
        "RANKING: [best], [second], [worst]",
        "RANKING: 1, 2",
        "",
        "RANKING: 1 = 2, 3",
    ],
)
def test_ballots_that_cannot_be_counted_are_asked_for_once_more_and_then_lost(tmp_path: Path, said: str) -> None:
    with FakeProvider(play(lambda _: said)) as provider:
        desk = Desk(tmp_path, provider)
        done = desk("--max-passes", "1")
        judged = [request for request in provider.requests if role(request.body) == "judge"]
    assert desk.passes() == [""]
    assert done.code == 0
    assert len(judged) == 6
    assert "void" in done.err
    (panel,) = [e.event.panel for e in read_ledger(desk.study) if isinstance(e.event, Measured) and e.event.panel]
    assert all(ballot.problem for ballot in panel.ballots)


def test_a_judge_that_mends_its_ballot_is_counted(tmp_path: Path) -> None:
    def hasty(body: dict) -> str:
        return best_first(body) if len(body["messages"]) > 2 else "RANKING: 1, 1, 2"

    with FakeProvider(play(hasty)) as provider:
        desk = Desk(tmp_path, provider)
        assert desk().code == 0
    assert desk.passes() == ["B", "B", "A", "A"]


def test_a_critic_that_finds_nothing_ends_it_without_a_panel(tmp_path: Path) -> None:
    with FakeProvider(play(critic=lambda _: "Nothing.")) as provider:
        desk = Desk(tmp_path, provider)
        done = desk()
        assert [role(request.body) for request in provider.requests] == ["critic", "critic"]
    assert desk.passes() == ["A", "A"]
    assert done.code == 0
    assert "no other won" in done.out


def test_a_version_that_was_cut_off_is_no_version(tmp_path: Path) -> None:
    """It is asked for once more; then the pass is void, for nothing was judged."""
    with FakeProvider(play(author=lambda _: "=== DOCUMENT ===\nAn intro")) as provider:
        desk = Desk(tmp_path, provider)
        done = desk()
    assert desk.passes() == ["", "", ""]
    assert done.code == 4
    assert "cut off" in (desk.study / "report.md").read_text()


def test_what_the_study_requires_of_a_version_is_looked_at_before_the_panel(tmp_path: Path) -> None:
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        done = desk("--require", "quality is 1", "--max-passes", "1")
        assert "judge" not in {role(request.body) for request in provider.requests}
    assert done.code == 0
    assert "which is required" in (desk.study / "report.md").read_text()


@pytest.mark.parametrize(
    ("draft", "words", "said"),
    [
        ("", (), "expected a text, found an empty file"),
        ("x" * (2 << 20), (), "expected at most 256 KiB, found more"),
        (DRAFT, ("--ground-truth", "none.md"), "expected a text file, found none"),
        (DRAFT, ("--require", "("), "expected a regular expression"),
        (DRAFT, ("--judges", "0"), "judges.count"),
        (DRAFT, ("--role", "cook=x"), "--role: expected critic"),
    ],
)
def test_bad_input_gets_a_line_and_nothing_is_done(
    tmp_path: Path, draft: str, words: tuple[str, ...], said: str
) -> None:
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider, draft)
        done = desk(*words)
    assert done.code == 2
    assert said in done.err
    assert not desk.study.exists()
    assert not provider.requests


def test_a_model_that_goes_away_in_the_middle_is_waited_for(tmp_path: Path) -> None:
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        process = desk.made.start(*desk.words)
        until(lambda: len(provider.requests) > 4)
        provider.forever = "503"
        time.sleep(1)
        provider.forever = ""
        _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert desk.passes() == ["B", "B", "A", "A"]


def test_a_cap_in_the_middle_of_a_pass_keeps_what_was_paid_for(tmp_path: Path) -> None:
    """The versions are there; with more money they are judged, and not written anew."""
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        prices = {"models": {"default": {"model": "fake-1", "max_tokens": 300, "price": {"input": 100, "output": 100}}}}
        study = {
            "tournament": {"document": "draft.md"}, "policy": {"program_file": "task.md"}, **prices,
            "controller": {"max_cost_usd": 0.35},
        }  # fmt: skip
        (tmp_path / "draft.yaml").write_text(json.dumps(study))
        done = desk.made("run", "draft.yaml")
        assert "cost" in desk.made("status", "draft.yaml", "--json").json["closed"]["reason"], done.out + done.err
        written = [request for request in provider.requests if role(request.body) == "author"]
        done = desk.made("run", "draft.yaml", "--max-cost-usd", "100")
        assert done.code == 0, done.err
        asked = [e.event for e in read_ledger(desk.study) if isinstance(e.event, Asked)]
    assert written
    assert desk.passes() == ["B", "B", "A", "A"]
    assert len([e for e in asked if e.roles == ("author",)]) == 4
    assert desk.made("audit", str(desk.study)).code == 0


def desk_file(folder: Path, provider: FakeProvider, **sections: object) -> Desk:
    """The same as a study file."""
    desk = Desk(folder, provider)
    keys = {
        "tournament": {"document": "draft.md"}, "policy": {"program_file": "task.md"},
        "models": {"default": {"model": "fake-1"}},
    } | sections  # fmt: skip
    (folder / "draft.yaml").write_text(json.dumps(keys))
    return desk


def test_a_check_asks_the_provider_and_runs_nothing(tmp_path: Path) -> None:
    with FakeProvider(play()) as provider:
        desk = desk_file(tmp_path, provider)
        done = desk.made("check", "draft.yaml")
        assert done.code == 0, done.out + done.err
        assert {request.method for request in provider.requests} == {"GET"}
        assert desk.made("run-one", "draft.yaml", "--params", "{}").code == 2
    assert not desk.study.exists()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"controller": {"parallel": 3}}, "controller.parallel: expected 1 with a tournament"),
        ({"controller": {"order": "strict"}}, "controller.order: expected no order"),
        ({"evaluation": {"rule": "proven"}}, "evaluation.rule: expected no rule"),
        ({"baseline": "none"}, "baseline: expected none"),
        ({"gates": [{"name": "a", "cmd": ["true"]}]}, "gates: expected none"),
        ({"policy": {"type": "tpe", "program_file": "task.md"}}, "policy.type: expected rewrite"),
        ({"policy": {}}, "policy.program_file: expected what the document is for"),
        ({"models": {"judge": {"model": "x"}}}, "expected who is critic and author and synthesizer"),
        ({"tournament": {"document": "draft.md", "judges": {"count": 3, "quorum": 4}}}, "expected at most 3"),
        ({"tournament": {"document": "draft.md", "tie_order": ["A", "B", "B"]}}, "each once"),
        ({"tournament": {}}, "tournament.document"),
    ],
)  # fmt: skip
def test_what_a_tournament_cannot_have_is_said_before_anything_is_done(
    tmp_path: Path, sections: dict[str, object], said: str
) -> None:
    with FakeProvider(play()) as provider:
        desk = desk_file(tmp_path, provider, **sections)
        done = desk.made("run", "draft.yaml")
    assert done.code == 2
    assert said in done.err
    assert not desk.study.exists()


def test_a_hint_reaches_the_author_and_nobody_else(tmp_path: Path) -> None:
    """Left by another terminal while a pass is under way; it is told in the next."""

    def slow(body: dict) -> str:
        time.sleep(0.15)
        return play(most=9)(body)

    with FakeProvider(slow) as provider:
        desk = Desk(tmp_path, provider)
        process = desk.made.start(*desk.words, "--max-passes", "6", "--k", "6")
        until(lambda: len(provider.requests) > 2)
        assert desk.made("steer", str(desk.study), "hint", "mention the moon").code == 0
        process.communicate(timeout=60)
        told = {role(r.body) for r in provider.requests if "mention the moon" in r.body["messages"][1]["content"]}
    assert told == {"author"}
    assert desk.made("audit", str(desk.study)).code == 0


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("llama-3.1-8b", (), "llama-3.1-8b is small"),
        ("claude-3-5-haiku-latest", (), "stronger than itself"),
        ("claude-3-5-haiku-latest", ("--role", "judge=gpt-4o"), ""),
        ("claude-opus-4-1", (), "drifts where nothing bounds it"),
        ("claude-opus-4-1", ("--scope-note",), "claude-opus-4-1 judges itself"),
        ("claude-opus-4-1", ("--scope-note", "--role", "judge=claude-sonnet-4"), "are of one family"),
        ("claude-opus-4-1", ("--scope-note", "--role", "judge=gpt-4o"), ""),
        ("fake-1", (), ""),
    ],
)
def test_what_a_tournament_is_no_good_for_is_said_at_the_start(
    tmp_path: Path, model: str, words: tuple[str, ...], said: str
) -> None:
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        desk.words = (*desk.words[:-1], model)
        done = desk("--max-passes", "1", *words)
    assert done.code == 0, done.err
    notes = [line for line in done.err.splitlines() if "note:" in line]
    assert (said in notes[0] and "metaloop advise" in notes[0]) if said else not notes


def test_a_document_that_has_to_fit_a_schema_never_becomes_one_that_does_not(tmp_path: Path) -> None:
    """What a schema asks for is looked at before the panel; a draft or a schema that is none ends it at once."""
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "required": ["note"], "additionalProperties": false, "properties": {"note": {}}}'
    )
    draft = '{"note": "Its quality is 1"}\n'

    def author(body: dict) -> str:
        return between('{"note": "Its quality is 3", "more": 1}')

    def synthesizer(body: dict) -> str:
        return between('{"note": "Its quality is 2, and that is enough for all of us"}')

    with FakeProvider(play(author=author, synthesizer=synthesizer)) as provider:
        desk = Desk(tmp_path, provider, draft)
        done = desk("--json-schema", "schema.json", "--max-passes", "1")
        assert done.code == 0, done.err
        assert "does not fit the schema: at $: Additional properties are not allowed ('more'" in (
            desk.study / "report.md"
        ).read_text().replace("\\", "")
        (tmp_path / "draft.md").write_text("no JSON\n")
        done = desk("--json-schema", "schema.json", "--name", "other")
        assert done.code == 2
        assert "expected what fits" in done.err
        schema.write_text('{"type": 7}')
        done = desk("--json-schema", "schema.json", "--name", "third")
        assert done.code == 2
        assert "expected a JSON schema, found one that is none" in done.err


CHECK = """
import pathlib, sys
text = pathlib.Path(sys.argv[1]).read_text()
assert pathlib.Path(sys.argv[1]).name == 'draft.md' and pathlib.Path.cwd() == pathlib.Path(sys.argv[1]).parent
sys.exit('too much of it' if 'made one' in text else 0)
"""


def test_a_version_that_does_not_pass_a_command_never_comes_before_the_panel(tmp_path: Path) -> None:
    """The command is run by us, in the sandbox, beside the version alone; a draft need not pass. Its files may not
    change while the study lasts.
    """
    (tmp_path / "check.py").write_text(CHECK)
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        done = desk("--check", "python3 check.py {document}")
        judged = [shown(request.body) for request in provider.requests if role(request.body) == "judge"]
    assert done.code == 0, done.err
    assert desk.passes() == ["B", "B", "A", "A"]
    assert judged
    assert all(len(versions) == 2 for versions in judged)
    assert not any("made one" in text for versions in judged for text in versions.values())
    assert (
        "AB, trial 2, is none: check ended with exit code 1: too much of it" in (desk.study / "report.md").read_text()
    )
    assert desk.made("audit", str(desk.study)).code == 0
    assert not list((tmp_path / "home").rglob("draft.md"))


def test_a_check_that_says_nothing_of_the_version_is_refused(tmp_path: Path) -> None:
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        done = desk("--check", "python3 check.py")
    assert done.code == 2
    assert "expected where the version stands in it; add {document}" in done.err


def test_a_version_that_is_too_long_is_told_so_once_and_then_out(tmp_path: Path) -> None:
    """The program counts; whoever wrote it may cut it."""
    asked: list[int] = []

    def author(body: dict) -> str:
        asked.append(len(body["messages"]))
        short = "Its quality is 5." if len(asked) == 2 else "Its quality is 5, and far too many words are made of that."
        return between(short)

    with FakeProvider(play(author=author)) as provider:
        desk = Desk(tmp_path, provider, "Its quality is 1.\n")
        done = desk("--max-words", "6", "--max-passes", "2", "--final-judges", "0")
        told = [r.body["messages"][3]["content"] for r in provider.requests if len(r.body["messages"]) == 4]
    assert done.code == 0, done.err
    assert "That cannot be used: B has 13 words, as they are between spaces, and 6 are allowed" in told[0]
    assert asked == [2, 4, 2, 4]
    assert desk.passes()[0] == "B"
    assert "B, trial 3, is none: B has 13 words" in (desk.study / "report.md").read_text()


def test_a_version_that_is_run_as_its_own_check_reaches_nothing(tmp_path: Path) -> None:
    """A model wrote it: no network, no file of the user's, and nothing that it could write over."""
    (tmp_path / "secret.txt").write_text("SECRET")
    lines = [
        "import pathlib, socket",
        "# quality is 5",
        f"for path in ({str(tmp_path / 'secret.txt')!r}, {str(tmp_path / 'draft.py')!r}):",
        "    try: print(pathlib.Path(path).read_text()[:6])",
        "    except OSError as error: print('closed')",
        f"try: pathlib.Path({str(tmp_path / 'draft.py')!r}).write_text('overwritten')",
        "except OSError as error: print('kept')",
        "try: socket.create_connection(('127.0.0.1', PORT), 2); print('open')",
        "except OSError: print('no network')",
        "raise SystemExit('; '.join(['told']))",
    ]
    with FakeProvider(lambda body: answer(body)) as provider:
        port = provider.url.split(":")[2].split("/")[0]
        code = "\n".join(lines).replace("PORT", port)
        answer = play(author=lambda body: between(code))
        desk = Desk(tmp_path, provider)
        (tmp_path / "draft.py").write_text("# quality is 1\n")
        words = ("refine", "draft.py", "--task", "task.md", "--model", "fake-1", "--name", "p", "--max-passes", "1")
        done = desk.made(*words, "--check", "python3 {document}")
    assert "void: no version could be judged: check ended with exit code 1: told" in done.err
    assert (tmp_path / "draft.py").read_text() == "# quality is 1\n"
    out = next((tmp_path / ".metaloop/p/trials/0001").rglob("check.out")).read_text().split("\n")
    assert out[:2] == ["closed", "closed"]
    assert "no network" in out


@pytest.mark.parametrize("at", [2, 3, 6])
def test_what_was_answered_is_kept_when_another_answer_never_comes(tmp_path: Path, at: int) -> None:
    """A provider that refuses one ask for good ends it; the same command asks for that one alone."""
    with FakeProvider(play()) as provider:
        desk, take = Desk(tmp_path, provider), provider.take
        provider.take = lambda request: take(request) or ("402" if len(provider.requests) == at else "")
        done = desk("--max-passes", "1", "--final-judges", "0")
        assert done.code == 4, done.err
        done = desk("--max-passes", "1", "--final-judges", "0")
        assert done.code == 0, done.err
        assert len(provider.requests) == 6 + 1
    assert desk.made("audit", str(desk.study)).code == 0


def test_another_draft_or_task_is_another_study(tmp_path: Path) -> None:
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        assert desk("--max-passes", "1").code == 0
        asked = len(provider.requests)
        for name in ("draft.md", "task.md"):
            was = (tmp_path / name).read_text()
            (tmp_path / name).write_text(f"{was} And more.\n")
            done = desk("--max-passes", "3")
            assert done.code == 2
            assert name in done.err
            (tmp_path / name).write_text(was)
        assert len(provider.requests) == asked
        assert desk("--max-passes", "3").code == 0


def test_the_document_is_written_where_it_was_asked_for_once_it_is_done(tmp_path: Path) -> None:
    """The same command again writes it again; over another file it does not write. `apply --here` has it too."""
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        words = ("--out", "better.md", "--final-judges", "0")
        assert desk("--max-passes", "1", *words).code == 0
        one = (tmp_path / "better.md").read_text()
        assert desk("--max-passes", "2", *words).code == 0
        assert (tmp_path / "better.md").read_text() != one
        (tmp_path / "better.md").write_text("mine")
        assert desk("--max-passes", "9", *words).code == 2
        assert desk("--out", "nowhere/x.md").code == 2
        assert (tmp_path / "better.md").read_text() == "mine"
        assert desk.made("apply", "--here", str(desk.study)).code == 0
        assert quality((tmp_path / "draft.md").read_text()) == 3
        assert desk.made("apply", "--here", str(desk.study)).code == 2


def test_line_ends_stay_and_a_fence_around_a_version_goes(tmp_path: Path) -> None:
    def author(body: dict) -> str:
        return between("```markdown\nIts quality is 3,\nand that is \u2028 all.\n```")

    with FakeProvider(play(author=author)) as provider:
        desk = Desk(tmp_path, provider)
        (tmp_path / "draft.md").write_bytes(b"Its quality is 1,\r\nand that is all.\r\n")
        assert desk("--max-passes", "1", "--final-judges", "0").code == 0
    assert (desk.study / "best.md").read_bytes() == "Its quality is 3,\r\nand that is \u2028 all.\r\n".encode()


@pytest.mark.parametrize(
    "text", ["- \n" * 120_000, "word " * 30_000, "a,b,c\n" * 20_000], ids=["list", "word", "table"]
)
def test_long_texts_of_few_words_are_compared_in_time(text: str) -> None:
    began = time.monotonic()
    assert alike(text + "one end of it", text + "the other end")
    assert not alike(text, "another text altogether, " * 20_000)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--check", '"'), "expected a command, found"),
        (("--check", ""), "expected a command, found none"),
        (("--max-tokens", "0"), "expected 1 or more"),
        (("--name", ""), "expected a name"),
        (("--role", "judge=a", "--role", "judge=b"), "found judge twice"),
        (("--json-schema", "seven.json"), "expected a JSON schema, found one that is none"),
        (("--json-schema", "deep.json"), "expected"),
        (("--task", "long.md"), "expected at most 16,000 characters"),
        (("--task", "empty.md"), "expected a text, found an empty file"),
    ],
)
def test_odd_input_gets_a_line_too(tmp_path: Path, words: tuple, said: str) -> None:
    (tmp_path / "seven.json").write_text("7")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "long.md").write_text("x" * 16_001)
    (tmp_path / "empty.md").write_text("\n")
    with FakeProvider(play()) as provider:
        desk = Desk(tmp_path, provider)
        if "--task" in words:
            desk.words = ("refine", "draft.md", "--model", "fake-1")
        done = desk(*words)
        assert not provider.requests
    assert done.code == 2, done.err
    assert said in done.err


def test_half_a_letter_is_a_question_mark_and_no_outage(tmp_path: Path) -> None:
    """Some models write a surrogate without its other; what was paid for is not asked for again."""
    with FakeProvider(play(author=lambda _: between("Its quality is 2 \ud800 alone."))) as provider:
        desk = Desk(tmp_path, provider)
        assert desk("--max-passes", "1", "--final-judges", "0").code == 0
        assert len(provider.requests) == 6
    assert (desk.study / "best.md").read_text() == "Its quality is 2 ? alone.\n"
