"""A model that is recorded once and played for ever: no key, no network, the same replies."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from metaloop.adapters.cassettes import Take, record, secretless, takes
from metaloop.events import Reply
from metaloop.flow import Message, Prompt
from metaloop.roles import Model


class RecordedModel:
    """`roles.Model`: with a `model` it asks that one and appends each exchange to the cassette at `path`; without, it
    plays the cassette and asks nobody.

    Prompts are known by their digest: role, messages and schema. What was recorded for one digest is played in its
    order, each once; a prompt that is not there, or not that often, gets a fatal reply that names the nearest one.
    `in_order`: what was recorded is played in its order instead, whatever is asked: for replies that decide what is
    tried, and were given to prompts as these were then.
    `redact` is applied to all text that is written; by default what looks like a key, and the value of every variable
    that is named like one, is blotted out. A cassette that is played is read once, at the start.
    """

    def __init__(
        self,
        path: Path | str,
        model: Model | None = None,
        redact: Callable[[str], str] | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self._path, self._model, self._in_order = Path(path), model, in_order
        self._redact = secretless(os.environ) if redact is None else redact
        self._takes: list[Take] = [] if model else takes(self._path)
        self._played: Counter[str] = Counter()

    async def complete(self, prompt: Prompt) -> Reply:
        if self._model is not None:
            reply = await self._model.complete(prompt)
            record(self._path, prompt, reply, self._redact)
            return reply
        await asyncio.sleep(0)
        return self._play(prompt)

    def left(self) -> int:
        """How many exchanges of the cassette were not played yet."""
        return len(self._takes) - self._played.total()

    def _play(self, prompt: Prompt) -> Reply:
        if self._in_order and self.left():
            self._played["in order"] += 1
            return self._takes[self._played.total() - 1].reply
        digest = prompt.digest()
        recorded = [take.reply for take in self._takes if take.prompt == digest]
        if self._played[digest] == len(recorded):
            problem = f"no such prompt in {self._path}: {self._nearest(prompt, len(recorded))}"
            return Reply(None, finish="unknown", trouble="fatal", problem=problem)
        self._played[digest] += 1
        return recorded[self._played[digest] - 1]

    def _nearest(self, prompt: Prompt, recorded: int) -> str:
        """What a person needs who looks for the change that made a prompt unknown."""
        asked = _words(prompt.messages, self._redact)
        if recorded:
            return f"{prompt.digest()} was recorded {recorded} times, and is asked once more"
        alike = [take for take in self._takes if take.role == prompt.role]
        if not alike:
            roles = ", ".join(sorted({take.role for take in self._takes})) or "none"
            return f"{prompt.digest()} is of role {prompt.role!r}; roles there: {roles}"
        near = max(alike, key=lambda take: _common(asked, _words(take.messages)))
        words = _words(near.messages)
        if (at := _common(asked, words)) == len(asked) == len(words):
            return f"{prompt.digest()} has the words of {near.prompt}, and another schema, or words that were redacted"
        there, here = words[at : at + 40], asked[at : at + 40]
        return f"{near.prompt} is the nearest of role {prompt.role!r}: at character {at} it has {there!r}, not {here!r}"


def _words(messages: tuple[Message, ...], redact: Callable[[str], str] = str) -> str:
    return "\n".join(f"{message.role}: {redact(message.text)}" for message in messages)


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
