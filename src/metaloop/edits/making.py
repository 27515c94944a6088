"""A proposal's text, read, put in its places and judged: all of it, or nothing."""

from collections.abc import Collection, Mapping

from metaloop.edits.contract import (
    FAULTS,
    NOTES,
    TOLD,
    Broken,
    Contract,
    Edited,
    bounded,
    broken,
    in_bytes,
    listed,
    shown,
)
from metaloop.edits.judged import judge
from metaloop.edits.paths import Files
from metaloop.edits.placing import Desk
from metaloop.edits.reading import Reader


def edit(text: str, before: Mapping[str, str], contract: Contract, others: Collection[str] = ()) -> Edited | Broken:
    """What `text` makes of the files `before`. `others`: paths that exist too, whose text is of no interest.

    Never raises; same arguments, same answer. No path outside of the contract is ever in the result.
    """
    if (size := in_bytes(text)) > contract.most:
        return Broken("too_large", f"expected a proposal of at most {contract.most} bytes, found {size}")
    if not text.strip("\ufeff \t\r\n"):
        return Broken("empty_proposal", f"expected an edit, found an empty text. {_WANTED}")
    files = Files(before, others, contract)
    reader = Reader(text, files)
    reader.read()
    desk = Desk(files, contract, reader.faults)
    for part in reader.parts or desk.unnamed(reader.unnamed):
        if len(desk.faults) >= FAULTS:
            break
        desk.take(part)
    if desk.faults:
        return broken(desk.faults)
    if not desk.drafts:
        return Broken("not_an_edit", bounded(_nothing(text, reader, files), TOLD))
    after = {**before, **desk.texts()}
    if refusal := judge(before, after, contract, others):
        return refusal
    if reader.parts and reader.unnamed:
        desk.notes.append(f"blocks without a path that were not read: {len(reader.unnamed)}")
    changed = {path: after[path] for path in desk.drafts if after[path] != before.get(path)}
    return Edited(changed, tuple(bounded(note, 300) for note in list(dict.fromkeys(desk.notes))[:NOTES]))


_WANTED = (
    "Send a unified diff; or for each change the file's path on a line and then a block of <<<<<<< SEARCH, lines of "
    "the file, =======, the new lines, >>>>>>> REPLACE; or a whole file in a fence that is opened with ```language path"
)


def _nothing(text: str, reader: Reader, files: Files) -> str:
    """Why no edit was found."""
    if reader.unnamed:
        text = "expected a path for each block, found a block without one"
        return f"{text}; files that may be changed: {listed(files.mutable)}. {_WANTED}"
    after = " after the thinking" if reader.thought else ""
    return f"expected an edit{after}, found none in a text that begins '{shown(text.strip()[:60])}'. {_WANTED}"
