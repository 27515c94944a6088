"""What import-linter cannot see: dice in thought are seeded, and nothing there opens a file.

The layers themselves are contracts in `pyproject.toml` (`make check`).
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
EFFECTS = {"open", "input", "print", "exec", "eval", "compile", "breakpoint", "__import__"}


def thought() -> list[Path]:
    """The files of the modules that the contract `pure` names."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (names,) = (contract["source_modules"] for contract in contracts if contract["id"] == "pure")
    places = [SOURCE / Path(*name.split(".")) for name in names]
    return sorted(
        file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")])
    )


def unseeded(tree: ast.AST) -> Iterator[str]:
    """Every use of `random` but `from random import Random` and `Random(seed)`; each as `line: what`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if any(name.name.split(".")[0] == "random" for name in names):
                yield f"{node.lineno}: import random"
            case ast.ImportFrom(module="random", names=names) if [(n.name, n.asname) for n in names] != [
                ("Random", None)
            ]:
                yield f"{node.lineno}: from random import {', '.join(name.name for name in names)}"
            case ast.Call(func=ast.Name(id="Random"), args=[]):
                yield f"{node.lineno}: Random() without a seed"


def effects(tree: ast.AST) -> Iterator[str]:
    """Every call of a builtin that reads, writes or runs something; each as `line: what`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in EFFECTS:
                yield f"{node.lineno}: {name}()"


@pytest.mark.parametrize("file", thought(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_thought_has_seeded_dice_and_no_effects(file):
    """The same study and the same replies lead to the same thought: nothing else may have a say."""
    tree = ast.parse(file.read_text())
    assert [*unseeded(tree), *effects(tree)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import random as dice",
        "from random import Random, random",
        "from random import Random as R",
        "def f():\n    from random import shuffle",
        "from random import Random\nRandom().random()",
    ],
)
def test_dice_without_a_seed_are_found(source):
    """The check above can fail."""
    assert list(unseeded(ast.parse(source)))


def test_seeded_dice_are_welcome():
    """`Random(f"{seed}/{round}")`, made where it is used."""
    assert not list(unseeded(ast.parse("from random import Random\ndice = Random('0/7')")))


@pytest.mark.parametrize("source", ["open('x')", "print(1)", "def f():\n    return eval('1')"])
def test_effects_are_found(source):
    """The check above can fail."""
    assert list(effects(ast.parse(source)))
