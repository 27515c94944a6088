"""The log on disk: one SQLite file a study, written by the one who holds the lease, and checked by everyone who reads.

    FOLDER/ledger.sqlite   rows (place, body, hash), each hash over the one before and the body: a changed row is seen
    FOLDER/head            place and hash of the newest commit, overwritten unsynced: it may lag, never lead, so that
                           a ledger that ends before it has lost its tail
    FOLDER/ledger.jsonl    the same rows as text (`twin.py`): what a damaged ledger is restored from
    FOLDER/lock            held by flock for as long as a controller lives

A damaged ledger is refused, whatever the damage; it is never repaired in silence and never started afresh. Not covered:
someone who rewrites rows, hashes and head together.
"""

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from metaloop.adapters.twin import FILE as COPY
from metaloop.adapters.twin import Row, Twin, rows
from metaloop.errors import Damaged, LedgerError, StudyBusy, UsageError
from metaloop.events import Entry, Event, decode, encode, once

FORMAT = 1
FILE, HEAD, LOCK = "ledger.sqlite", "head", "lock"
_WIDTH = 96
_SCHEMA = """
create table event(place integer primary key, body text not null, hash text not null, once text unique);
create trigger append_only_update before update on event begin select raise(abort, 'the ledger is append-only'); end;
create trigger append_only_delete before delete on event begin select raise(abort, 'the ledger is append-only'); end;
"""


