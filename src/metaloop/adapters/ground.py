"""What of this machine matters to trials: secrets, caches, what programs are made of. Looks, and changes nothing."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".npmrc", ".pypirc"),
    *(".s3cfg", ".boto", ".pgpass", ".my.cnf", ".vault-token", ".databrickscfg", ".modal.toml", ".password-store"),
    *(".mozilla", ".thunderbird", ".terraform.d", ".claude", ".claude.json", ".codex", ".gemini", ".bash_history"),
    *(".zsh_history", ".python_history", ".local/share/keyrings", ".cargo/credentials", ".cargo/credentials.toml"),
    *(".config/gcloud", ".config/gh", ".config/hub", ".config/git/credentials", ".config/rclone", ".config/op"),
    *(".config/openai", ".config/anthropic", ".config/google-chrome", ".config/chromium", ".config/sops"),
)
"""What people keep in HOME that no trial has any business with."""

OURS = ("/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib64/", "/proc/", "/sbin/", "/sys/", "/usr/")
"""Where the system is: no cache lies there, whatever a variable says."""

PARTS = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "etc", "ssl", "pyvenv.cfg")
"""What programs are made of, where their folder holds more than that."""

KEEPING = ("HF_HOME", "TORCH_HOME", "KERAS_HOME", "MPLCONFIGDIR", "NLTK_DATA", "WANDB_DIR")
"""Variables that lead to a cache without saying so."""

PACKAGES = (".cache/uv", ".cache/pip", ".cache/pypoetry", ".cache/rattler", ".conda/pkgs")
"""Where in HOME installers keep packages: the files of environments may be the same, by hard links."""

SYSTEM = (Path("/"), Path("/usr"), Path("/usr/local"))
"""Where everybody's programs are: they are there anyway."""


def secrets(home: str) -> tuple[str, ...]:
    """Those of HOME that are there."""
    return tuple(str(path) for name in SECRETS if home and os.path.lexists(path := Path(home, name)))


def caches(home: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Where programs keep what may be used again: ~/.cache, and what variables with CACHE in their names, or KEEPING,
    lead to. None of it is the system's own, or holds HOME.
    """
    told = [env[name] for name in env if "CACHE" in name or name in KEEPING]
    found = (os.path.normpath(path) for path in (*([f"{home}/.cache"] if home else ()), *told))
    return tuple(dict.fromkeys(path for path in found if Path(path).is_dir() and _may_hold(path, home)))


def _may_hold(path: str, home: str) -> bool:
    above = path.rstrip("/") + "/"
    ours = any(above == folder or above.startswith(folder) for folder in OURS)
    return path.startswith("/") and above != "//" and not ours and not f"{home}/".startswith(above)


def packages(home: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Where installers keep packages."""
    told = (env[name] for name in ("UV_CACHE_DIR", "PIP_CACHE_DIR") if name in env)
    return tuple(path for path in (*(f"{home}/{name}" for name in PACKAGES if home), *told) if Path(path).is_dir())


def ours(home: str, places: Iterable[str]) -> tuple[str, ...]:
    """Folders where programs and modules are looked for, but for such as hold HOME; those of the system are there
    anyway.
    """
    found = dict.fromkeys(os.path.normpath(place) for place in places if place.startswith("/"))
    return tuple(path for path in found if Path(path).is_dir() and _may_hold(path, home))


def made_of(program: str, apart: Sequence[str], path: str = "") -> tuple[str, ...]:
    """What a program needs beside /usr: for each link on the way to it, the folder that its `bin` is in, or itself. Of
    a folder that holds one of `apart`, only what programs are made of. Of a script also its interpreter, which `env`
    finds in `path`.
    """
    folders = [Path(folder) for folder in apart if folder]
    found = [*_made_of(Path(program), folders)]
    if interpreter := _interpreter(Path(program), path):
        found += _made_of(Path(interpreter), folders)
    return tuple(dict.fromkeys(map(str, found)))


def _interpreter(script: Path, path: str) -> str:
    """What the first line of a script names; empty for what is none."""
    try:
        with script.open("rb") as file:
            first = file.readline(512)
    except OSError:
        return ""
    if not first.startswith(b"#!"):
        return ""
    words = [word for word in os.fsdecode(first[2:]).split() if word != "-S"]
    if len(words) > 1 and Path(words[0]).name == "env":
        return shutil.which(words[1], path=path) or ""
    return words[0] if words else ""


def _made_of(program: Path, apart: Sequence[Path]) -> Iterator[Path]:
    for _ in range(40):  # as many links as the system follows
        top = program.parent.parent
        if program.parent.name not in ("bin", "sbin") or top in SYSTEM:
            yield program
        elif top.name == ".local" or any(path.is_relative_to(top) for path in apart):
            yield from (top / part for part in PARTS if os.path.lexists(top / part))
        else:
            yield top
        yield from _homes(top)
        if not program.is_symlink():
            return
        program = Path(os.path.normpath(program.parent / program.readlink()))


def _homes(top: Path) -> Iterator[Path]:
    """Where the interpreter of a virtual environment is at home."""
    try:
        lines = (top / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for name, _, value in (line.partition("=") for line in lines):
        home = Path(value.strip()).parent
        if name.strip() == "home" and home.is_absolute() and home not in SYSTEM:
            yield home
