"""Remedies: for each signature one bundle of edits of the harness, all of which apply or none. Pure data.

A bundle that changes nothing (a temperature that is at its top already) is void: there is nothing to try.
"""

from collections.abc import Callable, Mapping

from metaloop.ballots import margin, quorum
from metaloop.diagnose import Signature
from metaloop.harness import TOURNAMENT, Edit, Harness, Setting, changed
from metaloop.values import Value

WARMER = 0.1
"""A step of temperature."""

CRITIC_LENSES = ("claims that do not hold", "what a reader cannot act on", "what is missing", "what contradicts itself")
JUDGE_LENSES = (
    "whether its claims hold", "whether its reader could act on it", "whether it is clear, and no longer than it needs",
    "what it leaves out", "how it is built",
)  # fmt: skip

NO_PARAPHRASE = "no_paraphrase"


class Mechanism(Value, frozen=True):
    """A remedy for a signature: its edits, and what it is meant to do."""

    signature: Signature
    name: str
    what: str
    edits: tuple[Edit, ...]


def mechanism(signature: Signature, harness: Harness) -> Mechanism | None:
    """The remedy for what was diagnosed, as edits of this harness; None where it is void."""
    name, what, wanted = BUNDLES[signature]
    edits = changed(harness, wanted(harness))
    return Mechanism(signature, name, what, edits) if edits else None


def _number(harness: Harness, knob: str, otherwise: float) -> float:
    value = harness.values.get(knob)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def _warmer(harness: Harness) -> dict[str, Setting]:
    """One step more freedom for the author; nothing where it is at the top of its range, or is not set at all."""
    knob = "models.author.temperature"
    if harness.values.get(knob) is None:
        return {}
    return {knob: TOURNAMENT[knob].clamped(_number(harness, knob, 0.0) + WARMER)}


def _scaled_margin(harness: Harness) -> int:
    """2 at three judges, and as many for each judge in a larger panel."""
    return margin(int(_number(harness, "tournament.judges.count", 3)))


def _to_the_document() -> dict[str, Setting]:
    return {"tournament.tie_order": ("A", "B", "AB")}


def _harder(harness: Harness) -> dict[str, Setting]:
    lenses = harness.values.get("tournament.critic.lenses")
    return {
        "tournament.critic.mode": "hard",
        "tournament.critic.lenses": lenses or CRITIC_LENSES,
        "tournament.critic.lens_rotation": "round",
        **_warmer(harness),
    }


def _apart(harness: Harness) -> dict[str, Setting]:
    lenses = harness.values.get("tournament.judges.lenses")
    return {"tournament.judges.lenses": lenses or JUDGE_LENSES, "tournament.judges.dissent_slot": True}


def _anew(harness: Harness) -> dict[str, Setting]:
    held = harness.values.get("tournament.author.constraints")
    texts = held if isinstance(held, tuple) else ()
    return {"tournament.author.constraints": tuple(dict.fromkeys((*texts, NO_PARAPHRASE))), **_warmer(harness)}


def _steadier(harness: Harness) -> dict[str, Setting]:
    k = max(1, int(_number(harness, "tournament.k", 2)) - 1)
    return {"tournament.margin": _scaled_margin(harness), **_to_the_document(), "tournament.k": k}


def _more_judges(harness: Harness) -> dict[str, Setting]:
    return {**_panel(harness, 7), **_to_the_document()}


def _both_orders(harness: Harness) -> dict[str, Setting]:
    return {"tournament.judges.order": "both", **_panel(harness, 5)}


def _panel(harness: Harness, count: int) -> dict[str, Setting]:
    """So many judges at least, with the quorum and the margin that belong to as many, where there was one."""
    now = int(_number(harness, "tournament.judges.count", 3))
    most = max(now, count)
    led = int(_number(harness, "tournament.margin", 0))
    scaled = {"tournament.margin": margin(most)} if led and led == margin(now) else {}
    return {"tournament.judges.count": most, "tournament.judges.quorum": quorum(most), **scaled}


def _heard(harness: Harness) -> dict[str, Setting]:
    judges = int(_number(harness, "tournament.judges.count", 3))
    needed = int(_number(harness, "tournament.judges.quorum", quorum(judges)))
    retries = int(_number(harness, "tournament.judges.retries", 1))
    return {
        "tournament.judges.strict_ballot": True,
        "tournament.judges.retries": TOURNAMENT["tournament.judges.retries"].clamped(retries + 1),
        "tournament.judges.quorum": min(judges, needed + 1),
    }


def _scoped(harness: Harness) -> dict[str, Setting]:
    return {"tournament.scope_note": True, "tournament.margin": _scaled_margin(harness)}


def _longer(harness: Harness) -> dict[str, Setting]:
    """Twice the tokens, for every role that writes texts and has a limit."""
    knobs = (f"models.{role}.max_tokens" for role in ("author", "synthesizer", "critic"))
    limits = {knob: _number(harness, knob, 0.0) for knob in knobs}
    return {knob: TOURNAMENT[knob].clamped(2 * limit) for knob, limit in limits.items() if limit}


BUNDLES: Mapping[Signature, tuple[str, str, Callable[[Harness], Mapping[str, Setting]]]] = {
    "premature_convergence": ("harder_critic", "a critic that tries every claim, by another lens each pass", _harder),
    "judge_herding": ("judges_apart", "a lens for each judge, and one who makes the case of the minority", _apart),
    "candidate_collapse": ("no_paraphrase", "an author who may not say the same in other words", _anew),
    "oscillation": (
        "steadier_document",
        "a document that only a clear lead unseats, and fewer wins to hold",
        _steadier,
    ),
    "position_bias": ("more_judges", "seven judges, so that places even out", _more_judges),
    "order_effect": ("both_orders", "every judge asked in both orders", _both_orders),
    "judge_failure": ("strict_ballot", "judges who are told first what counts, and asked again", _heard),
    "synthesis_drift": ("scope", "authors who have to answer for growth, and a lead to unseat the document", _scoped),
    "truncation": ("longer_replies", "twice the tokens for those whose texts were cut off", _longer),
}
"""By signature: the bundle's name, what it is meant to do, and what it sets."""
