"""Whether a provider answers, takes the key and has the model: one GET for its list of models, which costs nothing."""

import asyncio

import msgspec

from metaloop.adapters.dialects import DIALECTS, complaint
from metaloop.adapters.models import address, headers
from metaloop.roles import Reached
from metaloop.terms import ModelSpec

SECONDS = 10.0
"""For connection and answer."""
MOST_LIST = 4 << 20
"""Bytes of a list at most."""


class _Model(msgspec.Struct):
    id: str


class _List(msgspec.Struct):
    data: list[_Model]


async def reach(spec: ModelSpec, key: str) -> Reached:
    """Asks once. Raises ModuleNotFoundError where the packages for models are not installed."""
    from metaloop.adapters import wire

    place = DIALECTS[spec.provider].models
    try:
        async with asyncio.timeout(SECONDS):
            response = await wire.get(address(spec).rstrip("/") + place, headers(spec, key), MOST_LIST)
    except TimeoutError:
        return Reached(0, problem=f"no answer in {SECONDS:g} s")
    except wire.Unreached as error:
        return Reached(0, problem=_hidden(str(error), key))
    status = response.status_code
    if status >= 300:
        said = response.headers.get("location") or complaint(response.content)[0]
        return Reached(status, problem=" ".join(_hidden(said, key).split())[:300])
    try:
        return Reached(status, tuple(model.id for model in msgspec.json.decode(response.content, type=_List).data))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Reached(status)


def _hidden(text: str, key: str) -> str:
    return text.replace(key, "[key]") if key else text
