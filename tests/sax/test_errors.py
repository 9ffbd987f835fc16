"""The error tree and its one table."""

from __future__ import annotations

import grpc

from sax import errors
from sax.errors import BY_NAME, TABLE, Internal, Meaning, NotLoaded, QueueFull, Retry, SaxError
from tests.each_case import each_case


def every_class(root: type[SaxError] = SaxError) -> list[type[SaxError]]:
    return [cls for sub in root.__subclasses__() for cls in (sub, *every_class(sub))]


def test_every_class_of_the_tree_has_its_own_line_in_the_table() -> None:
    tree = {cls for cls in every_class() if cls.__module__ == errors.__name__}
    assert tree == set(TABLE)


@each_case("cls, line", TABLE.items())
def test_every_line_has_a_real_code_and_an_error_status(cls: type[SaxError], line: Meaning) -> None:
    assert line.grpc in grpc.StatusCode.__members__
    assert line.grpc != "OK"
    assert 400 <= line.http < 600
    assert errors.meaning(cls("text")) is line


@each_case("cls", TABLE)
def test_an_error_is_rebuilt_from_its_name(cls: type[SaxError]) -> None:
    error = errors.from_name(cls.__name__, "text", param="model", retry_after_s=2.5)
    assert type(error) is cls
    assert (error.text, error.param, error.retry_after_s) == ("text", "model", 2.5)
    assert str(error) == "text"
    assert BY_NAME[errors.wire_name(error)] is cls


def test_an_unknown_name_becomes_internal() -> None:
    assert type(errors.from_name("ErrorOfTheFuture", "text")) is Internal


def test_a_class_without_a_line_travels_as_its_nearest_ancestor() -> None:
    class SlotTaken(QueueFull):
        """Of another module."""

    assert errors.wire_name(SlotTaken("x")) == "QueueFull"
    assert errors.meaning(SlotTaken("x")) is TABLE[QueueFull]


def test_a_fresh_error_is_equal_and_another_object() -> None:
    error = NotLoaded("gone", param="model", retry_after_s=1.0)
    again = errors.fresh(error)
    assert again is not error
    assert type(again) is NotLoaded
    assert (again.text, again.param, again.retry_after_s) == ("gone", "model", 1.0)


def test_only_faults_of_one_replica_are_tried_at_another() -> None:
    at_once = {cls.__name__ for cls, line in TABLE.items() if line.retry is Retry.LOCATOR}
    assert at_once == {"QueueFull", "NotLoaded", "ReplicaLost", "ShuttingDown"}
