"""Custom models compiled for real: a row of numbers in JSON, doubled."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from model_server.loading.compile_watch import CompileWatch
from model_server.loading.custom import CompiledProgram, CustomRequest
from model_server.models.custom import CustomMethod, CustomProgram
from sax.errors import Internal, InvalidRequest, LoadFailed, SaxError
from sax.types import Progress


def read(requests: Sequence[bytes]) -> np.ndarray:
    rows = np.array([json.loads(request) for request in requests], np.float32)
    if (rows == 13).any():
        raise KeyError("thirteen")
    return rows


def write(rows: np.ndarray) -> list[bytes]:
    if (rows == 14).any():  # of the doubled
        raise ZeroDivisionError
    return [json.dumps(row.tolist()).encode() for row in rows]


def scaled(weights: dict[str, jax.Array], rows: jax.Array) -> jax.Array:
    return rows * weights["scale"]


def method(**changes: Any) -> CustomMethod:
    given: dict[str, Any] = {
        "pre_process": read,
        "call": scaled,
        "post_process": write,
        "examples": (b"[0, 0]",),
        "batch_sizes": (1, 4),
    }
    return CustomMethod(**(given | changes))


def compiled(report: Callable[[Progress], None] = bool, **changes: Any) -> CompiledProgram:
    weights = {"scale": np.float32(2)}
    return CompiledProgram(
        CustomProgram(methods={"custom": method(**changes)}, weights=weights), report
    )


def ask(program: CompiledProgram, *requests: bytes) -> list[bytes | SaxError]:
    return [*program.run([CustomRequest("custom", each) for each in requests])]


def test_every_request_of_a_batch_gets_its_own_answer() -> None:
    program = compiled()
    assert ask(program, b"[1, 2]") == [b"[2.0, 4.0]"]
    assert ask(program, b"[1, 2]", b"[3, 4]", b"[5, 6]") == [
        b"[2.0, 4.0]",
        b"[6.0, 8.0]",
        b"[10.0, 12.0]",
    ]


def test_a_bad_request_is_refused_alone_with_what_its_reader_says() -> None:
    answers = ask(compiled(), b"[1, 2]", b"not json", b"[3, 4]", b"[5]")
    assert (answers[0], answers[2]) == (b"[2.0, 4.0]", b"[6.0, 8.0]")
    refused, misshapen = answers[1], answers[3]
    assert isinstance(refused, InvalidRequest)
    assert refused.text.startswith("Expecting value")
    assert isinstance(misshapen, InvalidRequest)
    assert "was compiled for (((2,), 'float32'),)" in misshapen.text


@pytest.mark.parametrize("bad", [b"[13, 0]", b"[7, 0]"], ids=["before", "after"])
def test_a_bug_before_or_after_the_call_fails_one_request_without_a_traceback(bad: bytes) -> None:
    answers = ask(compiled(), b"[1, 2]", b"[3, 4]", bad, b"[5, 6]")
    assert [answers[0], answers[1], answers[3]] == [b"[2.0, 4.0]", b"[6.0, 8.0]", b"[10.0, 12.0]"]
    assert isinstance(answers[2], Internal)
    assert "Error" in answers[2].text
    assert "\n" not in answers[2].text


def test_a_method_that_exits_ends_one_request() -> None:
    def leave(requests: Sequence[bytes]) -> np.ndarray:
        if b"exit" in requests:
            raise SystemExit(1)
        return read(requests)

    answers = ask(compiled(pre_process=leave), b"exit", b"[1, 2]")
    assert isinstance(answers[0], Internal)
    assert answers[1] == b"[2.0, 4.0]"


def test_nothing_is_compiled_while_serving() -> None:
    watch = CompileWatch(strict=True)
    try:
        with watch.loading():
            program = compiled(batch_sizes=(1, 2, 8))
        for count in range(1, 9):
            assert ask(program, *[b"[1, 2]"] * count) == [b"[2.0, 4.0]"] * count
        assert watch.while_serving == 0
    finally:
        watch.stop()


def test_requests_of_several_shapes_are_served_when_each_has_an_example() -> None:
    program = compiled(examples=(b"[0, 0]", b"[0, 0, 0]"))
    assert ask(program, b"[1, 2]", b"[1, 2, 3]") == [b"[2.0, 4.0]", b"[2.0, 4.0, 6.0]"]
    refused = ask(program, b"[1]")[0]
    assert isinstance(refused, InvalidRequest)
    assert "(((2,), 'float32'),), (((3,), 'float32'),)" in refused.text


def test_arrays_may_be_any_tree_and_any_dtype() -> None:
    program = compiled(
        pre_process=lambda requests: {"n": np.array([len(r) for r in requests], np.int64)},
        call=lambda weights, tree: {"twice": tree["n"] * 2, "half": tree["n"] / 2},
        post_process=lambda tree: [
            f"{twice} {half}".encode()
            for twice, half in zip(tree["twice"], tree["half"], strict=True)
        ],
    )
    assert ask(program, b"abc", b"abcdef") == [b"6 1.5", b"12 3.0"]


def counted(weights: Any, state: jax.Array, rows: jax.Array, count: jax.Array) -> Any:
    """Every row answers with how many requests there were in all."""
    state = state + count
    return 0 * rows + state, state


def test_a_state_passes_from_batch_to_batch_and_padding_does_not_count() -> None:
    program = compiled(call=counted, state=np.int32(0))
    assert ask(program, b"[0, 0]") == [b"[1.0, 1.0]"]
    assert ask(program, *[b"[0, 0]"] * 3) == [b"[4.0, 4.0]"] * 3  # padded to 4


def test_a_request_that_fails_leaves_the_state_as_it_was() -> None:
    def write_small(rows: np.ndarray) -> list[bytes]:
        if (rows == 2).any():
            raise ArithmeticError
        return write(rows)

    program = compiled(call=counted, state=np.int32(0), post_process=write_small)
    assert ask(program, b"[0, 0]") == [b"[1.0, 1.0]"]
    assert isinstance(ask(program, b"[0, 0]")[0], Internal)
    assert isinstance(ask(program, b"[0, 0]")[0], Internal)  # still the second


def test_what_cannot_work_fails_the_load_and_says_why() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"examples": (b"nonsense",)}, "does not work on its example b'nonsense'"),
        (
            {"pre_process": lambda requests: np.zeros(3)},
            r"arrays of as many rows; it returned \[3\]",
        ),
        ({"pre_process": lambda requests: ()}, "it returned none"),
        ({"call": lambda weights, rows: rows.sum()}, "must return arrays of as many"),
        ({"call": lambda weights, rows: rows @ rows}, "TypeError"),
        ({"post_process": lambda rows: [b"one"] * 7}, "must return 1 bytes objects"),
        ({"post_process": lambda rows: ["text"]}, "must return 1 bytes objects"),
        ({"state": np.int32(0), "call": lambda w, s, x, n: x}, r"must return \(arrays, state\)"),
        (
            {"state": np.int32(0), "call": lambda w, s, x, n: (x, s * 1.5)},
            r"turns the state int32\[\] into float32\[\]",
        ),
    ]
    for changes, says in cases:
        with pytest.raises(LoadFailed, match=says) as caught:
            compiled(**changes)
        assert "method 'custom'" in caught.value.text


def test_progress_counts_every_program() -> None:
    news: list[Progress] = []
    compiled(news.append, examples=(b"[0]", b"[0, 0]"), batch_sizes=(1, 2, 4))
    assert [progress.done for progress in news] == list(range(6))
    assert {progress.total for progress in news} == {6}


def test_memory_is_that_of_weights_and_states() -> None:
    program = CompiledProgram(
        CustomProgram(
            methods={"a": method(state=np.zeros(10, np.float32), call=_keep), "b": method()},
            weights={"scale": np.float32(1), "table": np.zeros((5, 5), np.float32)},
        ),
        bool,
    )
    assert program.bytes == 4 + 4 * 25 + 4 * 10
    assert program.workspace > 0
    program.close()
    assert program.closed


def _keep(weights: Any, state: jax.Array, rows: jax.Array, count: jax.Array) -> Any:
    return rows, state
