"""From the text of an edit to a proposal: a change of code that can be recorded, or a refusal that says why not."""

from collections.abc import Mapping, Sequence

from metaloop.edits.contract import Broken
from metaloop.edits.making import edit
from metaloop.flow import Flow, conclude
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.terms import PATCHES
from metaloop.values import Change, Params, Proposal, Refused, Scalar, changed, digest


def held(view: View, parent: Change, files: Mapping[str, str], values: dict[str, Scalar]) -> Change:
    """`parent` with these files written over its own, as a change of the base."""
    digests = parent.files | {path: digest(text.encode()) for path, text in files.items()}
    return changed(values, {path: name for path, name in digests.items() if view.base.get(path) != name})


def edited(
    view: View, text: str, by: str, why: str, parent: Change, number: int | None, values: dict[str, Scalar]
) -> Proposal:
    """What `text` makes of the parent's code, to run with `values`; refused, where that breaks the contract."""
    found = edit(text, view.code(parent), view.terms.contract, view.others)
    if isinstance(found, Broken):
        return Proposal(parent, by, why, number, refused=Refused(found.code, found.text))
    told = "; ".join(part for part in (why, *found.notes) if part)
    return proposed(view, found.files, by, told, parent, number, values)


def proposed(
    view: View,
    files: Mapping[str, str],
    by: str,
    why: str,
    parent: Change,
    number: int | None,
    values: dict[str, Scalar],
) -> Proposal:
    """The parent's code with these files written over it."""
    texts = {digest(content.encode()): content for content in files.values()}
    return Proposal(held(view, parent, files, values), by, why, number, texts=texts)


def patches() -> Propose:
    """Candidate patches from a folder, in the order of their names, each once: on what is best, where it applies there,
    else on the base. With the parameters of what is best.
    """

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        before = {
            trial.proposal.by.removeprefix("patches < ")  # whoever let us propose
            for trial in view.earlier()
            if not view.freed(trial.number)
        }
        names = (name for name in sorted(view.texts) if name.startswith(PATCHES))
        left = (name for name in names if f"patches: {name.removeprefix(PATCHES)}" not in before)
        if (name := next(left, None)) is None:
            return conclude(())
        made = _grown(view, f"patches: {name.removeprefix(PATCHES)}", view.texts[name])
        return conclude([next((one for one in made if one.refused is None), made[0])])

    return propose


def _grown(view: View, by: str, text: str) -> list[Proposal]:
    """On what is best, and on the base."""
    best, root = view.leader, view.baseline
    values = dict(best.change.values) if best is not None else {}
    if not text.strip("\ufeff \t\r\n"):
        empty = Refused("empty_proposal", f"{by.removeprefix('patches: ')} is empty, and no change")
        return [Proposal(Params({}), by, "", None if root is None else root.number, refused=empty)]
    made = [edited(view, text, by, "on the base", Params({}), None if root is None else root.number, values)]
    if best is not None and best.change.files:
        made.insert(0, edited(view, text, by, f"on trial {best.number}", best.change, best.number, values))
    return made
