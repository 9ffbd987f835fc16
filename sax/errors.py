"""Every error that a user or a network can cause, in one tree and one table.

    SaxError
    +-- InvalidRequest            the request is wrong; retrying cannot help
    |   +-- InvalidName
    |   +-- UnsupportedParameter
    |   +-- PromptTooLong
    +-- Unauthenticated, PermissionDenied
    +-- NotFound
    |   +-- ModelNotFound, ModelPathNotFound
    +-- ModelExists
    +-- StaleRevision             someone else changed it meanwhile: read it again
    +-- QueueFull                 the replica is full
    +-- LimitExceeded             the caller's key is over its limit
    +-- Unavailable
    |   +-- AdminUnavailable
    |   |   +-- NotLeading        call the admin server that leads
    |   |   +-- StateLost         its store was deleted or replaced
    |   +-- ModelNotReady, NotLoaded, ReplicaLost, ShuttingDown
    +-- NotRetried                replicas died while the request was there
    +-- LoadFailed                a checkpoint is bad or does not fit
    |   +-- CheckpointError, MemoryPlanError
    |       +-- CheckpointNotFound      the hub or the index says that there is no such thing
    |       +-- CheckpointUnreachable   it did not answer
    +-- DeadlineExceeded, Cancelled
    +-- Internal

Codes are names and numbers; `sax.wire.rpc` maps them to gRPC, `http_gateway.problems` to HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sax.need import Need
from sax.status import Status, StatusCode, StatusNotOk


class Retry(Enum):
    """Party that may retry the same request."""

    NOBODY = "nobody"
    CLIENT = "client"  # the caller, after retry_after_s
    LOCATOR = "locator"  # the locator, at once, at another replica; then the caller


class SaxError(StatusNotOk):
    """Base class. The text says what happened and what to do about it."""

    def __init__(
        self,
        text: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        need: Need | None = None,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.param = param  # the request field at fault, if one is
        self.retry_after_s = retry_after_s
        self.need = need  # what a server must have, if this one lacks it

    @property
    def status(self) -> Status:
        return Status(StatusCode[meaning(self).grpc], self.text)


class InvalidRequest(SaxError):
    """A field is malformed or out of range."""


class InvalidName(InvalidRequest):
    """A cell, model, path or checkpoint name does not follow the grammar."""


class UnsupportedParameter(InvalidRequest):
    """A documented field that this server does not support; never silently ignored."""


class PromptTooLong(InvalidRequest):
    """Prompt and answer do not fit the model's context."""


class Unauthenticated(SaxError):
    """No valid credential."""


class PermissionDenied(SaxError):
    """A valid credential that lacks the permission."""


class NotFound(SaxError):
    """No such object."""


class ModelNotFound(NotFound):
    """No such published model."""


class ModelPathNotFound(NotFound):
    """No model server knows this model path."""


class ModelExists(SaxError):
    """A model of this name is already published."""


class StaleRevision(SaxError):
    """The change was based on a revision that is no longer current."""


class QueueFull(SaxError):
    """The replica's bounded queue is full."""


class LimitExceeded(SaxError):
    """The caller's key is over one of its limits."""


class Unavailable(SaxError):
    """Temporarily unavailable."""


class AdminUnavailable(Unavailable):
    """The cell's admin server does not answer."""


class NotLeading(AdminUnavailable):
    """This admin server follows another one; `param` is the leader's host:port, "" if unknown."""


class StateLost(AdminUnavailable):
    """The admin server's store was deleted, replaced or lost records: it makes no changes."""


class ModelNotReady(Unavailable):
    """Published, but no replica is ready."""


class NotLoaded(Unavailable):
    """This server does not, or no longer, hold the model."""


class ReplicaLost(Unavailable):
    """The connection to a replica broke."""


class NotRetried(SaxError):
    """Replicas died while the request waited there, which may be its doing: no other tries it."""


class ShuttingDown(Unavailable):
    """The process is draining and takes no new requests."""


class LoadFailed(SaxError):
    """A model could not be loaded."""


class CheckpointError(LoadFailed):
    """A checkpoint is missing, unreadable, truncated or of the wrong shape."""


class CheckpointNotFound(CheckpointError):
    """A hub has no such checkpoint, or does not let this server have it."""


class CheckpointUnreachable(CheckpointError):
    """A hub does not answer, and there is no copy of the checkpoint here."""


class MemoryPlanError(LoadFailed):
    """The model does not fit; the text says which number to change.

    With a `need`, the model itself is fine and this server is too small or too full.
    """


class DeadlineExceeded(SaxError):
    """The caller's deadline passed."""


