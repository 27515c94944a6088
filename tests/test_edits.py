"""From a proposal's text to new texts of files: what is understood, what is refused, in which words, and how fast."""

import re
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metaloop.edits.contract import Broken, Contract, Edited, covers
from metaloop.edits.diffs import diff
from metaloop.edits.judged import judge
from metaloop.edits.making import edit

FILES = sorted((Path(__file__).parent / "data/edits").glob("*.patch"))
MODEL = '"""The slope of a line."""\nRATE = 0.1\ndef answer(x):\n    return RATE * x\n'
STUDY = {
    "src/model.py": MODEL,
    "score.py": "import model\ndef score(pairs):\n    return -sum(abs(model.answer(x) - y) for x, y in pairs)\n"
    'print(f"score: {score([(1, 2)])}")\n',
    "data/answers.json": "[[1, 2]]\n",
    "study.yaml": "objective: {metric: score, direction: max}\n",
}
CONTRACT = Contract(("src/**",), ("score.py", "data/**", "study.yaml"))
ONE = {"a.py": "x = 1\ny = 2\nz = 3\n"}


def edited(text: str, before: dict = STUDY, contract: Contract = CONTRACT, others: tuple = ()) -> Edited:
    done = edit(text, before, contract, others)
    assert isinstance(done, Edited), done
    assert all(done.files[path] != before.get(path) for path in done.files)
    return done


def told(text: str, code: str, before: dict = STUDY, contract: Contract = CONTRACT, others: tuple = ()) -> str:
    """The words of the fault that `text` is."""
    done = edit(text, before, contract, others)
    assert isinstance(done, Broken), done
    assert done.code == code, done
    return done.text


def made(text: str, old: str, path: str = "a.py") -> str:
    """What `text` makes of the only file."""
    return edited(text, {path: old}, Contract((path,))).files[path]


def block(old: str, new: str, path: str = "") -> str:
    return f"{path}\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"


def numbered(count: int) -> str:
    return "".join(f"line_{number} = {number}\n" for number in range(1, count + 1))


# ---- patches, as they come -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("shown", ["all", "mutable"])
def test_a_patch_is_applied_or_refused_as_its_file_says(file: Path, shown: str):
    """The middle of the name is the code, and the text names the path that is at fault."""
    before = STUDY if shown == "all" else {"src/model.py": MODEL}
    expected = file.name.split(".")[1]
    done = edit(file.read_text(), before, CONTRACT, others=tuple(STUDY))
    assert (done.code if isinstance(done, Broken) else "edited") == expected, done
    if paths := re.findall(r"^\+\+\+ b/(\S+)", file.read_text(), re.MULTILINE):
        assert isinstance(done, Edited) or paths[-1].split("/")[-1].split(".")[0].lower() in done.text.lower()


def test_a_patch_changes_what_it_says():
    patch = (FILES[0].parent / "good.edited.patch").read_text()
    assert edited(patch).files == {"src/model.py": MODEL.replace("0.1", "0.5")}
    assert edited(f"I raise the rate.\n\n```diff\n{patch}```\nThat is all.").files == edited(patch).files


def test_what_looks_like_another_path_is_shown_as_what_it_is():
    patch = (FILES[0].parent / "confusable.edited.patch").read_text()
    done = edited(patch)
    assert done.files == {"src/m\u043edel.py": "RATE = 9\n"}
    assert done.notes == (r"new file src/m\u043edel.py",)
    assert r"src/m\u043edel.py" in told(patch, "out_of_scope_mutation_blocked", contract=Contract(("src/model.py",)))


def test_a_proposal_that_is_too_long_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr("metaloop.edits.making.Reader", None)
    told("x" * ((1 << 20) + 1), "too_large")
    told("é" * 600_000, "too_large")
    told("", "empty_proposal")
    told("\ufeff \n\r\n", "empty_proposal")


def test_a_link_is_a_link_also_where_it_was_one_before():
    """The mode that an `index` line names is that of the file as it is."""
    names = "--- a/src/model.py\n+++ b/src/model.py\n"
    head = "diff --git a/src/model.py b/src/model.py\nindex 1111111..2222222 120000\n"
    told(f"{head}{names}@@ -2 +2 @@\n-RATE = 0.1\n+RATE = 1\n", "symlink_blocked")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("./src/model.py", ""),
        ("a/src/model.py", ""),
        (".\\src\\model.py", ""),
        ("model.py", ""),
        ("/src/model.py", "unsafe_path"),
        ("..\\score.py", "unsafe_path"),
        ("src/../score.py", "unsafe_path"),
        ("~/model.py", "unsafe_path"),
        ("C:\\src\\model.py", "unsafe_path"),
        ("src/new\x07.py", "unsafe_path"),
        ("src/new.py.", "unsafe_path"),
        ("src/.git/config", "unsafe_path"),
        ("src/.g\u200cit/config", "unsafe_path"),
        ("src/GIT~1/config", "unsafe_path"),
        ("src/.\uff47it/config", "unsafe_path"),
        ("src/.metaloop/ledger", "unsafe_path"),
        ("src/CON", "unsafe_path"),
        ("src/nul.txt", "unsafe_path"),
        ("src/a:b.py", "unsafe_path"),
        ("src/model.py/x", "unsafe_path"),
        ("SRC/model.py", "unsafe_path"),
        ("src/Model.py", "unsafe_path"),
        ("src/" + "x" * 256, "unsafe_path"),
        ("src", "unsafe_path"),
        ("score.py", "frozen_file_mutation_blocked"),
        ("b/score.py", "frozen_file_mutation_blocked"),
        ("other.py", "out_of_scope_mutation_blocked"),
    ],
)
@pytest.mark.parametrize("form", ["whole", "created", "changed"])
def test_a_path_is_resolved_or_refused_whatever_names_it(path: str, code: str, form: str):
    new = MODEL.replace("0.1", "0.5")
    ours, theirs = (path, path) if path[:2] in ("a/", "b/", "/s", "~/", "C:") else (f"a/{path}", f"b/{path}")
    texts = {
        "whole": f"path: {path}\n```python\n{new}```\n",
        "created": f"--- /dev/null\n+++ {theirs}\n@@ -0,0 +1 @@\n+RATE = 9\n",
        "changed": f"--- {ours}\n+++ {theirs}\n@@ -2 +2 @@\n-RATE = 0.1\n+RATE = 0.5\n",
    }
    if code or form != "created":
        done = edit(texts[form], STUDY, CONTRACT)
        if not code:
            assert isinstance(done, Edited), done
            assert done.files == {"src/model.py": new}
        else:
            assert isinstance(done, Broken), done
            assert done.code == code, done
            assert done.text.isprintable() or "\n" in done.text


