"""A picture of a command in a terminal: runs it on a pseudo-terminal and draws the last screen as SVG.

python docs/tools/picture.py docs/demo.svg 118 44 metaloop demo /tmp/metaloop-demo
"""

import os
import pty
import select
import struct
import sys
from fcntl import ioctl
from html import escape
from pathlib import Path
from termios import TIOCSWINSZ

COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#79c0ff"}
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
CELL, LINE, MARGIN = 8.4, 19.0, 18.0


def ran(columns: int, rows: int, command: list[str]) -> str:
    """What the command wrote to a terminal of this size."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    ioctl(fd, TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    out = b""
    while True:
        select.select([fd], [], [])
        try:
            chunk = os.read(fd, 1 << 16)
        except OSError:
            break
        out += chunk
    os.waitpid(pid, 0)
    return out.decode(errors="replace")


def screen(text: str) -> list[list[tuple[str, str]]]:
    """Lines of (letter, style), after carriage returns, erasures and colours."""
    lines: list[list[tuple[str, str]]] = [[]]
    column, style, at = 0, "", 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\n":
            lines.append([])
            column = 0
        elif letter == "\r":
            column = 0
        elif letter == "\x1b" and text[at : at + 1] == "[":
            end = next(i for i in range(at + 1, len(text)) if text[i].isalpha())
            code, kind, at = text[at + 1 : end], text[end], end + 1
            if kind == "m":
                style = "" if code in ("", "0") else code
            elif kind == "K":
                lines[-1] = [] if code == "2" else lines[-1][:column]
        else:
            row = lines[-1]
            row += [(" ", "")] * (column + 1 - len(row))
            row[column] = (letter, style)
            column += 1
    return lines


def svg(lines: list[list[tuple[str, str]]], columns: int) -> str:
    width, height = columns * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'viewBox="0 0 {width:.0f} {height:.0f}"><title>metaloop demo in a terminal</title>',
        '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
        f'<g font-family="{FONT}" font-size="14" fill="#c9d1d9">',
    ]
    for number, row in enumerate(lines):
        y = MARGIN + LINE * (number + 0.75)
        start = 0
        while start < len(row):
            style = row[start][1]
            end = start
            while end < len(row) and row[end][1] == style:
                end += 1
            words = "".join(letter for letter, _ in row[start:end])
            codes = style.split(";")
            colour = next((f' fill="{COLOURS[code]}"' for code in codes if code in COLOURS), "")
            weight = ' font-weight="bold"' if "1" in codes else ""
            x, length = MARGIN + start * CELL, (end - start) * CELL
            if words.strip():
                words = escape(words).replace(" ", "\u00a0")  # no viewer folds these
                out.append(f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}"{colour}{weight}>{words}</text>')
            start = end
    return "\n".join([*out, "</g></svg>", ""])


if __name__ == "__main__":
    target, columns, rows, *command = sys.argv[1:]
    written = screen(ran(int(columns), int(rows), command))
    while written and not written[-1]:
        written.pop()
    prompt = [(letter, "1") for letter in "$ " + " ".join(["metaloop", *command[1:2]])]
    Path(target).write_text(svg([prompt, *written], int(columns)))
