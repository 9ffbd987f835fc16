"""Statuses that Saxml's programs read off an error."""

from __future__ import annotations

import grpc

from sax.errors import TABLE, SaxError
from sax.status import Status, StatusCode, StatusNotOk
from tests.each_case import each_case


@each_case("kind", TABLE)
def test_every_error_has_the_code_that_crosses_the_wire(kind: type[SaxError]) -> None:
    error = kind("why")
    assert isinstance(error, StatusNotOk)
    assert error.status.code().name == TABLE[kind].grpc
    assert (error.status.ok(), error.status.message()) == (False, "why")
    assert str(error.status) == f"{TABLE[kind].grpc}: why"


def test_codes_are_grpcs() -> None:
    assert {code.name: code.value for code in StatusCode} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


def test_a_status_may_be_good() -> None:
    good = Status(StatusCode.OK)
    assert (good.ok(), good.code_int(), good.raw_code(), good.to_string()) == (True, 0, 0, "OK")
    assert StatusNotOk("x").status == Status(StatusCode.UNKNOWN, "x")