def test_a_path_that_lacks_its_folder_is_resolved_if_it_can_be_one_file_only():
    patch = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    contract = Contract(("examples/**",))
    done = edited(patch, {"examples/a/train.py": "x = 1\n"}, contract)
    assert done.files == {"examples/a/train.py": "x = 2\n"}
    assert done.notes == ("train.py was taken for examples/a/train.py",)
    two = {"examples/a/train.py": "x = 1\n", "examples/b/train.py": "x = 1\n"}
    assert "examples/a/train.py, examples/b/train.py" in told(patch, "ambiguous_match", two, contract)
    nearer = patch.replace("a/train", "a/a/train").replace("b/train", "b/a/train")
    assert [*edited(nearer, two, contract).files] == ["examples/a/train.py"]
    told(
        patch, "frozen_file_mutation_blocked", two | {"train.py": "x = 1\n"}, Contract(("examples/**",), ("train.py",))
    )


def test_a_prefix_is_a_folder_where_there_is_one():
    text = "--- a/m.py\n+++ a/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    assert [*edited(text, {"a/m.py": "x = 1\n"}, Contract(("a/m.py",))).files] == ["a/m.py"]


# ---- where a hunk goes -----------------------------------------------------------------------------------------------

LONG = numbered(60)
HUNK = " line_39 = 39\n-line_40 = 40\n+line_40 = 4\n line_41 = 41\n"


@pytest.mark.parametrize(
    "head",
    [
        "@@ -39,3 +39,3 @@",
        "@@ -1,3 +1,3 @@",
        "@@ -39,9 +39,9 @@",
        "@@ -39,1 +39,1 @@",
        "@@ -900,3 +900,3 @@",
        "@@ ... @@",
        "@@",
        "@@ def f():",
    ],
)
@pytest.mark.parametrize(
    "names", ["--- a/a.py\n+++ b/a.py\n", "--- a.py\n+++ a.py\n", "diff --git a/a.py b/a.py\n", ""]
)
def test_wrong_counts_and_numbers_do_not_matter_where_the_lines_stand_once(head: str, names: str):
    made_of = edited(f"```diff\n{names}{head}\n{HUNK}```\n", {"a.py": LONG}, Contract(("a.py",)))
    assert made_of.files == {"a.py": LONG.replace("= 40", "= 4")}
    moved = re.match(r"@@ -(\d+)", head)
    assert ("hunk 1 of a.py found at line 39, not" in "".join(made_of.notes)) == bool(moved and moved[1] != "39")


@given(st.integers(0, 10**6))
def test_a_hunk_is_found_however_far_off_its_number_is(number: int):
    assert made(f"--- a.py\n+++ a.py\n@@ -{number},3 +7,3 @@\n{HUNK}", LONG) == LONG.replace("= 40", "= 4")


def test_hunks_may_come_in_any_order_and_without_a_header():
    late = "@@ -50 +50 @@\n-line_50 = 50\n+line_50 = 5\n"
    early = "@@ -3 +3,2 @@\n-line_3 = 3\n+line_3 = 33\n+more = 1\n"
    both = LONG.replace("= 50", "= 5").replace("line_3 = 3\n", "line_3 = 33\nmore = 1\n")
    assert made(f"--- a.py\n+++ a.py\n{late}{early}", LONG) == both
    assert made(f"--- a.py\n+++ a.py\n{early}{late}", LONG) == both
    assert made(f"--- a.py\n+++ a.py\n{early}\n{late}", LONG) == both
    assert made("```diff\n-line_50 = 50\n+line_50 = 5\n```", LONG) == LONG.replace("= 50", "= 5")


def test_hunks_whose_context_overlaps_are_both_made():
    one, two = " line_1 = 1\n-line_2 = 2\n+a = 2\n line_3 = 3\n", " line_2 = 2\n-line_3 = 3\n+b = 3\n line_4 = 4\n"
    text = f"--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n{one}@@ -2,3 +2,3 @@\n{two}"
    assert made(text, LONG) == LONG.replace("line_2 = 2\n", "a = 2\n").replace("line_3 = 3\n", "b = 3\n")


def test_the_place_that_a_header_gives_counts_before_others():
    old = "x = 1\n" * 9
    text = "--- a.py\n+++ a.py\n@@ -4 +4 @@\n-x = 1\n+x = 2\n"
    assert made(text, old) == "x = 1\n" * 3 + "x = 2\n" + "x = 1\n" * 5


def test_lines_that_stand_twice_are_refused_with_the_places():
    text = "--- a.py\n+++ a.py\n@@ -9 +9 @@\n-x = 1\n+x = 2\n"
    old = {"a.py": "x = 1\ny = 1\nx = 1\n"}
    assert "at lines 1, 3" in told(text, "ambiguous_match", old, Contract(("a.py",)))
    assert "at lines 1, 3" in told(block("x = 1\n", "x = 2\n"), "ambiguous_match", old, Contract(("a.py",)))


def test_added_code_of_any_shape_is_accepted():
    """Blocks, functions and calls over several lines are no faults of form."""
    patch = (
        "--- a/src/model.py\n+++ b/src/model.py\n@@ -1,4 +1,11 @@\n"
        ' """The slope of a line."""\n-RATE = 0.1\n+RATE = max(\n'
        "+    0.1,\n+    0.2,\n+)\n+def half(x):\n+    return x / 2\n+\n"
        " def answer(x):\n+    if x > 1:\n+        x = half(x)\n"
        "     return RATE * x\n"
    )
    compile(edited(patch).files["src/model.py"], "model.py", "exec")


def test_a_header_that_is_off_by_one_is_mended():
    text = "--- a.py\n+++ a.py\n@@ -1,6 +1,6 @@\n line_1 = 1\n-line_2 = 2\n+line_2 = 20\n"
    text += " line_3 = 3\n line_4 = 4\n line_5 = 5\n"
    assert made(text, numbered(5)) == numbered(5).replace("= 2\n", "= 20\n")


def test_blank_context_may_have_lost_its_space_and_any_context_in_a_fence():
    old = "def f():\n    pass\n\ndef g():\n    pass\n"
    text = "--- a.py\n+++ a.py\n@@ -1,4 +1,4 @@\ndef f():\n-    pass\n+    return 1\n\ndef g():\n"
    assert made(f"```diff\n{text}```", old) == old.replace("pass", "return 1", 1)


def test_removed_and_added_lines_that_look_like_names_of_files_are_lines():
    old, new = "a\n-- b\nc\n", "a\n++ b\nc\n"
    for context in (" a\n", ""):
        start = 1 if context else 2
        count = 2 if context else 1
        text = f"--- n.txt\n+++ n.txt\n@@ -{start},{count} +{start},{count} @@\n{context}--- b\n+++ b\n"
        assert made(text, old, "n.txt") == new


