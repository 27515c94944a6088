"""Who proposes in which round: the baseline first, then what was asked for from outside, and else the search."""

from collections.abc import Sequence

from metaloop.flow import Flow, conclude
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.values import Params, Proposal, middle


def opening(search: Propose) -> Propose:
    """`search`, with baselines and directed rounds taken care of."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        match view.role:
            case "baseline":
                return conclude([baseline(view)])
            case "directed":
                return conclude([asked_for(view)])
            case "search":
                return search(view)
            case "proof" | "closing" | "holdout":
                return conclude([])  # they measure, and propose nothing

    return propose


def asked_for(view: View) -> Proposal:
    """The change that somebody asked for, or what their patch makes of the base."""
    request = view.request
    if request is None or not request.text:
        return Proposal(view.directed or Params({}), by="person")
    from metaloop.policies.code import edited  # of code studies alone

    values = dict(request.change.values) if request.change is not None else {}
    root = None if view.baseline is None else view.baseline.number
    return edited(view, request.text, "person", request.why, Params({}), root, values)


def baseline(view: View) -> Proposal:
    """What is compared with: as configured; a script that fails without parameters gets the middle of the space."""
    wanted = view.terms.baseline
    if view.terms.tournament is not None:
        return Proposal(Params({}), by="you", why="the document as it was given")
    if wanted.kind == "params":
        return Proposal(Params(dict(wanted.params)), by="baseline", why="the parameters given as baseline")
    if wanted.kind == "cmd":
        return Proposal(Params({}), by="baseline", why="the command given as baseline")
    baselines = (trial for trial in view.settled() if trial.role == "baseline")
    failed = next((trial for trial in baselines if trial.failed and not trial.gate), None)
    if failed is None or not view.space:
        return Proposal(Params({}), by="baseline", why="the script with no parameters")
    why = "the middle of the space, since the script gave no baseline without parameters"
    return Proposal(Params(middle(view.space)), by="baseline", why=why, fallback=f"trial {failed.number} failed")
