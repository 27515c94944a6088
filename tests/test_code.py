"""Code as what is proposed: changes of a base, judged by what comes of them; grown from what is best."""

import re

import pytest

from metaloop.audit import audit
from metaloop.config import prompt_files, thought_of
from metaloop.study import Study, fold
from metaloop.terms import Baseline, Bounds, ModelSpec, Terms
from metaloop.testing import Crash, Lab, Machine, ScriptedModel
from metaloop.values import Edit, Objective, Params, Range

PROMPTS = {path.stem: path.read_text(encoding="utf-8") for path in prompt_files()}
BASE = {"src/train.py": "LR = 0.1\nSTEPS = 1\n"}


def runs(files, values, _):
    """`LR` of the candidate's code, plus x."""
    names: dict[str, float] = {}
    exec({**BASE, **files}["src/train.py"], names)
    return f"score={names['LR'] * names['STEPS'] + values.get('x', 0)!r}"


def patch(old: str, new: str, path: str = "src/train.py") -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,9 +1,9 @@\n-{old}\n+{new}\n"


def lab(patches: dict[str, str], trials: int = 9, policy: str = "patches", model=None, space=None, **terms) -> Lab:
    made = Terms("t", Objective("score", "max"), ("train",), policy, space or {}, baseline=Baseline(repeats=1),
        mutable=("src/**",), frozen={"evaluate.py": "0"}, **terms)  # fmt: skip
    texts = PROMPTS | {f"patch/{name}": text for name, text in patches.items()}
    machine = Machine(lambda *_: "", runs=runs)
    bounds = Bounds(trials, no_improve_limit=0, failure_rate_limit=1.0, models={"proposer": ModelSpec("m")})
    return Lab(made, thought_of(made), machine, bounds, texts=texts, files=BASE, model=model)


def ended(lab: Lab) -> Study:
    lab.session()
    assert not list(audit(lab.entries, thought_of))
    return fold(lab.entries)


PATCHES = {
    "1-better": patch("LR = 0.1", "LR = 0.2"),
    "2-worse": patch("LR = 0.2", "LR = 0.05"),
    "3-frozen": patch("x", "y", "evaluate.py"),
    "4-same": patch("LR = 0.2", "LR = 0.2"),
    "5-again": patch("STEPS = 1", "STEPS = 3"),
    "6-broken": patch("STEPS = 3", "STEPS = ("),
}


def test_patches_are_tried_in_their_order_each_on_what_is_best_by_then() -> None:
    """Two improve; what breaks the contract is refused with its code, and never runs."""
    study = ended(lab(PATCHES))
    told = {n: t.refusal.code if t.refusal else t.verdict for n, t in study.trials.items() if n}
    assert [told[number] for number in range(1, 7)] == [
        "crowned", "discarded", "frozen_file_mutation_blocked", "no_change", "crowned", "syntax_error",
    ]  # fmt: skip
    best = study.incumbent
    assert best is not None
    assert isinstance(best.change, Edit)
    assert study.overlay(best.change) == {"src/train.py": "LR = 0.2\nSTEPS = 3\n"}
    assert best.proposal.parent == 1
    assert best.score.value == pytest.approx(0.6)
    assert study.trials[6].proposal.by == "patches: 6-broken"


def test_a_patch_that_does_not_fit_what_is_best_is_tried_on_the_base() -> None:
    """And the trial says so."""
    study = ended(lab({"1": patch("LR = 0.1", "LR = 0.2"), "2": patch("LR = 0.1", "LR = 0.9")}))
    assert study.overlay(study.trials[2].change) == {"src/train.py": "LR = 0.9\nSTEPS = 1\n"}
    assert study.trials[2].proposal.why.startswith("on the base")
    assert study.incumbent is study.trials[2]


def test_what_comes_to_the_same_files_is_one_candidate() -> None:
    """Whatever the patches look like: the second is a duplicate."""
    way = "src/train.py\n<<<<<<< SEARCH\nLR = 0.1\n=======\nLR = 0.05\n>>>>>>> REPLACE\n"
    study = ended(lab({"1": patch("LR = 0.1", "LR = 0.05"), "2": way}))
    assert study.trials[2].refusal is not None
    assert study.trials[2].refusal.code == "duplicate"


@pytest.mark.parametrize("crash", range(0, 18, 2))
def test_a_code_study_that_dies_comes_out_the_same(crash: int) -> None:
    """Before or after any append; contents are in the ledger once."""
    whole, broken = lab(PATCHES), lab(PATCHES)
    expected = ended(whole)
    with pytest.raises(Crash):
        broken.session(crash)
    again = ended(broken)
    assert {n: t.change for n, t in again.trials.items()} == {n: t.change for n, t in expected.trials.items()}
    assert again.contents == expected.contents