def test_a_new_file_is_made_within_the_contract_only():
    text = "--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1,2 @@\n+x = 1\n+y = 2\n"
    assert edited(text).files == {"src/new.py": "x = 1\ny = 2\n"}
    assert edited(f"{text}\\ No newline at end of file\n").files == {"src/new.py": "x = 1\ny = 2"}
    assert "found one" in told(text.replace("new.py", "model.py"), "malformed")
    told(text.replace("b/src", "b/lib"), "out_of_scope_mutation_blocked")
    assert edited(block("", "x = 1\n", "src/new.py")).files == {"src/new.py": "x = 1\n"}
    assert "none of that name" in told("--- a/src/no.py\n+++ b/src/no.py\n@@ -1 +1 @@\n-x\n+y\n", "no_match")


def test_names_that_differ_are_a_rename_whatever_the_header_calls_it():
    told("--- a/src/model.py\n+++ b/src/other.py\n@@ -2 +2 @@\n-RATE = 0.1\n+RATE = 1\n", "rename_blocked")
    assert edited("--- src/model.py.orig\n+++ src/model.py\n@@ -2 +2 @@\n-RATE = 0.1\n+RATE = 1\n").files


def test_a_hunk_goes_on_as_long_as_it_looks_like_one():
    """Counts that are too small leave nothing out, and a list after a patch is no part of it."""
    old = "a\nb\n\nc\nd\n"
    text = "--- n.txt\n+++ n.txt\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n\n-c\n+C\n d\n"
    assert made(f"```diff\n{text}```", old, "n.txt") == "a\nB\n\nC\nd\n"
    two, contract = {"n.txt": old, "o.txt": old}, Contract(("*.txt",))
    assert edited(f"```diff\n{text}```", two, contract).files == {"n.txt": "a\nB\n\nC\nd\n"}
    lines = "--- n.txt\n+++ n.txt\n@@ -1,1 +1,1 @@\n-a\n+A\n-b\n+B\n"
    assert edited(lines, two, contract).files == {"n.txt": "A\nB\n\nc\nd\n"}
    short = "--- n.txt\n+++ n.txt\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n\n- I made b large.\n"
    assert made(short, old, "n.txt") == "a\nB\n\nc\nd\n"


def test_lines_are_not_added_at_a_place_that_nothing_confirms():
    """Only a header that counts no old lines says where between them; it is how diffs without context look."""
    text = "--- a.py\n+++ a.py\n@@ -2{} +2,1 @@\n+w = 0\n"
    assert made(text.format(",0"), ONE["a.py"]) == "x = 1\ny = 2\nw = 0\nz = 3\n"
    told(text.format(",3"), "no_match", ONE, Contract(("a.py",)))
    told("```diff\n+w = 0\n```", "no_match", ONE, Contract(("a.py",)))
    told("```diff\n-- \n```", "no_match", ONE, Contract(("a.py",)))


def test_hunks_that_want_the_same_lines_are_refused():
    insert, delete = "@@ -1,0 +2 @@\n+w = {}\n", "@@ -{0},2 +{0},0 @@\n-{1}\n-{2}\n"
    text = "--- a.py\n+++ a.py\n" + insert.format(1) + insert.format(2) + insert.format(3)
    one, two = delete.format(2, "y = 2", "z = 3"), delete.format(1, "x = 1", "y = 2")
    assert made(text + one, ONE["a.py"]) == "x = 1\nw = 1\nw = 2\nw = 3\n"
    told(text + two, "no_match", ONE, Contract(("a.py",)))
    told("--- a.py\n+++ a.py\n" + one + two, "no_match", ONE, Contract(("a.py",)))
    told("--- a.py\n+++ a.py\n" + two + one, "no_match", ONE, Contract(("a.py",)))


def test_blank_lines_around_an_edit_need_not_be_in_the_file():
    assert made(block("\ny = 2\n\n", "\ny = 3\n\n"), ONE["a.py"]) == "x = 1\ny = 3\nz = 3\n"
    assert (
        made("--- a.py\n+++ a.py\n@@ -7,3 +7,3 @@\n-y = 2\n+y = 3\n z = 3\n\n", ONE["a.py"]) == "x = 1\ny = 3\nz = 3\n"
    )
    told(block("\n\n", "\n"), "no_match", ONE, Contract(("a.py",)))


def test_edits_that_have_to_be_looked_for_are_counted():
    """Those that stand where their header says are not."""
    hunks = [f"@@ -{{}} +{n} @@\n-line_{n} = {n}\n+line_{n} = 0\n" for n in range(1, 202)]
    right = "".join(hunk.format(n) for n, hunk in enumerate(hunks, 1))
    wrong = "".join(hunk.format(900) for hunk in hunks)
    before = numbered(300)
    assert made(f"--- a.py\n+++ a.py\n{right}", before).count("= 0\n") == 201
    told(f"--- a.py\n+++ a.py\n{wrong}", "too_large", {"a.py": before}, Contract(("a.py",)))


# ---- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "around",
    [
        "src/model.py\n{}",
        "**src/model.py**\n```python\n{}```",
        "### `src/model.py`\n\nThe rate is low, so I raise it:\n\n```python\n{}```",
        "```python\nsrc/model.py\n{}```",
        "```python src/model.py\n{}```",
        '```python title="src/model.py"\n{}```',
        "```python:src/model.py\n{}```",
        "File: `src/model.py`\n{}",
        "1. src/model.py (updated):\n\n~~~\n{}~~~",
        "<think>\nscore.py\n</think>\n# src/model.py\n{}",
        "{}",
    ],
)
def test_a_block_is_for_the_path_that_stands_before_it_or_for_the_only_mutable_file(around: str):
    marks = block("RATE = 0.1\n", "RATE = 0.5\n").lstrip("\n")
    assert edited(around.format(marks)).files == {"src/model.py": MODEL.replace("0.1", "0.5")}


def test_blocks_without_a_path_are_refused_where_several_files_are_mutable():
    contract = Contract(("src/**", "score.py"))
    assert "score.py, src/model.py" in told(block("RATE = 0.1\n", "RATE = 0.5\n"), "malformed", contract=contract)
    assert "score.py, src/model.py" in told("```python\nx = 1\n```", "not_an_edit", contract=contract)
    assert "score.py, src/model.py" in told("@@ -1 +1 @@\n-x = 1\n+x = 2\n", "malformed", contract=contract)


