"""Errors as the protocol carries them: a status in an answer, or in place of an array."""

from __future__ import annotations

import re

from model_server.pathways.scheduling.handles import Fault
from sax.errors import SaxError, meaning

# Numbers of `google.rpc.Code`, by the names that jax's errors begin with.
_CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
_CALL_BACK = "programs may not call back into their client: fetch their results instead"
_MPMD = "a program runs on one island: run one per stage and copy arrays between them"
_INSTEAD = {
    "loaded_host_callback_poll_request": _CALL_BACK,
    "loaded_host_callback_return_request": _CALL_BACK,
    "loaded_executable_mpmd_metadata_request": _MPMD,
    "loaded_executable_mpmd_cost_analysis_request": _MPMD,
}
_CODED = re.compile(rf"^({'|'.join(_CODES)}): ?(.*)", re.DOTALL)


class RequestError(Exception):
    """A request that cannot be carried out."""

    code = "INTERNAL"

    @property
    def fault(self) -> Fault:
        return Fault(_CODES[self.code], str(self))


class Refused(RequestError):
    """The request is not offered here; the text says what is."""

    code = "UNIMPLEMENTED"


class WrongRequest(RequestError):
    """The request is wrong: the client must correct it."""

    code = "INVALID_ARGUMENT"


class UnknownHandle(RequestError):
    """The request names a handle that the session does not have."""

    code = "NOT_FOUND"


class Poisoned(Exception):
    """The request needs an array that could not be made."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def fault_of(error: BaseException) -> Fault:
    """Return the error as jax's own text codes it; INTERNAL where it does not."""
    if isinstance(error, RequestError | Poisoned):
        return error.fault
    if isinstance(error, SaxError):
        return Fault(_CODES[meaning(error).grpc], error.text)
    text = str(error) or type(error).__name__
    if coded := _CODED.match(text):
        return Fault(_CODES[coded[1]], coded[2])
    if "deleted" in text or "donated" in text:
        return Fault(_CODES["INVALID_ARGUMENT"], text)
    return Fault(_CODES["INTERNAL"], f"{type(error).__name__}: {text}")


def not_offered(kind: str) -> Refused:
    """Return the refusal of requests of a kind, with what to do instead where that is known."""
    instead = _INSTEAD.get(kind, "use a jaxlib from 0.10 to 0.12")
    return Refused(f"requests of kind {kind} are not offered here; {instead}")
