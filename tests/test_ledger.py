"""The ledger on disk: nothing acknowledged is lost, nothing damaged is believed, and one controller holds it."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaloop.adapters.ledger import FILE, HEAD, controller, integrity, open_ledger, read_ledger, restore
from metaloop.errors import Damaged, StudyBusy, UsageError
from metaloop.events import Alerted, Entry, Finished, Started, decode, encode
from metaloop.values import Failed, Ran


def written(folder: Path, count: int = 50, checkpoint: bool = True) -> Path:
    """A ledger of `count` entries, closed as after an orderly end, or left with all of it in the -wal file."""
    ledger = open_ledger(folder)
    list(ledger.read())
    for number in range(count):
        ledger.append(float(number), Alerted(f"entry {number}"))
    if checkpoint:
        ledger.close()
        return folder
    os._exit(0)


def left_in_wal(folder: Path) -> None:
    """The same by a process that dies at once: the -wal file stays."""
    here = str(Path(__file__).parent)
    write = f"written(Path({str(folder)!r}), 50, False)"
    code = f"import sys; sys.path.insert(0, {here!r}); from test_ledger import *; {write}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    written(tmp_path / "s")
    entries = list(read_ledger(tmp_path / "s"))
    assert [entry.place for entry in entries] == list(range(1, 51))
    assert [entry.at for entry in entries] == [float(n) for n in range(50)]
    assert entries[7].event == Alerted("entry 7")


def test_a_second_controller_is_turned_away(tmp_path: Path) -> None:
    """A27: exit code 75, and nothing is written."""
    ledger = open_ledger(tmp_path / "s")
    with pytest.raises(StudyBusy, match=str(os.getpid())):
        open_ledger(tmp_path / "s")
    assert controller(tmp_path / "s") == os.getpid()
    ledger.close()
    assert controller(tmp_path / "s") is None
    open_ledger(tmp_path / "s").close()


def test_a_fact_that_may_stand_once_stands_once(tmp_path: Path) -> None:
    """The same attempt cannot finish twice, and a commit is all or nothing."""
    ledger = open_ledger(tmp_path / "s")
    ledger.append(0.0, Started(1, 0, 1, 0, "h"), Finished(1, 0, 1, Ran({"a": 1.0})))
    with pytest.raises(StudyBusy):
        ledger.append(0.0, Alerted("with it"), Finished(1, 0, 1, Failed("lost", "again")))
    ledger.close()
    assert len(list(read_ledger(tmp_path / "s"))) == 2


def test_the_ledger_is_append_only(tmp_path: Path) -> None:
    db = sqlite3.connect(written(tmp_path / "s") / FILE)
    for statement in ("update event set body = 0", "delete from event"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(statement)
    db.close()


def forced(path: Path, kind: str, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(f"drop trigger append_only_{kind}")
    db.execute(statement)
    db.commit()
    db.close()


def change_a_digit(path: Path) -> None:
    forced(path, "update", "update event set body = replace(body, 'entry 20', 'entry 21') where place = 21")


def remove_a_row(path: Path) -> None:
    forced(path, "delete", "delete from event where place = 21")


def cut_the_tail(path: Path) -> None:
    forced(path, "delete", "delete from event where place > 40")


def opened_and_read(folder: Path) -> None:
    ledger = open_ledger(folder)
    try:
        list(ledger.read())
    finally:
        ledger.close()


DAMAGE = {
    "a digit changed": change_a_digit,
    "a row removed": remove_a_row,
    "the tail cut": cut_the_tail,
    "half of the file gone": lambda path: os.truncate(path, path.stat().st_size // 2),
    "the header overwritten": lambda path: path.open("r+b").write(b"not a database" * 20),
    "an empty file": lambda path: os.truncate(path, 0),
    "no file": lambda path: path.unlink(),
    "another file": lambda path: path.write_text("hello"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ledger_is_refused_and_never_started_afresh(tmp_path: Path, damage: str) -> None:
    """Whatever the damage: exit code 6, for readers and for controllers, and not a byte is written."""
    folder = written(tmp_path / "s")
    DAMAGE[damage](folder / FILE)
    before = (folder / FILE).read_bytes() if (folder / FILE).exists() else None
    with pytest.raises(Damaged) as error:
        list(read_ledger(folder))
    assert str(folder / FILE) in str(error.value)
    with pytest.raises(Damaged):
        opened_and_read(folder)
    if before is not None and damage != "an empty file":
        assert (folder / FILE).read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ledger_is_restored_from_its_copy(tmp_path: Path, damage: str) -> None:
    """All of it, hashes checked; the damaged file stays; a sound ledger is left alone."""
    folder = written(tmp_path / "s")
    before = list(read_ledger(folder))
    with pytest.raises(UsageError, match="nothing to restore"):
        restore(folder)
    DAMAGE[damage](folder / FILE)
    assert restore(folder)[0] == 50
    assert list(read_ledger(folder)) == before
    opened_and_read(folder)


def test_a_copy_that_lags_or_is_torn_is_topped_up(tmp_path: Path) -> None:
    """It is never synced: after a power cut it may end anywhere, and the next start brings it up."""
    folder = written(tmp_path / "s")
    whole = (folder / "ledger.jsonl").read_bytes()
    for content in (b"", whole[:5000], whole[:-3], b"rubbish\n", b"\0" * 70_000):
        (folder / "ledger.jsonl").write_bytes(content)
        opened_and_read(folder)
        assert (folder / "ledger.jsonl").read_bytes() == whole


def test_a_copy_that_was_changed_restores_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path / "s")
    copy = (folder / "ledger.jsonl").read_text()
    (folder / "ledger.jsonl").write_text(copy.replace("entry 20", "entry 21"))
    DAMAGE["an empty file"](folder / FILE)
    with pytest.raises(UsageError, match="20 of the 50"):
        restore(folder)


def test_a_ledger_behind_its_copy_has_lost_its_tail(tmp_path: Path) -> None:
    """Also where the head is gone: the copy is a second witness, and brings the tail back."""
    folder = written(tmp_path / "s")
    before = list(read_ledger(folder))
    cut_the_tail(folder / FILE)
    (folder / HEAD).unlink()
    with pytest.raises(Damaged, match="its tail is lost"):
        opened_and_read(folder)
    assert restore(folder)[0] == 50
    assert list(read_ledger(folder)) == before


def test_a_tail_lost_with_the_wal_file_is_noticed(tmp_path: Path) -> None:
    """SQLite opens happily without its -wal file; the head record remembers what was there."""
    left_in_wal(tmp_path / "s")
    assert len(list(read_ledger(tmp_path / "s"))) == 50
    wal = tmp_path / "s" / f"{FILE}-wal"
    os.truncate(wal, wal.stat().st_size // 2)
    with pytest.raises(Damaged, match=r"tail is lost|damaged"):
        list(read_ledger(tmp_path / "s"))


def test_a_head_that_lags_or_is_torn_does_no_harm(tmp_path: Path) -> None:
    """It is never synced: after a power cut it may be old, or rubbish."""
    folder = tmp_path / "s"
    ledger = open_ledger(folder)
    list(ledger.read())
    ledger.append(0.0, Alerted("one"))
    old = (folder / HEAD).read_bytes()
    ledger.append(0.0, Alerted("two"))
    ledger.close()
    for content in (old, b"", b"\0" * 96, old[:30] + b"x" * 66):
        (folder / HEAD).write_bytes(content)
        assert len(list(read_ledger(folder))) == 2


def test_a_head_of_another_history_is_refused(tmp_path: Path) -> None:
    """Rows that were written anew, hashes and all, do not fit the head."""
    one, other = written(tmp_path / "a"), tmp_path / "b"
    ledger = open_ledger(other)
    for number in range(50):
        ledger.append(float(number), Alerted(f"other {number}"))
    ledger.close()
    (other / FILE).replace(one / FILE)
    with pytest.raises(Damaged):
        list(read_ledger(one))


def test_a_folder_without_a_study_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no study here"):
        list(read_ledger(tmp_path))
    with pytest.raises(UsageError, match="no study here"):
        open_ledger(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_readers_see_whole_commits_while_a_controller_writes(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    ledger = open_ledger(folder)
    for number in range(20):
        ledger.append(0.0, Alerted(f"{number} a"), Alerted(f"{number} b"))
        assert len(list(read_ledger(folder))) == 2 * (number + 1)
    assert integrity(folder) == "ok"
    ledger.close()


def test_a_crash_while_it_is_made_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """An empty file without a head is a ledger that never began."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / FILE).touch()
    written(tmp_path / "s", 3)
    assert len(list(read_ledger(tmp_path / "s"))) == 3


@settings(max_examples=50)
@given(st.text(), st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
def test_what_is_encoded_is_decoded(text: str, metrics: dict[str, float]) -> None:
    event = Finished(1, 2, 3, Ran(metrics, warnings=(text,)), exit=0, output={text: text})
    entry = Entry(7, 0.1, 1e9, event)
    assert decode(encode(entry)) == entry


MAKER = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.executescript("pragma cache_size = 1; begin; create table event(body text)")
db.executemany("insert into event values(?)", [("x" * 4000,)] * 100)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_ledger_whose_maker_was_killed_is_empty_and_not_damaged(tmp_path: Path) -> None:
    """Also while a rollback journal lies beside it, which a reader may not clear away; the next controller does."""
    subprocess.run([sys.executable, "-c", MAKER, str(tmp_path / FILE)], check=False)
    assert (tmp_path / f"{FILE}-journal").stat().st_size
    assert list(read_ledger(tmp_path)) == []
    opened_and_read(tmp_path)
    assert list(read_ledger(tmp_path)) == []
