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
    except ValueError as error:
        return f"no JSON: {error}"
    return ""


def unfit(text: str, schema: str) -> str:
    """What is wrong with a document by this schema, the most telling first; empty where it fits. Nothing is fetched:
    a reference to elsewhere does not resolve, and then nothing fits.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    try:
        worst = jsonschema.exceptions.best_match(_validator(schema).iter_errors(document))
    except (Unresolvable, RecursionError) as error:
        return f"a schema that cannot be followed: {error}"[:MOST]
    return "" if worst is None else f"at {worst.json_path}: {worst.message}"[:MOST]


@lru_cache(maxsize=4)
def _validator(schema: str) -> jsonschema.protocols.Validator:
    parsed = json.loads(schema)
    kind = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
    kind.check_schema(parsed)
    return kind(parsed, registry=Registry())
