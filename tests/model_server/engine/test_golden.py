"""Stories told to the scheduler, one per file in golden/, with the steps it answers with.

A file is comments (the plot), a line of limits, and blocks: commands, `----`, what they print,
an empty line. Commands: `add ID prompt=1,2 max_tokens=3 [stop=7] [score_from=1] [seed=9]`,
`cancel ID`, `launch` (schedule a step and launch it), `commit` (the oldest step in flight),
`state`, and `finish` (launch, commit, launch ... to the end). The runner is the arithmetic fake.
Rewrite the answers with REWRITE_GOLDEN=1, and read the difference.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from model_server.engine.limits import EngineLimits
from model_server.engine.registry import new_sequence
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.running.ops import Pending
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import Row, Sampling, Step, StepResult
from tests.model_server.engine.fake_runner import FakeRunner
from tests.model_server.engine.trace import check_conserved, check_step

STORIES = Path(__file__).parent / "golden"


def test_the_scheduler_tells_every_story() -> None:
    told = {path.name: path.read_text() for path in sorted(STORIES.glob("*.txt"))}
    heard = {name: retell(story) for name, story in told.items()}
    if os.environ.get("REWRITE_GOLDEN"):
        for name, story in heard.items():
            (STORIES / name).write_text(story)
    assert told
    assert heard == told


def retell(story: str) -> str:
    """The same file with the answers of today's scheduler."""
    stage: Stage | None = None
    lines: list[str] = []
    answering = False
    for line in story.splitlines():
        answering = answering and bool(line)
        if answering:
            continue
        lines.append(line)
        if line.startswith("limits "):
            stage = Stage(EngineLimits(**{key: int(x) for key, x in pairs(line).items()}))
        elif line == "----":
            assert stage, "a story begins with its limits"
            lines += stage.take_printed()
            answering = True
        elif line and not line.startswith("#"):
            assert stage, "a story begins with its limits"
            stage.play(line)
    assert stage
    check_conserved(stage.scheduler)
    return "\n".join(lines) + "\n"


def pairs(line: str) -> dict[str, str]:
    return dict(word.split("=") for word in line.split() if "=" in word)


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


class Stage:
    """A scheduler and a fake runner that write down what happens."""

    def __init__(self, limits: EngineLimits) -> None:
        self.scheduler = Scheduler(limits)
        self._runner = FakeRunner(limits)
        self._in_flight: deque[tuple[Step, Pending[list[StepResult]]]] = deque()
        self._printed: list[str] = []

    def take_printed(self) -> list[str]:
        printed, self._printed = self._printed, []
        return printed

    def play(self, line: str) -> None:
        command, *words = line.split()
        if command == "add":
            self._add(int(words[0]), pairs(line))
        elif command == "cancel":
            self.scheduler.cancel(int(words[0]))
        else:
            {"launch": self._launch, "commit": self._commit}.get(command, self._other)(command)

    def _add(self, id: int, words: dict[str, str]) -> None:
        seed = int(words.get("seed", 0))
        score_from = words.get("score_from")
        engine_request = EngineRequest(
            prompt=ids(words["prompt"]),
            sampling=Sampling(float(seed > 0), 0, 1.0, seed),
            max_tokens=int(words.get("max_tokens", score_from is None)),
            stop_ids=frozenset(ids(words.get("stop", ""))),
            score_from=int(score_from) if score_from else None,
        )
        self.scheduler.add(new_sequence(id, engine_request, self.scheduler.limits))

    def _launch(self, _: str = "") -> None:
        step = self.scheduler.schedule()
        if step is None:
            self._printed.append("nothing to launch")
            return
        check_step(self.scheduler.limits, step)
        self._in_flight.append((step, self._runner.launch(step)))
        self._printed.append(f"step {step.number}")
        self._printed += [
            f"  slot {s.slot} samples {_sampling(s.sampling)}" for s in step.samplings
        ]
        for grant in step.grants:
            pages = ",".join(map(str, grant.pages))
            self._printed.append(f"  slot {grant.slot} pages[{grant.first}:] = {pages}")
        self._printed += [f"  {_row(row)}" for row in step.rows]

    def _commit(self, _: str = "") -> None:
        step, pending = self._in_flight.popleft()
        updates = self.scheduler.commit(step, pending.result()[0])
        self._printed.append(f"commit {step.number}")
        self._printed += [f"  {_update(update)}" for update in updates]

    def _other(self, command: str) -> None:
        if command == "state":
            s = self.scheduler.load()
            self._printed.append(
                f"running {s.running}, waiting {s.waiting}, slots used {s.slots_used}, "
                f"pages used {s.pages_used}, preemptions {s.preemptions}"
            )
            return
        assert command == "finish", f"no such command: {command}"
        while self.scheduler.load().live or self._in_flight:
            self._launch()
            if len(self._in_flight) > 1 or not self.scheduler.load().live or self._stuck():
                self._commit()

    def _stuck(self) -> bool:
        return self._printed[-1] == "nothing to launch"


def _row(row: Row) -> str:
    what = "decode" if row.is_decode else f"prefill {','.join(map(str, row.tokens))}"
    text = f"{row.sequence} in slot {row.slot} at {row.start}: {what}"
    if row.targets:
        text += f", scores {','.join(map(str, row.targets))}"
    return text + (", yields" if row.yields else "")


def _update(update: SequenceUpdate) -> str:
    result = update.result
    text = f"{update.sequence}:"
    if result.token is not None:
        text += f" token {result.token}"
    if result.target_logprobs:
        text += " scores " + " ".join(f"{score:.3f}" for score in result.target_logprobs)
    return text + (f", {update.finish}" if update.finish else "")


def _sampling(sampling: Sampling) -> str:
    return "greedily" if sampling.temperature == 0 else f"with seed {sampling.seed}"
