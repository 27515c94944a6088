"""The docs name what there is."""

import re
from pathlib import Path

import pytest

from metaloop import cli, events
from metaloop.jobs import job, parameters
from metaloop.studyfile import schema

ROOT = Path(__file__).parent.parent
STUDIES = (ROOT / "docs/studies.md").read_text()
DESIGN = (ROOT / "docs/design.md").read_text()
README = (ROOT / "README.md").read_text()


def keys() -> list[str]:
    sections = [name for name in schema.KEYS if name and "." not in name]
    return [
        f"{name}.{key}" if name not in ("baseline", "objectives") else name
        for name in sections
        for key in schema.KEYS[name]
    ]


@pytest.mark.parametrize("key", sorted(set(keys())))
def test_every_key_of_a_study_file_is_explained(key: str) -> None:
    assert f"`{key}`" in STUDIES


@pytest.mark.parametrize("verb", cli.ALL)
def test_every_verb_is_mentioned(verb: str) -> None:
    assert f"metaloop {verb}" in README + STUDIES or f"`{verb}`" in STUDIES


@pytest.mark.parametrize("fact", [kind.__name__ for kind in events.Event.__subclasses__()])
def test_every_fact_is_in_the_design(fact: str) -> None:
    assert fact in DESIGN


def test_every_variable_of_a_trial_is_explained() -> None:
    source = Path(job.__code__.co_filename).read_text()
    told = set(re.findall(r'"(METALOOP_\w+|OMP_\w+)"', source)) | {next(iter(parameters({})))}
    assert len(told) >= 7
    assert all(f"`{name}`" in STUDIES for name in told), told


def test_links_in_the_docs_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)
