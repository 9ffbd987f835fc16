"""Options of Saxml's Python API, each honoured or refused by name, and the clients behind it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sax import config
from sax.client import Client
from sax.client.attempts import Route
from sax.client.location import admin_address
from sax.errors import InvalidRequest
from sax.names import CellId, ModelId
from sax.proto import common_pb2
from sax.wire.extra_inputs import encode_extra_inputs

_NUM_CONN = 37


@dataclass
class AdminOptions:
    """Timeout of an operator call in seconds; negative: the default deadline."""

    timeout: float = -1.0

    @property
    def timeout_s(self) -> float | None:
        return self.timeout if self.timeout >= 0 else None


@dataclass
class Options:
    """Routing options of a model's requests."""

    # Saxml spreads a client's requests over so many connections. Here each goes to the least loaded
    # replica, over one connection to each: any number means that.
    num_conn: int = _NUM_CONN
    proxy_addr: str = ""  # use this model server instead of the model's replicas
    fail_fast: bool = False  # no second attempt at another replica

    def route(self) -> Route:
        """Return the route of the model's requests."""
        address = self.proxy_addr and config.check_address(self.proxy_addr, "proxy_addr")
        return Route(address=address, fail_fast=self.fail_fast)


class NoExtraInput(InvalidRequest, IndexError):
    """No number was set under a key; Saxml's programs catch an IndexError."""


class ModelOptions:
    """Extra inputs and the timeout of one request."""

    def __init__(self) -> None:
        self._inputs: dict[str, float | Sequence[float] | str] = {}
        self._timeout = -1.0

    def __copy__(self) -> ModelOptions:
        """Copy the inputs too: what is set on a copy does not reach the original."""
        copied = ModelOptions()
        copied._inputs = dict(self._inputs)
        copied._timeout = self._timeout
        return copied

    def SetExtraInput(self, key: str, value: float) -> None:
        """Set a number. A key keeps the kind of its first value."""
        self._set(key, float(value), float)

    def SetExtraInputTensor(self, key: str, value: Sequence[float]) -> None:
        """Set numbers, flattened."""
        self._set(key, tuple(value), tuple)

    def SetExtraInputString(self, key: str, value: str) -> None:
        """Set a text."""
        self._set(key, value, str)

    def GetExtraInput(self, key: str) -> float:
        """Return the number set under this key. Raises NoExtraInput if there is none."""
        value = self._inputs.get(key)
        if not isinstance(value, float):
            raise NoExtraInput(f"no number was set for the extra input {key!r}", param=key)
        return value

    def SetTimeout(self, timeout: float) -> None:
        """Limit the whole answer, in seconds; negative: no limit."""
        self._timeout = timeout

    def GetTimeout(self) -> float:
        """Return the timeout in seconds; -1 if not set."""
        return self._timeout

    def ToProto(self) -> common_pb2.ExtraInputs:
        """Return the extra inputs as they are sent."""
        return encode_extra_inputs(self._inputs)

    def ToDebugString(self) -> str:
        """Return them as a text."""
        return str(self.ToProto())

    @property
    def extra_inputs(self) -> Mapping[str, float | Sequence[float] | str]:
        return self._inputs

    @property
    def timeout_s(self) -> float | None:
        return self._timeout if self._timeout >= 0 else None

    def _set(
        self, key: str, value: float | Sequence[float] | str, kind: type[float | tuple[float] | str]
    ) -> None:
        if not isinstance(self._inputs.get(key, value), kind):
            raise InvalidRequest(
                f"the extra input {key!r} was already set with another kind of value", param=key
            )
        self._inputs[key] = value


def client_of(name: str) -> Client:
    """Return the client of the cell that a cell's or a model's name names."""
    cell = (CellId if name.count("/") == 2 else ModelId).parse(name).cell
    return client_at(admin_address(cell=cell))


@functools.cache  # Saxml's functions have no client object to own one
def client_at(address: str) -> Client:
    return Client(address)