def test_a_block_may_build_on_the_one_before():
    text = block("y = 2\n", "y = 2\nw = 4\n") + block("w = 4\n", "w = 5\n")
    assert made(text, ONE["a.py"]) == "x = 1\ny = 2\nw = 5\nz = 3\n"


def test_a_block_may_delete_and_insert():
    assert made(block("y = 2\n", ""), ONE["a.py"]) == "x = 1\nz = 3\n"
    assert made(block("y = 2\nz = 3\n", "y = 2\nnew = 0\nz = 3\n"), ONE["a.py"]) == "x = 1\ny = 2\nnew = 0\nz = 3\n"


@pytest.mark.parametrize(
    ("old", "search", "replace", "new"),
    [
        ("x = 1  \ny = 2\n", "x = 1\n", "x = 3\n", "x = 3\ny = 2\n"),
        ("x = 1\ny = 2\n", "x = 1   \n", "x = 3\n", "x = 3\ny = 2\n"),
        ("x  =  1\ny = 2\n", "x = 1\n", "x = 3\n", "x = 3\ny = 2\n"),
        ("def f():\n    a = 1\n", "a = 1\n", "a = 2\nif a:\n    b = 1\n",
         "def f():\n    a = 2\n    if a:\n        b = 1\n"),
        ("def f():\n\tif x:\n\t\ta = 1\n", "    if x:\n        a = 1\n",
         "    if x:\n        a = 2\n        if a:\n            b = 1\n",
         "def f():\n\tif x:\n\t\ta = 2\n\t\tif a:\n\t\t\tb = 1\n"),
        ("def f():\n    if x:\n        a = 1\n", "if x:\n    a = 1\n", "if x:\n    a = 2\n",
         "def f():\n    if x:\n        a = 2\n"),
        ("a = 1\n", "    a = 1\n", "    a = 2\n", "a = 2\n"),
        ("a = 1\n", "    a = 1\n", "    a = 2\nb = 1\n", "a = 2\nb = 1\n"),
    ],
)  # fmt: skip
def test_white_space_is_forgiven_where_the_lines_stand_once(old: str, search: str, replace: str, new: str):
    """What comes is indented as the lines that go; what is context stays as the file has it."""
    done = edited(block(search, replace), {"a.py": old}, Contract(("a.py",)))
    assert done.files == {"a.py": new}
    assert done.notes == ("block 1 of a.py matched but for white space",)


def test_white_space_in_context_stays_as_the_file_has_it():
    assert (
        made("--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n+y = 3\n", "x = 1 \t\ny = 2\n")
        == "x = 1 \t\ny = 3\n"
    )


def test_lines_that_are_nested_otherwise_do_not_match():
    told(block("if x:\na = 1\n", "a = 2\n"), "no_match", {"a.py": "if x:\n    a = 1\n"}, Contract(("a.py",)))


def test_a_search_that_finds_nothing_is_told_what_is_nearest():
    text = told(
        block("line_40 = 41  # was forty\nline_41 = 41\n", "y = 3\n"), "no_match", {"a.py": LONG}, Contract(("a.py",))
    )
    assert "line_40 = 41  # was forty" in text
    assert "40| line_40 = 40" in text
    old = "".join(f"line_{n} = {n}\n" for n in range(10, 30)).replace("line_25 = 25", "line_25 = 52")
    text = told(block(old, "y = 3\n"), "no_match", {"a.py": LONG}, Contract(("a.py",)))
    assert "these 20, of which line 16 is the first that differs\n  line_25 = 52\n" in text
    assert "25| line_25 = 25" in text


@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n",
        "<<<<<<< SEARCH\nx = 1\n>>>>>>> REPLACE\n",
        "x = 1\n=======\nx = 2\n>>>>>>> REPLACE\n",
        "<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n<<<<<<< SEARCH\ny = 2\n=======\ny = 3\n>>>>>>> REPLACE\n",
        "<<<<<<< SEARCH\nx = 1\n=======\ny\n=======\nx = 2\n>>>>>>> REPLACE\n",
        "```python a.py\nx = 2\n",
    ],
)
def test_half_marks_are_refused(text: str):
    assert re.search(r"line \d+ of the proposal", told(text, "malformed", ONE, Contract(("a.py",))))


def test_one_bad_edit_spoils_all_and_every_fault_is_told():
    text = block("x = 1\n", "x = 5\n", "a.py") + block("no\n", "x\n", "a.py") + block("nor\n", "x\n", "b.py")
    words = told(text, "no_match", ONE | {"b.py": "b = 1\n"}, Contract(("*.py",)))
    assert "block 2 of a.py" in words
    assert "block 3 of b.py" in words
    assert (
        len(
            told(
                "".join(block(f"no_{n}\n" * 40, "x\n", "a.py") for n in range(99)), "no_match", ONE, Contract(("a.py",))
            )
        )
        <= 2000
    )


# ---- whole files -----------------------------------------------------------------------------------------------------

NEW = MODEL.replace("0.1", "0.5")


@pytest.mark.parametrize(
    "text",
    [
        f"```python src/model.py\n{NEW}```",
        f"```python title=src/model.py\n{NEW}```",
        f"```src/model.py\n{NEW}```",
        f"path: src/model.py\n```python\n{NEW}```",
        f"**src/model.py**\n\n```\n{NEW}```",
        f"## src/model.py\n~~~python\n{NEW}~~~",
        f"`src/model.py`:\n````python\n{NEW}````",
        f"```py\n{NEW}```",
        f"```plaintext\n{NEW}```",
        f"```\n{NEW}```",
        f"Before it was\n```python\nRATE = 0.1\n```\nnow it is\n```python\n{NEW}```\nand prints\n"
        f"```text\n{'0.5 ' * 100}\n```",
        f"- like this:\n  ```python\n{''.join(f'  {line}' for line in NEW.splitlines(True))}  ```",
        f"<think>\n```python src/model.py\nRATE = 7\n```\n</think>\n```python src/model.py\n{NEW}```",
        f"```python\nRATE = 7\n</think>\n```python src/model.py\n{NEW}```",
        f"I would write\n```python src/model.py\nRATE = 7\n```\nbut wait</think>\n```python src/model.py\n{NEW}```",
    ],
)
def test_a_whole_file_is_the_body_of_its_fence(text: str):
    assert edited(text).files == {"src/model.py": NEW}