class Cancelled(SaxError):
    """The caller cancelled or disconnected."""


class Internal(SaxError):
    """A bug in sax."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """gRPC code, HTTP status and retry policy of an error."""

    grpc: str  # name of a grpc.StatusCode
    http: int
    retry: Retry


# Most specific class wins (see `meaning`).
TABLE: dict[type[SaxError], Meaning] = {
    InvalidRequest: Meaning("INVALID_ARGUMENT", 400, Retry.NOBODY),
    InvalidName: Meaning("INVALID_ARGUMENT", 400, Retry.NOBODY),
    UnsupportedParameter: Meaning("INVALID_ARGUMENT", 400, Retry.NOBODY),
    PromptTooLong: Meaning("INVALID_ARGUMENT", 400, Retry.NOBODY),
    Unauthenticated: Meaning("UNAUTHENTICATED", 401, Retry.NOBODY),
    PermissionDenied: Meaning("PERMISSION_DENIED", 403, Retry.NOBODY),
    NotFound: Meaning("NOT_FOUND", 404, Retry.NOBODY),
    ModelNotFound: Meaning("NOT_FOUND", 404, Retry.NOBODY),
    ModelPathNotFound: Meaning("NOT_FOUND", 404, Retry.NOBODY),
    ModelExists: Meaning("ALREADY_EXISTS", 409, Retry.NOBODY),
    StaleRevision: Meaning("ABORTED", 409, Retry.NOBODY),
    # Another replica may have room; if all are full, the caller backs off.
    QueueFull: Meaning("RESOURCE_EXHAUSTED", 429, Retry.LOCATOR),
    # The limit is of the key: another replica changes nothing.
    LimitExceeded: Meaning("RESOURCE_EXHAUSTED", 429, Retry.CLIENT),
    Unavailable: Meaning("UNAVAILABLE", 503, Retry.CLIENT),
    AdminUnavailable: Meaning("UNAVAILABLE", 503, Retry.CLIENT),
    NotLeading: Meaning("UNAVAILABLE", 503, Retry.CLIENT),
    StateLost: Meaning("UNAVAILABLE", 503, Retry.CLIENT),
    ModelNotReady: Meaning("UNAVAILABLE", 503, Retry.CLIENT),
    # The watch lags the server slightly; another replica has the model.
    NotLoaded: Meaning("NOT_FOUND", 503, Retry.LOCATOR),
    ReplicaLost: Meaning("UNAVAILABLE", 503, Retry.LOCATOR),
    # No status that clients retry by themselves: each try may cost a replica.
    NotRetried: Meaning("ABORTED", 400, Retry.NOBODY),
    ShuttingDown: Meaning("UNAVAILABLE", 503, Retry.LOCATOR),
    LoadFailed: Meaning("FAILED_PRECONDITION", 400, Retry.NOBODY),
    CheckpointError: Meaning("FAILED_PRECONDITION", 400, Retry.NOBODY),
    CheckpointNotFound: Meaning("FAILED_PRECONDITION", 400, Retry.NOBODY),
    CheckpointUnreachable: Meaning("FAILED_PRECONDITION", 400, Retry.NOBODY),
    MemoryPlanError: Meaning("FAILED_PRECONDITION", 400, Retry.NOBODY),
    DeadlineExceeded: Meaning("DEADLINE_EXCEEDED", 504, Retry.CLIENT),
    Cancelled: Meaning("CANCELLED", 499, Retry.NOBODY),
    Internal: Meaning("INTERNAL", 500, Retry.NOBODY),
}

BY_NAME: dict[str, type[SaxError]] = {cls.__name__: cls for cls in TABLE}


def meaning(error: SaxError) -> Meaning:
    """Return the table row of the error's most specific class that has one."""
    for cls in type(error).__mro__:
        if cls in TABLE:
            return TABLE[cls]
    return TABLE[Internal]


def fresh(error: SaxError) -> SaxError:
    """Copy an error so that it can be raised again: a raised one carries its own traceback."""
    return type(error)(
        error.text, param=error.param, retry_after_s=error.retry_after_s, need=error.need
    )


def wire_name(error: SaxError) -> str:
    """Return the name of the error's most specific class in the table, which the peer knows."""
    return next((cls.__name__ for cls in type(error).__mro__ if cls in TABLE), Internal.__name__)


def from_name(
    name: str,
    text: str,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
    need: Need | None = None,
) -> SaxError:
    """Rebuild an error that crossed the wire; an unknown name becomes Internal."""
    return BY_NAME.get(name, Internal)(text, param=param, retry_after_s=retry_after_s, need=need)
