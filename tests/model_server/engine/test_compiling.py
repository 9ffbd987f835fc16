"""Programs that are compiled ahead are there, once each, when they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from model_server.engine.compiling import CompiledAhead


class Compiler:
    """Programs that are text; counts how often each was made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.passed: list[str] = []
        self.release = threading.Event()

    def compiled(self, name: str, lower: Callable[[], Any]) -> Any:
        assert self.release.wait(60)
        self.made.append(name)
        return f"{name}: {lower()}"

    def pass_on(self, name: str, body: bytes) -> None:
        self.passed.append(name)


def ahead_of(lowers: dict[str, Any], compiler: Compiler) -> CompiledAhead:
    return CompiledAhead(lowers, compiler)


def text(name: str) -> Callable[[], Any]:
    return lambda: name


def test_all_are_compiled_while_nobody_asks_and_none_twice() -> None:
    compiler = Compiler()
    ahead = ahead_of({"a": lambda: "A", "b": lambda: "B", "c": lambda: "C"}, compiler)
    compiler.release.set()
    assert [ahead.compiled(name, unasked) for name in "cab"] == ["c: C", "a: A", "b: B"]
    assert sorted(compiler.made) == ["a", "b", "c"]
    ahead.close()


def test_a_name_that_comes_again_is_another_program() -> None:
    """A draft model's programs have the names of its model's."""
    compiler = Compiler()
    compiler.release.set()
    ahead = ahead_of({"a": lambda: "model's"}, compiler)
    assert ahead.compiled("a", unasked) == "a: model's"
    assert ahead.compiled("a", text("draft's")) == "a: draft's"
    ahead.close()


def test_what_does_not_compile_fails_whoever_asks_for_it() -> None:
    compiler = Compiler()
    compiler.release.set()
    ahead = ahead_of({"a": unasked, "b": lambda: "B"}, compiler)
    with pytest.raises(AssertionError, match="nobody"):
        ahead.compiled("a", unasked)
    assert ahead.compiled("b", unasked) == "b: B"
    ahead.close()


def test_closing_skips_the_rest() -> None:
    compiler = Compiler()
    names = [str(number) for number in range(50)]
    ahead = ahead_of({name: lambda: "" for name in names}, compiler)
    threading.Timer(0.2, compiler.release.set).start()
    ahead.close()
    assert len(compiler.made) < len(names)


def unasked() -> Any:
    raise AssertionError("nobody asked for this")