@pytest.mark.parametrize(
    "body",
    [
        '"""Use it so:\n\n```python\nanswer(1)\n```\n"""\nRATE = 2\n',
        '"""Use it so:\n```\nanswer(1)\n```\n"""\nRATE = 2\n',
        "TEXT = '''\n```\n'''  # ''' \nIT = \"it's '''\"\nRATE = 2\n",
        "TAG = '''\n<think>\n</think>\n'''\n",
        "TEXT = '''\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n'''\n",
    ],
)
def test_fences_tags_and_diffs_within_a_file_are_its_text(body: str):
    assert edited(f"```python src/model.py\n{body}```\nDone.").files == {"src/model.py": body}
    assert edited(f"````python src/model.py\n{body}````\nDone.").files == {"src/model.py": body}
    assert edited(block(MODEL, body, "src/model.py")).files == {"src/model.py": body}


def test_the_largest_block_counts_where_none_is_named_and_the_last_of_equals():
    assert made("```\nx = 1\ny = 22\n```\n```\nx = 3\n```\n", "") == "x = 1\ny = 22\n"
    assert made("```\nx = 1\n```\n```\nx = 2\n```\n", "") == "x = 2\n"
    done = edited("```a.py\nx = 4\n```\n```a.py\nx = 5\n```\n```sh\npython a.py\n```\n", ONE, Contract(("a.py",)))
    assert done.files == {"a.py": "x = 5\n"}
    assert done.notes == ("several blocks are a.py: the last was taken", "blocks without a path that were not read: 1")


def test_forms_may_be_mixed_and_go_to_several_files():
    b_block = block("b = 1\n", "b = 2\n", "b.py")
    text = (
        f"First\n```diff\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 9\n```\nthen\n{b_block}"
        "and\n**c.py**\n```python\nc = 3\n```\n"
    )
    before = ONE | {"b.py": "b = 1\n"}
    assert edited(text, before, Contract(("*.py",))).files == {
        "a.py": ONE["a.py"].replace("1", "9"),
        "b.py": "b = 2\n",
        "c.py": "c = 3\n",
    }
    told(f"{text}score.txt\n```\n1\n```\n", "frozen_file_mutation_blocked", before, Contract(("*",), ("score.txt",)))


def test_prose_and_thought_are_no_edits():
    for text in ("Nothing to do.", "<think>\n```a.py\nx = 2\n```\n", "```\n```\n", "Use `<<<<<<<` with care."):
        told(text, "not_an_edit", ONE, Contract(("a.py",)))
    assert "after the thinking" in told("<think>hm", "not_an_edit", ONE, Contract(("a.py",)))


def test_a_document_with_fences_as_long_as_its_own_is_not_cut():
    """Which fence ends it cannot be told, unless those within it name a language."""
    document, contract = "# Title\n\n```{}\nx = 1\n```\n\nMore.\n", Contract(("a.md",))
    before = {"a.md": "old\n"}
    for head in ("```markdown", "```", "```md a.md", "**a.md**\n```text"):
        assert "````" in told(f"{head}\n{document.format('')}```\nDone.", "malformed", before, contract)
        done = edited(f"{head}\n{document.format('python')}```\nDone:\n```sh\nls\n```\n", before, contract)
        assert done.files == {"a.md": document.format("python")}
    done = edited(f"````\n{document.format('')}````\nDone.", before, contract)
    assert done.files == {"a.md": document.format("")}
    assert done.notes == ("a block without a path was taken for the whole of a.md",)


@pytest.mark.parametrize("title", ["Input/Output", "and/or", "https://a.b/c.py", "Result:", "1/2"])
def test_a_word_with_a_slash_is_not_yet_a_path(title: str):
    assert edited(f"## {title}\n```python\n{NEW}```").files == {"src/model.py": NEW}


@pytest.mark.parametrize(
    "line",
    [
        "# ... existing code ...",
        "    # ... (rest of the function unchanged)",
        "// … the rest",
        "# rest of the file as before",
    ],
)
def test_a_line_that_stands_for_lines_left_out_is_not_written(line: str):
    """Or the lines would be gone."""
    assert "left out" in told(f"```a.py\nx = 2\n{line}\n```", "malformed", ONE, Contract(("a.py",)))
    text = block("y = 2\n", f"{line}\n")
    assert "left out" in told(text, "malformed", {"n.txt": "y = 2\n"}, Contract(("n.txt",)))
    kept = {"n.txt": f"x = 1\n{line}\n"}
    done = edited(block("x = 1\n", "x = 2\n# the rest is silence\n"), kept, Contract(("n.txt",)))
    assert done.files == {"n.txt": f"x = 2\n# the rest is silence\n{line}\n"}


def test_an_empty_block_does_not_empty_a_file():
    told("```a.py\n\n```", "malformed", ONE, Contract(("a.py",)))


# ---- what a file keeps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["\n", "\r\n"])
@pytest.mark.parametrize("ours", ["\n", "\r\n"])
def test_a_file_keeps_its_ends_of_lines(ours: str, theirs: str):
    old, new = ONE["a.py"].replace("\n", ours), ONE["a.py"].replace("2", "5").replace("\n", ours)
    for text in (
        "--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n x = 1\n-y = 2\n+y = 5\n z = 3\n",
        block("y = 2\n", "y = 5\n", "a.py"),
        "```python a.py\nx = 1\ny = 5\nz = 3\n```\n",
    ):
        assert made(text.replace("\n", theirs), old) == new
    told(f"```a.py\n{ONE['a.py']}```".replace("\n", theirs), "no_change", {"a.py": old}, Contract(("a.py",)))
    created = edited("```b.py\nx = 1\n```\n".replace("\n", theirs), {"a.py": old}, Contract(("*.py",)))
    assert created.files == {"b.py": "x = 1\n"}


def test_a_file_keeps_its_byte_order_mark_and_an_open_last_line():
    old = "\ufeffx = 1\ny = 2"
    assert made(block("x = 1\n", "x = 3\n"), old) == "\ufeffx = 3\ny = 2"
    assert made(block("y = 2\n", "y = 3\n"), old) == "\ufeffx = 1\ny = 3"
    assert made("```a.py\nx = 1\ny = 3\n```", old) == "\ufeffx = 1\ny = 3"
    told("```a.py\nx = 1\ny = 2\n```", "no_change", {"a.py": old}, Contract(("a.py",)))
    end = "\\ No newline at end of file\n"
    assert made(f"--- a.py\n+++ a.py\n@@ -2 +2 @@\n-y = 2\n{end}+y = 2\n", old) == f"{old}\n"
    assert made(f"--- a.py\n+++ a.py\n@@ -2 +2 @@\n-y = 2\n+y = 2\n{end}", f"{old}\n") == old


def test_an_edit_that_changes_nothing_is_told_so():
    for text in (
        block("x = 1\n", "x = 1\n"),
        f"```a.py\n{ONE['a.py']}```",
        "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-x = 1\n+x = 1\n",
    ):
        told(text, "no_change", ONE, Contract(("a.py",)))


# ---- judging the result ----------------------------------------------------------------------------------------------


