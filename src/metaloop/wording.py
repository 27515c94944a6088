"""How prompts are put together: templates filled, texts cut, and what others wrote kept apart from what we say."""

import re

from metaloop.study import View

TEXT = 16_000
"""Characters at most of the task, and of the source."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def fill(template: str, **parts: str) -> str:
    """`template` with each {name} that is given put in, once: what is put in is not looked at again."""
    names = "|".join(map(re.escape, parts))
    text = re.sub(r"\{\{(.*?)\}\}|\{(" + names + r")\}", lambda m: _part(m, parts), template)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _part(match: re.Match[str], parts: dict[str, str]) -> str:
    if match[2] is not None:
        return parts[match[2]]
    return "{" + parts.get(match[1], match[1]) + "}"


def plain(text: str, most: int) -> str:
    """`text` on one line, without control characters, and no longer than `most`."""
    line = " ".join(CONTROL.sub(" ", text).split())
    return line if len(line) <= most else line[: most - 1] + "\u2026"


def cut(text: str, most: int = TEXT) -> str:
    """`text`, or its beginning and its end where it is longer than `most`."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


# ---- of documents ----------------------------------------------------------------------------------------------------


def task(view: View) -> str:
    """What the document is for."""
    return f"# The task\n\n{cut(view.texts.get('task', ''))}"


def truth(view: View) -> str:
    """The facts that the document is held to, where there are any."""
    told = view.texts.get("truth", "")
    return f"What is known, and what every claim has to be held against:\n\n{version('facts', told)}" if told else ""


def version(label: str, text: str) -> str:
    """A text between marks, so that nothing in it is taken for ours."""
    return f"<{label}>\n{text.strip(chr(10))}\n</{label}>"
