"""Whether a document fits a JSON schema: what every version has to be, before a panel sees it."""

import json
from functools import lru_cache

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

MOST = 300
"""Characters of a reason at most."""


def unsound(schema: str) -> str:
    """Why a text is no JSON schema; empty where it is one."""
    try:
        _validator(schema)
    except jsonschema.SchemaError as error:
        return str(error.message)[:MOST]
    except (TypeError, AttributeError, KeyError, RecursionError, Unresolvable):
        return "expected an object with the keywords of one"
    except ValueError as error:
        return f"no JSON: {error}"
    return ""


def unfit(text: str, schema: str) -> str:
    """What is wrong with a document by this schema, the most telling first; empty where it fits. Nothing is fetched:
    a reference to elsewhere does not resolve, and then nothing fits.
    """
    try:
        document = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    try:
        worst = jsonschema.exceptions.best_match(_validator(schema).iter_errors(document))
    except (Unresolvable, RecursionError) as error:
        return f"a schema that cannot be followed: {error}"[:MOST]
    return "" if worst is None else f"at {worst.json_path}: {worst.message}"[:MOST]


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no number")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(held := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return held


@lru_cache(maxsize=4)
def _validator(schema: str) -> jsonschema.protocols.Validator:
    parsed = json.loads(schema)
    if not isinstance(parsed, dict | bool):
        raise TypeError("no schema")
    kind = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
    kind.check_schema(parsed)
    return kind(parsed, registry=Registry())
