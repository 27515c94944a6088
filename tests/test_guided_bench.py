"""What was recorded for benchmarks/guided.py still plays: the same points, the same best."""

import runpy
from pathlib import Path

import pytest

from metaloop.testing import RecordedModel

pytest.importorskip("optuna")
BENCH = Path(__file__).parent.parent / "benchmarks" / "guided.py"


@pytest.mark.parametrize("seed", [0, 4])
def test_the_recorded_players_find_the_table_s_best(seed: int) -> None:
    """56.0512 is the least of its 1,800 losses; each of the twenty replies is used."""
    bench = runpy.run_path(str(BENCH))
    model = RecordedModel(bench["HERE"] / "data" / "guided" / f"boosting-{seed}.jsonl", in_order=True)
    played = bench["study"](bench["boosting"](), "guided", seed, model)
    assert played.best[-1] == 56.0512
    assert len(played.best) == 20
    assert not model.left()