def fault(before: dict, after: dict, contract: Contract = CONTRACT, others: tuple = ()) -> tuple[str, str]:
    broken = judge(before, after, contract, others)
    return (broken.code, broken.text) if broken else ("", "")


def test_a_result_is_judged_whoever_made_it():
    assert fault(STUDY, STUDY)[0] == "no_change"
    assert fault(STUDY, STUDY | {"src/model.py": "RATE = 2\n"}) == ("", "")
    assert fault(STUDY, STUDY | {"score.py": ""})[0] == "frozen_file_mutation_blocked"
    assert fault(STUDY, STUDY | {"data/new.json": ""})[0] == "frozen_file_mutation_blocked"
    assert fault(STUDY, STUDY | {"conftest.py": ""})[0] == "out_of_scope_mutation_blocked"
    assert fault(STUDY, {path: text for path, text in STUDY.items() if path != "src/model.py"})[0] == "deletion_blocked"
    assert fault(STUDY, STUDY | {"src/../x": ""})[0] == "unsafe_path"
    assert fault(STUDY, STUDY | {"src//x": ""})[0] == "unsafe_path"
    assert fault({}, {"src/A.py": ""}, others=("src/a.py",))[0] == "unsafe_path"
    assert fault(STUDY, STUDY | {"src/x.txt": "x" * 11}, Contract(("src",), most_file=10))[0] == "too_large"
    assert fault(STUDY, STUDY | {"src/x.bin": "a\0b"})[0] == "binary_blocked"
    assert fault(STUDY, STUDY | {"src/x.txt": "\ud800"})[0] == "binary_blocked"
    assert fault({}, {"src/a.txt": "", "src/A.txt": ""})[0] == "unsafe_path"
    assert fault({}, {"src/a.txt": "", "src/a.txt/b": ""})[0] == "unsafe_path"
    assert fault({}, {"src/a/x": "", "src/a/y": "", "src/a.b": ""}) == ("", "")
    assert fault({}, {f"src/{n}": "" for n in range(1001)})[0] == "too_large"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1\nif x:\ny = 2\n", "on line 3: y = 2"),
        ("x = (1,\n", "was never closed on line 1: x = (1,"),
        ("-" * 100_000 + "1", "nesting too deep to read"),
        ("x = 1" + "+1" * 100_000, "nesting too deep to read"),
        ("x = '\\ud800'\nx = \ud800", "character"),
        ("x = " + "9" * 5000, "limit"),
    ],
)
def test_python_that_does_not_parse_is_told_where(source: str, found: str):
    code, text = fault(STUDY, STUDY | {"src/model.py": source})
    assert (code, found in text) == ("syntax_error" if "\ud800" not in source else "binary_blocked", True), text
    assert fault(STUDY, STUDY | {"src/model.txt": source})[0] in ("", "binary_blocked")


def test_a_fence_ends_also_where_a_string_does_not():
    assert "triple-quoted" in told("```python a.py\n'''\n```\nDone.", "syntax_error", ONE, Contract(("a.py",)))
    assert "null bytes" in fault({"src/a.py": "\0"}, {"src/a.py": "\0\0"})[1]


def test_python_that_warns_is_python():
    assert fault(STUDY, STUDY | {"src/model.py": "x = '\\d' is 1\n"}) == ("", "")


BLOCKS = "import x\n# EVOLVE-BLOCK-START\na = 1\n# EVOLVE-BLOCK-END\ny = 2\n"
BLOCKS += "// EVOLVE-BLOCK-START\nb = 1\n<!-- EVOLVE-BLOCK-END -->\nz"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("a = 1\n", "", ""),
        ("a = 1\n", "a = 2\nc = 3\n", ""),
        ("b = 1\n", "b = 7\n", ""),
        ("import x\n", "import y\n", "line 1: expected 'import x'"),
        ("y = 2\n", "y = 3\n", "line 5: expected 'y = 2'"),
        ("y = 2\n", "", "line 5: expected 'y = 2'"),
        ("z", "z\n", "line 10"),
        ("# EVOLVE-BLOCK-END\n", "#  EVOLVE-BLOCK-END\n", "line 4"),
        ("# EVOLVE-BLOCK-START\n", "", "one END too many on line 3"),
        ("# EVOLVE-BLOCK-END\n", "", "one START too many on line 5"),
        ("a = 1\n", "# EVOLVE-BLOCK-END\na\n# EVOLVE-BLOCK-START\n", "expected 2 EVOLVE-BLOCK regions"),
        ("a = 1\n", "a = 1\r\n", ""),
        ("y = 2\n", "y = 2\r\n", "line 5"),
        (BLOCKS, "a = 2\n", "found none"),
    ],
)  # fmt: skip
def test_outside_of_evolve_blocks_nothing_changes(old: str, new: str, found: str):
    before, after = {"a.txt": BLOCKS}, {"a.txt": BLOCKS.replace(old, new, 1)}
    code, text = fault(before, after, Contract(("a.txt",)))
    assert (code, found in text) == ("outside_evolve_block" if found else "", True), text


def test_a_whole_file_without_the_marks_is_not_pasted_into_them():
    assert "found none" in told("```a.txt\na = 2\n```", "outside_evolve_block", {"a.txt": BLOCKS}, Contract(("a.txt",)))
    half = "```a.txt\na = 2\n# EVOLVE-BLOCK-END\ny\n```"
    told(half, "outside_evolve_block", {"a.txt": BLOCKS}, Contract(("a.txt",)))
    broken = {"a.txt": BLOCKS + "\n# EVOLVE-BLOCK-START"}
    assert "cannot be changed" in told(
        block("a = 1\n", "a = 2\n"), "outside_evolve_block", broken, Contract(("a.txt",))
    )


def test_calls_that_are_required_stay():
    contract = Contract(("*.py",), required_calls=("report", "log.flush", "never"))
    before = {"a.py": "report(1)\nlog.flush()\n", "b.py": "x = 1\n"}
    assert fault(before, before | {"a.py": "m.report(2)\nself.log.flush()\n"}, contract) == ("", "")
    assert fault(before, {"a.py": "pass\n", "b.py": "report(1)\nlog.flush()\n"}, contract) == ("", "")
    assert fault(before | {"c.py": "report(3)"}, before | {"a.py": "log.flush()\n", "c.py": "report(3)"}, contract) == (
        "",
        "",
    )
    assert fault(before, before | {"a.py": "log.flush()\n# report(1)\n"}, contract)[0] == "required_call_removed"
    code, text = fault(before, before | {"a.py": "report\nflush()\n'report(1)'\n"}, contract)
    assert (code, "report" in text, "log.flush" in text, "never" in text) == (
        "required_call_removed",
        True,
        True,
        False,
    )