def test_parameters_and_code_are_one_candidate() -> None:
    """The same values with other files are another candidate."""
    files = {"a": "0"}
    keys = {Params({"x": 1.0}).key(), Edit({"x": 1.0}, files).key(), Edit({}, files).key(), Params({}).key()}
    assert len(keys) == 4


# ---- a model writes edits --------------------------------------------------------------------------------------------


def block(old: str, new: str, path: str = "src/train.py") -> str:
    return f"{path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def test_a_model_changes_the_code_of_what_is_best() -> None:
    """It sees the files as they are there, what each trial changed, and why; a worse change is not built on."""
    asked: list[str] = []

    def script(prompt):
        text = prompt.messages[1].text
        asked.append(text)
        now = re.search(r"LR = (\S+)", text)[1]
        return f"WHY: from {now} up\n\n" + block(
            f"LR = {now}", f"LR = {round(float(now) + (-0.05, 0.1)[len(asked) % 2], 2)}"
        )

    study = ended(lab({}, 4, "llm_diff", ScriptedModel(script)))
    assert [study.trials[n].verdict for n in range(1, 5)] == ["crowned", "discarded", "crowned", "discarded"]
    assert study.overlay(study.incumbent.change) == {"src/train.py": "LR = 0.3\nSTEPS = 1\n"}
    assert study.trials[3].proposal.parent == 1
    assert study.trials[3].proposal.by == "llm_diff: scripted"
    assert "2 | src/train.py +1 -1, from trial 1 | score = 0.15 in one run: no better | from 0.2 up" in asked[2]
    assert "as trial 1 has them" in asked[2]


def test_what_breaks_the_contract_goes_back_and_is_refused_in_the_end() -> None:
    """The correction names the reason; three times the same is a refused trial, which costs no run."""
    corrections: list[str] = []

    def script(prompt):
        corrections.extend(message.text for message in prompt.messages[2:] if message.role == "user")
        return "WHY: cheat\n" + block("x", "y", "evaluate.py")

    study = ended(lab({}, 1, "llm_diff", ScriptedModel(script)))
    assert study.trials[1].refusal.code == "frozen_file_mutation_blocked"
    assert len(corrections) == 3  # one after the first reply, two after the second
    assert all("evaluate.py" in text and "was not counted" in text for text in corrections)
    assert not study.trials[1].runs


def test_a_change_that_was_tried_goes_back() -> None:
    """With the number of the trial that had it."""
    told: list[str] = []

    def script(prompt):
        told.append(prompt.messages[-1].text)
        new = 0.05 if len(told) < 3 else 0.07
        return "WHY: down\n" + block("LR = 0.1", f"LR = {new}")

    study = ended(lab({}, 2, "llm_diff", ScriptedModel(script)))
    assert "trial 1 had this very code" in told[2]
    assert study.overlay(study.trials[2].change)["src/train.py"].startswith("LR = 0.07")


def test_a_change_that_was_waited_for_is_put_on_what_is_best_by_then() -> None:
    """Asked for ahead, from the base; when the reply comes, another trial leads, and both changes are in the next."""
    edits = iter([block("LR = 0.1", "LR = 0.2"), block("STEPS = 1", "STEPS = 2")])
    texts: list[str] = []

    def script(prompt):
        texts.append(prompt.messages[1].text)
        return f"WHY: on\n{next(edits)}"

    study = ended(lab({}, 2, "llm_diff", ScriptedModel(script, seconds=0.05)))
    assert "LR = 0.1\n" in texts[1]  # it had not seen the first
    assert study.overlay(study.trials[2].change) == {"src/train.py": "LR = 0.2\nSTEPS = 2\n"}
    assert study.trials[2].proposal.parent == 1


# ---- parameters and edits by turns -----------------------------------------------------------------------------------


def test_a_hybrid_study_passes_through_its_phases() -> None:
    """Parameters, edits after a stall, parameters after failed edits, edits again. Parameters keep the best's code."""
    edits = {
        "1": patch("LR = 0.1", "LR = 0.9"),
        "2": patch("nothing", "x"),
        "3": patch("nothing", "y"),
        "4": patch("nothing", "z"),
        "5": patch("STEPS = 1", "STEPS = 2"),
    }
    study = ended(
        lab(edits, 20, "hybrid", space={"x": Range(0.0, 1e-3)}, arms=("random", "patches"),
            knobs={"explore": 4, "stall": 3, "failures": 3}, seed=1)
    )  # fmt: skip
    arms = "".join(study.trials[n].proposal.by[0] for n in sorted(study.trials) if n)
    assert re.fullmatch(r"r{4,}p{4,}r{3,}p.*", arms), arms
    first = arms.index("p") + 1
    assert study.trials[first].change.values == study.trials[study.trials[first].beat].change.values
    later = [study.trials[n] for n in range(first + 1, 21) if study.trials[n].proposal.by == "random"]
    assert later
    assert all("LR = 0.9" in study.overlay(trial.change)["src/train.py"] for trial in later)
