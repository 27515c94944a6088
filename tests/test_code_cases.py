"""The worked cases A18 to A23: what becomes of edits, honest ones and others."""

import json
import sys
from pathlib import Path

import pytest

from metaloop.edits.contract import Broken, Contract, Edited
from metaloop.edits.making import edit
from metaloop.testing import FakeProvider
from test_code_study import BETTER, block, ideas, shop, state

TRAIN = "import json\n\nlr = 0.1\n\n\ndef main():\n    print(f'score={lr}')\n\n\nmain()\n"
CONTRACT = Contract(("src/train.py",), ("evaluate.py", "data/**"))


def patched(text: str, before: str = TRAIN) -> Edited | Broken:
    return edit(text, {"src/train.py": before}, CONTRACT, ("evaluate.py", "data/gold.json"))


@pytest.mark.parametrize(
    "hunk",
    [
        "@@ -3,1 +3,3 @@\n lr = 0.1\n+if lr > 1:\n+    lr = 1\n",
        "@@ -3,1 +3,6 @@\n lr = 0.1\n+\n+\n+def warm(step):\n+    return min(1, step / 10)\n+\n",
        "@@ -7,1 +7,4 @@\n-    print(f'score={lr}')\n+    print(\n+        f'score={lr}',\n+        sep='',\n+    )\n",
    ],
)
def test_a18_ordinary_code_is_accepted(hunk: str) -> None:
    made = patched(f"--- a/src/train.py\n+++ b/src/train.py\n{hunk}")
    assert isinstance(made, Edited), made
    compile(made.files["src/train.py"], "train.py", "exec")


@pytest.mark.slow
def test_a18_a_syntax_error_goes_back_to_who_proposed_it_and_costs_no_trial(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    told: list[str] = []

    def script(body: dict) -> str:
        told.append(body["messages"][-1]["content"])
        new = "RATE = (" if len(body["messages"]) == 2 else "RATE = 0.3"
        return "WHY: a larger rate\n" + block("src/model.py", "RATE = 0.1", new)

    with FakeProvider(script) as provider:
        made = shop(tmp_path, type="llm_diff", patches=None)
        made.write(
            models={"proposer": {"model": "fake", "base_url": provider.url, "max_tokens": 500}},
            controller={"max_iterations": 1},
        )
        made.env |= {"OPENAI_API_KEY": "sk-nobody-knows-this-0123"}
        assert made.run(timeout=100).code == 0
    assert "src/model.py" in told[1]
    assert "was not counted" in told[1]
    assert [row["value"] for row in made.rows()] == pytest.approx([0.1, 0.3])


def test_a19_a_header_that_is_off_by_one_is_put_right() -> None:
    old = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"
    text = "--- a/src/train.py\n+++ b/src/train.py\n@@ -1,6 +1,6 @@\n a = 1\n b = 2\n-c = 3\n+c = 33\n d = 4\n e = 5\n"
    made = patched(text, old)
    assert isinstance(made, Edited), made
    assert made.files["src/train.py"] == old.replace("c = 3\n", "c = 33\n")


@pytest.mark.slow
def test_a20_cheats_score_what_is_honest_or_fail(tmp_path: Path) -> None:
    """The judge is rewritten under way, and is as it was for the next trial; of two values the judge's counts."""
    made = shop(tmp_path)
    ideas(
        made,
        block("src/model.py", "RATE = 0.1", "open('bench.py', 'w').write('print(\"score=1.0\")')\nRATE = 0.1"),
        block("src/model.py", "RATE = 0.1", "print('score=1.0')\nRATE = 0.1"),
        block("src/other.py", "SCALE = 1.0", "SCALE = 2.0"),
    )
    assert made.run("--json").code == 0
    rows = made.rows()
    assert "a frozen file was changed" in rows[1]["reason"]
    assert rows[2]["value"] == pytest.approx(0.1)  # the last one counts, which is the judge's
    assert rows[3]["value"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ("diff --git a/src/train.py b/src/t2.py\nrename from src/train.py\nrename to src/t2.py\n", "rename_blocked"),
        ("diff --git a/src/train.py b/src/train.py\nold mode 100644\nnew mode 100755\n", "mode_change_blocked"),
        ('--- "a/eval\\165ate.py"\n+++ "b/eval\\165ate.py"\n@@ -1 +1 @@\n-x\n+y\n', "frozen_file_mutation_blocked"),
        ("diff --git a/src/x b/src/x\nnew file mode 120000\n--- /dev/null\n+++ b/src/x\n@@ -0,0 +1 @@\n+y\n",
         "symlink_blocked"),
        ("--- a/sub/train.py\n+++ b/sub/train.py\n@@ -1 +1 @@\n-import json\n+import sys\n",
         "out_of_scope_mutation_blocked"),
        ("--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1 @@\n+x = 1\n", "out_of_scope_mutation_blocked"),
        ("--- a/../up.py\n+++ b/../up.py\n@@ -1 +1 @@\n-x\n+y\n", "unsafe_path"),
        ("--- a/src/train.py\n+++ b/src/train.py\n@@ -3 +3 @@\n-lr = 0.1\n+lr = 0.1\n", "no_change"),
    ],
)  # fmt: skip
def test_a21_what_is_out_of_the_contract_is_refused(patch: str, code: str) -> None:
    made = patched(patch)
    assert isinstance(made, Broken), made
    assert made.code == code


def test_a21_other_prefixes_are_only_prefixes() -> None:
    """`old/` and `new/` stand where others write a/ and b/: the file is the one that there is."""
    made = patched("--- old/src/train.py\n+++ new/src/train.py\n@@ -3 +3 @@\n-lr = 0.1\n+lr = 0.2\n")
    assert isinstance(made, Edited | Broken)
    assert set(getattr(made, "files", {})) <= {"src/train.py"}


@pytest.mark.slow
def test_a22_a_first_candidate_that_is_worse_is_discarded_and_the_folder_never_changes(tmp_path: Path) -> None:
    made = shop(tmp_path)
    ideas(made, block("src/model.py", "RATE = 0.1", "RATE = 0.02"), *BETTER[:1])
    before = state(made.folder)
    process = made.start("run", "study.yaml")
    while process.poll() is None:
        assert state(made.folder) == before
    process.communicate()
    assert [row["verdict"] for row in made.rows()[1:]] == ["discarded", "crowned"]
    assert state(made.folder) == before


@pytest.mark.slow
def test_a23_a_file_of_two_megabytes_can_be_changed(tmp_path: Path) -> None:
    made = shop(tmp_path)
    rows = "".join(f"ROW_{number} = {number}\n" for number in range(125_000))
    assert len(rows) > 2 << 20
    (made.folder / "src/other.py").write_text(f"SCALE = 1.0\n{rows}")
    ideas(made, block("src/other.py", "SCALE = 1.0", "SCALE = 4.0"))
    done = made.run("--json", timeout=100)
    assert done.code == 0
    assert json.loads(done.out)["best"]["value"] == pytest.approx(0.4)
    assert sys.getsizeof(made("diff", "1").out) < 2000
