"""Programs of the last start: loaded without tracing, and compiled again where that is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from model_server.engine.compiling import COMPILED_HERE
from model_server.loading.compile_watch import CompileWatch
from model_server.programs.last_start import LastStart, MadeProgram, read_start, write_start
from model_server.programs.start_programs import StartPrograms
from tests.model_server.programs.made_here import answer, lowered

NAMES = ("times 3", "times 5")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "starts" / "model.programs"


@pytest.fixture
def watch() -> Iterator[CompileWatch]:
    watch = CompileWatch()
    yield watch
    watch.stop()


def untraced() -> NoReturn:
    raise AssertionError("it was traced")


def started(
    path: Path, key: str = "key", lower: Callable[[int], Callable[[], Any]] | None = None
) -> dict[str, list[int]]:
    """What each program of one start answers."""
    start = StartPrograms(path, key, NAMES, COMPILED_HERE, "m")
    lower = lower or (lambda factor: lambda: lowered(factor))
    made = {name: start.compiled(name, lower(int(name[-1]))) for name in NAMES}
    start.keep(start.seconds or (0.5,))
    return {name: answer(program) for name, program in made.items()}


RIGHT = {"times 3": [0, 3, 6, 9], "times 5": [0, 5, 10, 15]}


def test_the_next_start_traces_nothing_and_answers_the_same(path: Path) -> None:
    assert started(path) == RIGHT
    kept = read_start(path)
    assert started(path, lower=lambda _: untraced) == RIGHT
    assert read_start(path).programs == kept.programs


def test_another_key_traces_and_finds_the_programs_by_their_text(
    path: Path, watch: CompileWatch
) -> None:
    started(path)
    low = {factor: lowered(factor) for factor in (3, 5)}
    with watch.loading() as compiles:
        start = StartPrograms(path, "other", NAMES, COMPILED_HERE, "m")
        made = [start.compiled(name, lambda name=name: low[int(name[-1])]) for name in NAMES]
        start.keep((0.5,))
    assert str(compiles) == "nothing"
    assert [answer(each) for each in made] == list(RIGHT.values())
    assert started(path, "other", lambda _: untraced) == RIGHT


def test_a_program_that_has_changed_is_compiled_and_kept_in_place_of_the_old_one(
    path: Path,
) -> None:
    started(path)
    other = {"times 3": [0, 6, 12, 18], "times 5": [0, 10, 20, 30]}
    assert started(path, "other", lambda factor: lambda: lowered(2 * factor)) == other
    assert started(path, "other", lambda _: untraced) == other


def test_damaged_and_foreign_files_are_told_once_and_rebuilt(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started(path)
    whole = path.read_bytes()
    junk = {name: MadeProgram("text", b"junk") for name in NAMES}
    for harm in (
        lambda: path.write_bytes(whole[:-1]),
        lambda: path.write_bytes(b"something else"),
        lambda: path.write_bytes(b""),
        lambda: write_start(path, LastStart("key", junk)),
    ):
        harm()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert started(path) == RIGHT
        # Of this module alone: a model of another test may still be watched for compiles.
        told = [each for each in caplog.records if each.name == StartPrograms.__module__]
        assert len(told) == 1, caplog.text
        assert started(path, lower=lambda _: untraced) == RIGHT


def test_programs_that_do_not_run_are_forgotten_and_compiled_by_the_next_start(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StartPrograms(path, "key", NAMES, COMPILED_HERE, "m").forget()  # there are none
    assert "a program does not run" not in caplog.text
    started(path)
    StartPrograms(path, "key", NAMES, COMPILED_HERE, "m").forget()
    assert "a program does not run" in caplog.text
    assert not path.exists()


def test_what_steps_took_is_known_only_if_every_program_is_the_last_ones(path: Path) -> None:
    started(path)
    same, other = (StartPrograms(path, key, NAMES, COMPILED_HERE, "m") for key in ("key", "other"))
    assert same.seconds == (), "not all were asked for"
    for start in (same, other):
        for name in NAMES:
            start.compiled(name, lambda name=name: lowered(int(name[-1])))
    assert same.seconds == (0.5,)
    assert other.seconds == ()


def test_steps_are_measured_in_three_starts_and_believed_from_then_on(path: Path) -> None:
    for measured in (0.5, 0.3, 0.4):
        assert not _start_that(path, measured).is_measured
    kept = path.read_bytes()
    assert _start_that(path, 0.1).is_measured
    assert path.read_bytes() == kept, "nothing is written by a start that measures nothing"
    assert not _start_that(path, 0.5, key="another machine").is_measured
    assert not _start_that(path, 0.5, key="another machine").is_measured


def _start_that(path: Path, measured: float, key: str = "key") -> StartPrograms:
    """Run a start until its steps could be measured; keep what it measured."""
    before = StartPrograms(path, key, NAMES, COMPILED_HERE, "m")
    start = StartPrograms(path, key, NAMES, COMPILED_HERE, "m")
    for each in (before, start):
        for name in NAMES:
            each.compiled(name, lambda name=name: lowered(int(name[-1])))
    start.keep((measured,))
    return before


def test_what_cannot_be_written_is_served_all_the_same(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("a file in the way")
    assert started(path) == RIGHT
    assert "its programs are not kept" in caplog.text


def test_programs_of_other_names_and_second_ones_of_a_name_are_not_kept(path: Path) -> None:
    start = StartPrograms(path, "key", ["times 3"], COMPILED_HERE, "m")
    for name, factor in (("times 3", 3), ("times 3", 7), ("times 9", 9)):
        program = start.compiled(name, lambda factor=factor: lowered(factor))
        assert answer(program) == [0, factor, 2 * factor, 3 * factor]
    start.keep(())
    assert list(read_start(path).programs) == ["times 3"]


@pytest.fixture
def warm_cache(tmp_path: Path) -> Iterator[None]:
    """jax's cache holds the programs: XLA:CPU cannot serialise one that was read from it."""
    names = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in names}

    def turn(values: dict[str, Any]) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    turn(names)
    for factor in (3, 5):
        lowered(factor).compile()
    yield
    turn(before)


def test_what_jax_has_in_its_cache_is_compiled_once_more_and_kept(
    path: Path, warm_cache: None
) -> None:
    assert started(path) == RIGHT
    assert started(path, lower=lambda _: untraced) == RIGHT
    assert jax.config.values["jax_enable_compilation_cache"], "it is on again"


def made_fused() -> Callable[[jax.Array], Any]:
    """A new function of the same program: XLA:CPU makes a kernel of it, which a bad copy lacks."""

    def fused(x: jax.Array) -> Any:
        return {"product": jnp.cumsum(jnp.where(x > 0, 3 * x, 0))}

    return fused


def test_what_this_process_has_read_from_jaxs_cache_is_compiled_once_more_and_kept(
    path: Path, warm_cache: None
) -> None:
    jax.jit(made_fused()).lower(jnp.arange(4)).compile()
    fused = made_fused()

    def lower() -> jax.stages.Lowered:
        return jax.jit(fused).lower(jnp.arange(4))

    lower().compile()  # read from the cache, and given again to whoever compiles this function
    start = StartPrograms(path, "key", ["fused"], COMPILED_HERE, "m")
    assert answer(start.compiled("fused", lower)) == [0, 3, 9, 18]
    start.keep(())
    again = StartPrograms(path, "key", ["fused"], COMPILED_HERE, "m")
    assert answer(again.compiled("fused", untraced)) == [0, 3, 9, 18]