def test_what_others_hold_is_frozen_or_out_of_scope_and_not_missing():
    patch = "--- a/lib.py\n+++ b/lib.py\n@@ -1 +1 @@\n-x\n+y\n"
    told(patch, "out_of_scope_mutation_blocked", ONE, Contract(("a.py",)), ("lib.py",))
    told(patch, "frozen_file_mutation_blocked", ONE, Contract(("*.py",), ("lib.py",)), ("lib.py",))
    assert "was shown" in told(patch, "no_match", ONE, Contract(("*.py",)), ("lib.py",))


# ---- globs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "path", "covered"),
    [
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "src/A.py", False),
        ("src", "src/a/b.py", True),
        ("./src/", "src/a", True),
        ("src", "srcs/a", False),
        (".", "a/b", True),
        ("src/*", "src/a.py", True),
        ("src/*", "src/a/b.py", False),
        ("src/**", "src/a/b.py", True),
        ("src/**", "src", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("a/**/b.py", "a/b.py", True),
        ("a/**/b.py", "a/x/y/b.py", True),
        ("a/**/b.py", "a/xb.py", False),
        ("a/**.py", "a/b/c.py", True),
        ("?.py", "a.py", True),
        ("?.py", "/.py", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[^a-c]x", "dx", True),
        ("[]]x", "]x", True),
        ("[a-]x", "-x", True),
        ("[a", "[a", True),
        ("[]", "a", False),
        ("[!]", "a", True),
        ("x[1].py", "x[1].py", True),
        ("x[1].py", "x1.py", True),
        ("a.py", "axpy", False),
        ("*a*b", "xaxbxb", True),
    ],
)
def test_a_glob_covers_what_it_covers_in_a_study_file(glob: str, path: str, covered: bool):
    assert covers(glob, path) is covered


@given(st.text("ab/*?[!]-.", max_size=12), st.text("ab/.-", max_size=12))
def test_a_glob_covers_what_the_study_files_reader_would_find(glob: str, path: str):
    """The same as `studyfile.globs`, but for sets that hold nothing and those that `re` refuses or warns of."""
    from metaloop.studyfile.globs import _regex

    plain = "/".join(part for part in glob.split("/") if part not in ("", "."))
    assume(plain and "[]" not in plain and "[^]" not in plain)
    try:
        expected = re.compile(_regex(plain), re.DOTALL).fullmatch(path) is not None
    except (re.error, FutureWarning):
        return
    assert covers(glob, path) == (expected or path == plain or path.startswith(f"{plain}/"))


def test_no_glob_takes_for_ever():
    start = time.process_time()
    assert not covers("*a" * 200 + "b", "a" * 1000)
    assert not covers("**/" * 500 + "x" + "**y" * 100, "a/" * 500)
    assert time.process_time() - start < 2


# ---- there and back --------------------------------------------------------------------------------------------------

LINE = st.text(
    st.sampled_from("ab \t-+@\\=<>`é\u2028\x0c")
    | st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]),
    max_size=8,
)
LINE |= st.sampled_from(
    ["", "x", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "<<<<<<< SEARCH", ">>>>>>> REPLACE", "```", "<think>", "</think>"]
)
LINE |= st.sampled_from(
    ["diff --git a/a.txt b/a.txt", "\\ No newline at end of file", "-- ", "-- a", "++ b", "deleted file mode 100644"]
)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINE, max_size=30), st.sampled_from(["", "\n"]))
NAMES = ["a.txt", "dir/b.txt", 'with "quotes"/é.txt', "two words 2024-01-01 x.txt"]


@st.composite
def pairs(draw, ends=("\n", "\r\n")):
    """Files before and after some of their lines were changed."""
    before, after = {}, {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)):
        lines = draw(st.lists(LINE, max_size=40))
        changed = list(lines)
        for _ in range(draw(st.integers(0, 4))):
            at = draw(st.integers(0, len(changed)))
            changed[at : at + draw(st.integers(0, 3))] = draw(st.lists(LINE, max_size=3))
        end = draw(st.sampled_from(ends))
        texts = [end.join(some) + draw(st.sampled_from(["", end])) for some in (lines, changed)]
        if draw(st.booleans()):
            before[name] = texts[0]
        after[name] = texts[1]
    return before, after


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(pairs())
def test_a_diff_is_undone_by_an_edit(pair):
    before, after = pair
    # a new file is taken as it comes, and an old one keeps how it ends its lines where it has any
    assume(
        all(
            "\r\n" in text or "\n" not in before[path] for path, text in after.items() if "\r\n" in before.get(path, "")
        )
    )
    assume(all("\r\n" in before.get(path, text) or "\r" not in text for path, text in after.items()))
    if before == after:
        assert diff(before, after) == ""
        return
    done = edit(diff(before, after), before, Contract(("**",)))
    assert isinstance(done, Edited), (done, diff(before, after))
    assert {**before, **done.files} == after
    assert not done.notes or not any(note.startswith("hunk") for note in done.notes)


@settings(
    max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)
@given(pairs())
def test_git_makes_the_same_of_a_diff(tmp_path_factory, pair):
    before, after = pair
    root = tmp_path_factory.mktemp("repo")
    subprocess.run(["git", "init", "-q", root], check=True)
    for path, text in before.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(text.encode())
    if before != after:
        command = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, cwd=root, input=diff(before, after).encode(), capture_output=True)
        assert done.returncode == 0, (done.stderr, diff(before, after))
    assert {path: (root / path).read_bytes().decode() for path in after} == after


def test_a_diff_shows_little():
    old = numbered(400)
    new = old.replace("line_7 = 7\n", "line_7 = 70\n").replace("line_300 = 300\n", "")
    shown = diff({"a.py": old}, {"a.py": new})
    assert shown.startswith("diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -4,7 +4,7 @@\n line_4 = 4\n")
    assert len(shown.splitlines()) == 3 + 9 + 8
    assert diff({"a": "x"}, {}) == (
        "diff --git a/a b/a\ndeleted file mode 100644\n--- a/a\n+++ /dev/null\n"
        "@@ -1,1 +0,0 @@\n-x\n\\ No newline at end of file\n"
    )


