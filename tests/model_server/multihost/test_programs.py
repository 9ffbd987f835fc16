"""Programs that one host compiles for all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.multihost.programs import (
    KeptPrograms,
    ProgramFiles,
    ReceivedPrograms,
    SharedPrograms,
)
from sax.errors import Cancelled

# What is compiled here is written to files or sent to other hosts.
pytestmark = pytest.mark.usefixtures("compiled_anew")


class Lowered:
    """Lowers a product with a factor, and counts how often."""

    def __init__(self, factor: int = 3) -> None:
        self.count = 0
        self._factor = factor

    def __call__(self) -> Any:
        self.count += 1
        return jax.jit(lambda x: x * self._factor).lower(jnp.arange(4))


def answer(program: Any) -> list[int]:
    return np.asarray(program(jnp.arange(4))).tolist()


def test_what_the_primary_compiles_runs_elsewhere_without_compiling(tmp_path: Path) -> None:
    sent: dict[str, bytes | None] = {}
    primary = SharedPrograms(KeptPrograms(ProgramFiles(tmp_path), "salt"), sent.__setitem__)
    assert answer(primary.compiled("a", Lowered())) == [0, 3, 6, 9]
    received, lower = ReceivedPrograms(), Lowered()
    received.put("a", sent["a"])
    assert answer(received.compiled("a", lower)) == [0, 3, 6, 9]
    assert lower.count == 0


def test_a_program_that_was_kept_is_not_compiled_again(tmp_path: Path) -> None:
    first: dict[str, bytes | None] = {}
    again: dict[str, bytes | None] = {}
    kept = KeptPrograms(ProgramFiles(tmp_path), "s")
    SharedPrograms(kept, first.__setitem__).compiled("a", Lowered())
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(listener := _listener(compiled))
    try:
        shared = SharedPrograms(kept, again.__setitem__)
        assert answer(shared.compiled("a", Lowered())) == [0, 3, 6, 9]
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert not compiled
    assert again == first  # the very bytes: a program that was read is not serialised again


def _listener(compiled: list[str]) -> Any:
    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    return listen


def test_another_machine_or_another_program_is_another_file(tmp_path: Path) -> None:
    files = ProgramFiles(tmp_path)
    for number, (salt, factor) in enumerate([("salt", 3), ("salt 2", 3), ("salt", 4)], 1):
        KeptPrograms(files, salt).compiled("a", Lowered(factor))
        assert len(list(tmp_path.iterdir())) == number


def test_a_damaged_file_is_compiled_anew(tmp_path: Path) -> None:
    files = ProgramFiles(tmp_path)
    KeptPrograms(files, "salt").compiled("a", Lowered())
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"not a program")
    assert answer(KeptPrograms(files, "salt").compiled("a", Lowered())) == [0, 3, 6, 9]
    assert file.read_bytes() != b"not a program"


def test_a_host_that_is_sent_none_compiles_itself() -> None:
    received, lower = ReceivedPrograms(), Lowered()
    received.put("a", None)
    assert answer(received.compiled("a", lower)) == [0, 3, 6, 9]
    assert lower.count == 1


def test_a_host_waits_for_a_program_until_the_load_is_given_up() -> None:
    received = ReceivedPrograms()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            received.compiled("a", Lowered())
        except Cancelled as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    received.put("b", None)
    assert waiting.is_alive()
    received.close()
    waiting.join(60)
    assert len(ended) == 1


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = KeptPrograms(ProgramFiles(tmp_path / "file"), "salt")
    assert answer(kept.compiled("a", Lowered())) == [0, 3, 6, 9]
