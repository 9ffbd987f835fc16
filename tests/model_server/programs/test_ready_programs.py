"""Programs out of a set, and compiled where the set does not help."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from msgspec.structs import replace

from model_server.engine.compiling import COMPILED_HERE
from model_server.loading.compile_watch import CompileWatch
from model_server.multihost.programs import (
    KeptPrograms,
    ProgramFiles,
    ReceivedPrograms,
    SharedPrograms,
)
from model_server.programs.ready_programs import ReadyPrograms
from tests.model_server.programs.made_here import answer, entry_of, lowered, write_set


@pytest.fixture
def watch() -> Iterator[CompileWatch]:
    watch = CompileWatch()
    yield watch
    watch.stop()


def ready(place: Path, *factors: int, sax: str = "1 (abc)") -> ReadyPrograms:
    return ReadyPrograms(*write_set(place, *factors), sax)


def test_a_program_of_the_set_runs_without_compiling(
    tmp_path: Path, watch: CompileWatch, caplog: pytest.LogCaptureFixture
) -> None:
    of_set = ready(tmp_path, 3, 5)
    programs = of_set.over(COMPILED_HERE)
    low = {factor: lowered(factor) for factor in (3, 5)}
    with watch.loading() as compiles:
        three = programs.compiled("times 3", lambda: low[3])
        five = programs.compiled("times 5", lambda: low[5])
    assert str(compiles) == "nothing"
    assert answer(three) == [0, 3, 6, 9]
    assert answer(five) == [0, 5, 10, 15]
    with caplog.at_level(logging.INFO):
        of_set.tell("steps")
    assert (
        f"all 2 programs of its steps were read from {tmp_path}: none was compiled" in caplog.text
    )


def test_another_program_of_the_same_name_is_compiled_and_told(
    tmp_path: Path, watch: CompileWatch, caplog: pytest.LogCaptureFixture
) -> None:
    of_set = ready(tmp_path, 3, sax="2 (def)")
    with watch.loading() as compiles:
        program = of_set.over(COMPILED_HERE).compiled("times 3", lambda: lowered(4))
    assert compiles.count("jit(<lambda>)") == 1
    assert answer(program) == [0, 4, 8, 12]
    of_set.tell("steps")
    assert "0 programs were read from" in caplog.text
    assert "1 compiled (times 3); made by sax 1 (abc), this server is 2 (def)" in (caplog.text)


@pytest.mark.parametrize(("end", "words"), [(b"", "bytes of"), (b"?", "is damaged")])
def test_a_damaged_program_is_named_and_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: bytes, words: str
) -> None:
    of_set = ready(tmp_path, 3)
    (file,) = tmp_path.glob("*.program")
    file.write_bytes(file.read_bytes()[:-1] + end)
    program = of_set.over(COMPILED_HERE).compiled("times 3", lambda: lowered(3))
    assert answer(program) == [0, 3, 6, 9]
    assert file.name in caplog.text
    assert words in caplog.text


def test_a_whole_file_that_is_no_program_is_named_and_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, manifest = write_set(tmp_path, 3)
    (made,) = manifest.programs
    junk = entry_of(made.name, made.text, b"junk")
    folder.add(junk.file, b"junk")
    of_set = ReadyPrograms(folder, replace(manifest, programs=(junk,)), "1 (abc)")
    program = of_set.over(COMPILED_HERE).compiled("times 3", lambda: lowered(3))
    assert answer(program) == [0, 3, 6, 9]
    assert f"{junk.file} cannot be loaded here" in caplog.text


def test_values_that_are_called_otherwise_are_another_program(tmp_path: Path) -> None:
    of_set = ready(tmp_path, 3)
    other = jax.jit(lambda x: {"tripled": x * 3}).lower(jnp.arange(4))
    program = of_set.over(COMPILED_HERE).compiled("times 3", lambda: other)
    assert list(program(jnp.arange(4))) == ["tripled"]


def test_the_primary_sends_the_bytes_of_the_set_to_the_other_hosts(tmp_path: Path) -> None:
    sent: dict[str, bytes | None] = {}
    kept = KeptPrograms(ProgramFiles(tmp_path / "kept"), "salt")
    of_set = ready(tmp_path / "set", 3)
    programs = of_set.over(SharedPrograms(kept, sent.__setitem__))
    programs.compiled("times 3", lambda: lowered(3))
    (file,) = (tmp_path / "set").glob("*.program")
    assert sent == {"times 3": file.read_bytes()}
    assert not (tmp_path / "kept").exists()
    received = ReceivedPrograms()
    received.put("times 3", sent["times 3"])
    assert answer(received.compiled("times 3", lambda: lowered(3))) == [0, 3, 6, 9]
