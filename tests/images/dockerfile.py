"""Reads a Dockerfile into stages and instructions; knows nothing of what they should be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FROM = re.compile(r"(?P<base>\S+)(?:\s+AS\s+(?P<name>\S+))?$")


@dataclass(frozen=True)
class Instruction:
    """One instruction, its lines joined."""

    word: str
    rest: str


@dataclass
class Stage:
    """What stands below one FROM."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        """What follows each `word`, in order."""
        return [each.rest for each in self.instructions if each.word == word]


@dataclass(frozen=True)
class Dockerfile:
    """Every stage by its name, and the arguments before the first."""

    arguments: dict[str, str]
    stages: dict[str, Stage]

    def line(self, name: str) -> list[Stage]:
        """A stage and those it is built on, the first one first."""
        stage = self.stages[name]
        before = self.line(stage.base) if stage.base in self.stages else []
        return [*before, stage]

    def last(self, name: str, word: str) -> str:
        """What an image of this stage has of an instruction of which the last one counts."""
        return [rest for stage in self.line(name) for rest in stage.all(word)][-1]

    def entry_point(self, name: str) -> list[str]:
        """The ENTRYPOINT in its exec form."""
        return json.loads(self.last(name, "ENTRYPOINT"))

    def ports(self, name: str) -> set[int]:
        """All that EXPOSE names."""
        exposed = (rest for stage in self.line(name) for rest in stage.all("EXPOSE"))
        return {int(port) for rest in exposed for port in rest.split()}


def read_dockerfile(path: Path) -> Dockerfile:
    """The stages of this file."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for each in _instructions(path.read_text()):
        if each.word == "FROM":
            found = _FROM.fullmatch(each.rest)
            assert found, each.rest
            stages.append(Stage(found["name"] or "", found["base"]))
        elif stages:
            stages[-1].instructions.append(each)
        else:
            name, _, value = each.rest.partition("=")
            arguments[name] = value
    return Dockerfile(arguments, {stage.name: stage for stage in stages})


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    for whole in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = whole.strip().partition(" ")
        yield Instruction(word.upper(), " ".join(rest.split()))