PIECES = st.sampled_from(
    [
        "a.py",
        "b/c.py",
        "x = 1",
        "y = 2",
        "```",
        "```python",
        "```python a.py",
        "```diff",
        "````",
        "~~~",
        "<<<<<<< SEARCH",
        "=======",
        ">>>>>>> REPLACE",
        "--- a/a.py",
        "+++ b/a.py",
        "--- /dev/null",
        "+++ b/b/c.py",
        "+++ b/../x",
        "+++ /dev/null",
        "@@ -1 +1 @@",
        "@@",
        "@@ -0,0 +1,2 @@",
        "@@ -2,9 +2,9 @@",
        "-x = 1",
        "+x = 3",
        "+z",
        " y = 2",
        "",
        "\\ No newline at end of file",
        "diff --git a/a.py b/a.py",
        'diff --git "a/\\777" b/',
        "rename from a.py",
        "new file mode 100644",
        "index 1..2 160000",
        "GIT binary patch",
        "<think>",
        "</think>",
        "path: ../x",
        "### .git/config",
        "title=",
        '"""',
        "'''",
        "\r",
        "path:",
        "\x00",
        "\ud800",
        "@@ -999999999 +1 @@",
        '+++ "b/\\',
        "--- ",
        "+++ ",
        "index ",
        "new file mode ",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES | LINE, max_size=25), st.sampled_from(["\n", "\r\n"]), st.text(max_size=20))
def test_garbage_neither_raises_nor_leaves_the_contract(lines, end, tail):
    """Whatever comes: the contract holds, the words are bounded, and the same is said again."""
    contract = Contract(("a.py", "b/**"), ("b/no*",))
    before = {"a.py": "x = 1\ny = 2\n", "b/no.py": "x = 1\n", "c.py": "x = 1\n"}
    text = end.join(lines) + tail
    done = edit(text, before, contract)
    assert done == edit(text, before, contract)
    if isinstance(done, Edited):
        assert all(contract.allows(path) and ".." not in path and "\\" not in path for path in done.files)
        assert judge(before, before | done.files, contract) is None
    else:
        assert 0 < len(done.text) <= 2000
        assert done.text.encode()


# ---- time ------------------------------------------------------------------------------------------------------------

HOSTILE = {
    "searches": "<<<<<<< SEARCH\n",
    "blocks": "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n",
    "true_blocks": "<<<<<<< SEARCH\nline_9 = 9\n=======\nline_9 = 9\n>>>>>>> REPLACE\n",
    "dividers": "=======\n",
    "fences": "```\n",
    "opened": "```python\n",
    "opened_strings": "```python\n'''\n```\n",
    "longer": "".join("`" * n + "x\n" for n in range(3, 400)),
    "files": "```x.py\n1\n```\n",
    "headers": "--- a/a.py\n+++ b/a.py\n",
    "hunks": "@@ -1 +1 @@\n",
    "true_hunks": "@@ -9 +9 @@\n-line_9 = 9\n+line_9 = 9\n",
    "lost_hunks": "@@ -1 +1 @@\n-line_9 = 9\n+line_9 = 9\n",
    "counted": "@@ -1,99999 +1,99999 @@\n x\n",
    "git": "diff --git a/a.py b/a.py\n",
    "binary": "GIT binary patch\n",
    "thought": "<think>\n",
    "no_thought": "</think>\n",
    "blank": "\n",
    "spaces": " ",
    "ticks": "`",
    "quotes": "'''\"\"\"\\",
    "stars": "*",
    "hashes": "# ",
    "slashes": "a/",
    "minus": "-",
    "minus_lines": "-x\n",
    "words": "path: ",
    "one_line": "x",
    "info": "```python title=",
    "open_infos": "```a\n",
    "nested_blocks": "```a\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n",
    "inserts": "@@ -1,0 +2 @@\n+x\n",
    "spaced": "x" + " " * 1000,
    "octal": "\\777",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "{}\n<<<<<<< SEARCH\n",
        "--- a{}b\n+++ a{}b\n",
        "```python a.py\n{}\n```",
        "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n{}",
        '--- "{}"\n+++ "{}"',
        "```{}",
    ],
)
@pytest.mark.parametrize("shape", HOSTILE)
def test_no_shape_takes_long(shape: str, around: str):
    """A proposal of one megabyte."""
    piece = HOSTILE[shape]
    text = around.replace("{}", piece * (1_000_000 // len(piece) // around.count("{}")))
    start = time.process_time()
    edit(text, {"a.py": LONG}, Contract(("*.py",)))
    assert time.process_time() - start < 3


def test_a_large_file_takes_a_small_patch():
    old = numbered(120_000)
    assert len(old) > 2_000_000
    patch = "--- a.py\n+++ a.py\n@@ -7 +7 @@\n-line_70000 = 70000\n+line_70000 = 7\n"
    before = {"a.txt": old}
    start = time.process_time()
    done = edited(patch.replace("a.py", "a.txt"), before, Contract(("a.txt",)))
    again = edited(diff(before, done.files), before, Contract(("a.txt",)))
    told(block("line_70001 = 70000\n", "x\n") * 8, "no_match", before, Contract(("a.txt",)))
    assert done.files == again.files == {"a.txt": old.replace("= 70000", "= 7")}
    assert time.process_time() - start < 3


@pytest.mark.parametrize("lines", ["x\n" * 100_000, "x\ny\n" * 50_000, numbered(50_000)], ids=["same", "two", "all"])
def test_a_diff_of_large_texts_takes_about_linear_time(lines: str):
    start = time.process_time()
    other = "y\n" + lines[: len(lines) // 2].replace("1", "2") + "z\nx\n" * 1000 + lines[len(lines) // 2 :]
    assert diff({"a": lines}, {"a": other})
    assert time.process_time() - start < 3


EXCESSIVE = {
    "names of many parts": "def f():\n    import a" + ".b" * 400_000 + "\n",
    "names of many parts, in lines": "def f():\n    import a" + ".\\\n b" * 200_000 + "\n",
    "braces": "x = f'" + "{a}" * 150_000 + "'\n",
    "functions": "def g():\n" + "    def f(): pass\n" * 40_000,
    "blanks": "a" + " " * 900_000 + "\n",
    "dots": "a" + "." * 900_000 + "\n",
}


@pytest.mark.parametrize("kind", EXCESSIVE)
def test_a_text_that_python_would_choke_on_is_refused_at_once(kind: str) -> None:
    """Its parser takes time and memory by the square of some things."""
    began = time.monotonic()
    broken = judge({"a.py": "x = 1\n"}, {"a.py": EXCESSIVE[kind]}, Contract(("*.py",)))
    assert time.monotonic() - began < 3
    assert broken is None or broken.code == "syntax_error"
    assert (broken is None) == (kind == "blanks")


def test_fences_without_end_are_read_in_no_time() -> None:
    text = "notes.md\n" + "````md\na\n````\n" * 4000 + "\n" * 980_000
    began = time.monotonic()
    edit(text, {"notes.md": "a\n"}, Contract(("*.md",)))
    assert time.monotonic() - began < 10