class SqliteLedger:
    """The ledger of one study, open for appending. Made by `open_ledger`; implements `roles.Ledger`."""

    def __init__(self, folder: Path, db: sqlite3.Connection, lock: int) -> None:
        self.folder, self._db, self._lock = folder, db, lock
        self._head = os.open(folder / HEAD, os.O_RDWR | os.O_CREAT, 0o644)
        self.place, self._hash = 0, ""
        self._path = str(folder / FILE)
        self._file = _identity(self._path)
        self._twin = Twin(folder)

    def read(self, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        """The entries in order, every hash checked on the way. Raises Damaged."""
        end = 0, ""
        for entry, link in verified(self._db, self.folder):
            end = entry.place, link
            if entry.place > after and (upto is None or entry.place <= upto):
                yield entry
        self.place, self._hash = end  # not before: who stops reading half-way may still append
        _check_head(self.folder, self.place, self._db)
        if self._twin.place != self.place:
            self._top_up()

    def _top_up(self) -> None:
        """Brings the copy up to the ledger. One that is ahead of it knows of entries that the ledger has lost."""
        if self._twin.place > self.place:
            raise _lost(self.folder, self.place, self._twin.place)
        query = "select place, body, hash, once from event where place > ? order by place"
        self._twin.append(self._db.execute(query, (self._twin.place,)).fetchall())
        self._twin.place = self.place

    def append(self, at: float, *events: Event) -> Sequence[Entry]:
        """One commit, synced before this returns. Raises LedgerError; then the state on disk is unknown: open again."""
        if _identity(self._path) != self._file:
            raise LedgerError(f"{self.folder / FILE}: it was deleted or replaced while the study ran; put it back")
        unix, link, entries = time.time(), self._hash, []
        new: list[Row] = []
        for place, event in enumerate(events, self.place + 1):
            entry = Entry(place, at, unix, event)  # type: ignore[arg-type]  # an Event is one of the facts
            body = encode(entry)
            link = chain(link, body)
            new.append((place, body.decode(), link, once(event)))
            entries.append(entry)
        try:
            self._db.execute("begin immediate")
            self._db.executemany("insert into event values(?, ?, ?, ?)", new)
            self._db.execute("commit")
        except sqlite3.IntegrityError as error:
            self._undo()
            raise StudyBusy(f"{self.folder}: another controller has written to this study; this one ends") from error
        except sqlite3.Error as error:
            self._undo()
            raise LedgerError(
                f"{self.folder / FILE}: cannot append: {error}; nothing recorded is lost: "
                "free space or make the folder writable, then run the same command again"
            ) from error
        self.place, self._hash = self.place + len(new), link
        self._twin.append(new)
        with contextlib.suppress(OSError):  # it may lag
            os.pwrite(self._head, _head(self.place, link), 0)
        return entries

    def _undo(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("rollback")

    def close(self) -> None:
        """Gives the lease back."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._twin.close()
        os.close(self._head)
        os.close(self._lock)


def open_ledger(folder: Path, *, create: bool = True) -> SqliteLedger:
    """Takes the lease of the study in `folder`. `create`: the folder and an empty ledger, if there are none.

    Raises StudyBusy where another controller holds it, UsageError where there is no study, LedgerError or Damaged.
    """
    if not create and not (folder / FILE).exists() and not (folder / HEAD).exists():
        raise UsageError(f"{folder}: no study here; expected {FILE} in it: start one with `metaloop run FILE`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.parent.name == ".metaloop" and not (ignored := folder.parent / ".gitignore").exists():
            ignored.write_text("*\n", encoding="utf-8")  # nothing in there is the user's to commit
        lock = _lease(folder)
    except OSError as error:
        raise LedgerError(
            f"{folder}: cannot keep a study here: {error.strerror}; choose another place: --dir"
        ) from error
    try:
        if not (folder / FILE).exists():
            _refuse_empty(folder)
        return SqliteLedger(folder, _connect(folder / FILE), lock)
    except BaseException:
        os.close(lock)
        raise


def read_ledger(folder: Path) -> Iterator[Entry]:
    """The entries of a study, for a reader: takes no lease, never writes, and may run while a controller appends."""
    path = folder / FILE
    if not path.exists():
        _refuse_empty(folder)
        raise UsageError(f"{folder}: no study here; expected {FILE} in it: start one with `metaloop run FILE`")
    with _refusing(path), contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        db.execute("pragma busy_timeout = 10000")
        if _version(db) == 0:
            _refuse_empty(folder)
            return
        db.execute("begin")  # one snapshot for rows and head
        place = 0
        for entry, _ in verified(db, folder):
            place = entry.place
            yield entry
        _check_head(folder, place, db)


def _version(db: sqlite3.Connection) -> int:
    """0 where nothing is in the file yet: also where who made it was killed while SQLite still kept a rollback journal,
    which no reader may clear away. The next controller does.
    """
    try:
        return int(db.execute("pragma user_version").fetchone()[0])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        return 0


def controller(folder: Path) -> int | None:
    """The process that holds the study's lease, or None."""
    try:
        with open(folder / LOCK, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or b"0")
    except (OSError, ValueError):
        pass
    return None


# ---- checking --------------------------------------------------------------------------------------------------------


def chain(link: str, body: bytes) -> str:
    """The hash of a row: over the hash of the row before, and its own body."""
    return hashlib.sha256(link.encode() + body).hexdigest()


def verified(db: sqlite3.Connection, folder: Path) -> Iterator[tuple[Entry, str]]:
    """Rows in order with their hashes, each checked against the one before. Raises Damaged at the first that is not."""
    link, expected = "", 1
    with _refusing(folder / FILE):
        for place, body, stored in db.execute("select place, cast(body as blob), hash from event order by place"):
            link = chain(link, body)
            if place != expected or link != stored:
                what = f"entry {expected} is missing" if place != expected else f"entry {place} was changed"
                raise _damaged(folder, f"{what} (its hash does not fit)")
            expected += 1
            yield _decode(folder, place, body), link


def integrity(folder: Path) -> str:
    """SQLite's own full check: `ok`, or what it found."""
    try:
        with contextlib.closing(sqlite3.connect(f"{(folder / FILE).absolute().as_uri()}?mode=ro", uri=True)) as db:
            return str(db.execute("pragma integrity_check").fetchone()[0])
    except sqlite3.Error as error:
        return str(error)


def _decode(folder: Path, place: int, body: bytes) -> Entry:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise LedgerError(
            f"{folder / FILE}: entry {place} is of a kind this version does not know ({error}); "
            "use the version of metaloop that wrote it, or a newer one"
        ) from error


def _check_head(folder: Path, place: int, db: sqlite3.Connection) -> None:
    head = _read_head(folder)
    if head is None:
        return
    if head[0] > place:
        # A reader may see a head that is newer than its snapshot: only a ledger that is shorter now has lost its tail.
        with contextlib.suppress(sqlite3.Error):
            db.execute("commit")
        newest = db.execute("select max(place) from event").fetchone()[0] or 0
        if head[0] > newest:
            raise _lost(folder, newest, head[0])
    row = db.execute("select hash from event where place = ?", (head[0],)).fetchone()
    if row is not None and row[0] != head[1]:
        raise _damaged(folder, f"entry {head[0]} is not the one that was written")


def _damaged(folder: Path, what: str) -> Damaged:
    return Damaged(f"{folder / FILE}: ledger damaged: {what}; to restore it: metaloop restore {folder}")


def _lost(folder: Path, place: int, held: int) -> Damaged:
    return _damaged(folder, f"it ends at entry {place} and held {held}, its tail is lost")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (at every commit)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _refuse_empty(folder: Path) -> None:
    """A file without rows is new only where no head remembers any."""
    if (head := _read_head(folder)) is not None:
        what = "is empty" if (folder / FILE).exists() else "is gone"
        raise _damaged(folder, f"it {what} and held {head[0]} entries")


def _head(place: int, link: str) -> bytes:
    line = f"{place} {link}"
    return f"{line} {hashlib.sha256(line.encode()).hexdigest()[:8]}".ljust(_WIDTH - 1).encode() + b"\n"


def _read_head(folder: Path) -> tuple[int, str] | None:
    """None where there is none, or one that a power cut tore: it is a witness, and not the truth."""
    try:
        place, link, check = (folder / HEAD).read_bytes()[:_WIDTH].split()
        if hashlib.sha256(place + b" " + link).hexdigest()[:8].encode() == check:
            return int(place), link.decode()
    except (OSError, ValueError):
        pass
    return None


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turns what SQLite says of a broken file into our refusal."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _damaged(path.parent, str(error)) from error


# ---- restoring -------------------------------------------------------------------------------------------------------


def restore(folder: Path) -> tuple[int, Path]:
    """Puts a ledger made of its copy in the place of the damaged one: how many entries, and where the old file went.

    Takes the lease. Raises UsageError where the ledger is sound, or where the copy does not reach what the head says.
    """
    lock = _lease(folder)
    try:
        kept: list[Row] = []
        link = ""
        for row in rows(folder):
            link = chain(link, row[1].encode())
            if row[0] != len(kept) + 1 or link != row[2]:
                break
            kept.append(row)
        with contextlib.suppress(LedgerError):
            entries = sum(1 for _ in read_ledger(folder))
            if entries >= len(kept):  # a copy that knows of more: the tail was lost, and the head with it
                raise UsageError(f"{folder / FILE}: sound, with {entries} entries: there is nothing to restore")
        head = _read_head(folder)
        if not kept or (head is not None and len(kept) < head[0]):
            held = f"{len(kept)} of the {head[0]} entries" if head and kept else "nothing that can be used"
            raise UsageError(f"{folder / COPY}: holds {held}: restore {FILE} from a backup of your own")
        return len(kept), _replace(folder, kept)
    finally:
        os.close(lock)


def _replace(folder: Path, kept: Sequence[Row]) -> Path:
    """The new file is whole before the old one goes; the old one stays, under another name."""
    draft, old = folder / f"{FILE}.new", folder / f"{FILE}.damaged"
    draft.unlink(missing_ok=True)
    with contextlib.closing(_connect(draft, fresh=True)) as db:
        db.execute("begin immediate")
        db.executemany("insert into event values(?, ?, ?, ?)", kept)
        db.execute("commit")
        db.execute("pragma wal_checkpoint(truncate)")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{FILE}{suffix}").replace(folder / f"{old.name}{suffix}")
    draft.replace(folder / FILE)
    (folder / HEAD).write_bytes(_head(kept[-1][0], kept[-1][2]))
    return old


# ---- opening ---------------------------------------------------------------------------------------------------------


def _lease(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StudyBusy(
            f"{folder}: another controller holds this study (process {holder}); "
            "look at it with `metaloop status`, or wait until it ends"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _connect(path: Path, *, fresh: bool = False) -> sqlite3.Connection:
    with _refusing(path):
        try:
            db = sqlite3.connect(path, isolation_level=None, timeout=30)
            db.execute("pragma busy_timeout = 30000")
            version = db.execute("pragma user_version").fetchone()[0]
            if version == 0 and not fresh:
                _refuse_empty(path.parent)
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = full")
            if version == 0:
                _create(path, db)
        except sqlite3.OperationalError as error:
            raise LedgerError(
                f"{path}: cannot open the ledger: {error}; is there space, and may it be written?"
            ) from error
    if version > FORMAT:
        raise LedgerError(f"{path}: written by a newer metaloop (format {version}, this one knows {FORMAT}): update it")
    return db


def _create(path: Path, db: sqlite3.Connection) -> None:
    """All of it or nothing, so that a crash here leaves a file that the next start takes for new."""
    db.executescript(f"begin immediate; {_SCHEMA} pragma user_version = {FORMAT}; commit;")
    for folder in (path.parent, path.parent.parent):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
