"""Saxml's Python API: `import sax; sax.Publish(...)`, `sax.Model(id).LM().Generate(text)`.

Names, arguments and return values are Saxml's; requests use its LMService. Parts of Saxml that this
system does not serve raise UnsupportedParameter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from sax.client import Client
from sax.client.attempts import Route
from sax.client.location import admin_address
from sax.errors import UnsupportedParameter
from sax.names import CellId, ModelId
from sax.proto import lm_pb2
from sax.saxml.compat_options import AdminOptions, ModelOptions, Options

_ALL_METHODS = "all"

StreamItem = tuple[str, int, list[float]]
StreamCallback = Callable[[bool, list[StreamItem]], None]


@dataclass(frozen=True)
class ModelDetail:
    """Result of ListDetail."""

    model: str  # the model path
    ckpt: str
    max_replicas: int  # wanted
    active_replicas: int  # ready
    overrides: dict[str, str]


@dataclass(frozen=True)
class ModelServerTypeStat:
    """Number of replicas on one machine type."""

    chip_type: str
    chip_topology: str
    num_replicas: int


def Publish(
    id: str,
    model_path: str,
    checkpoint_path: str,
    num_replicas: int,
    overrides: Mapping[str, str] | None = None,
    options: AdminOptions | None = None,
) -> None:
    """Publish a model; override values are JSON text."""
    _client(id).publish(
        id, model_path, checkpoint_path, num_replicas, overrides, timeout_s=_timeout_s(options)
    )


def Unpublish(id: str, options: AdminOptions | None = None) -> None:
    _client(id).unpublish(id, timeout_s=_timeout_s(options))


def Update(
    id: str,
    model_path: str,
    checkpoint_path: str,
    num_replicas: int,
    options: AdminOptions | None = None,
) -> None:
    """Change checkpoint and replicas; overrides and ACLs stay."""
    _client(id).update(
        id,
        model_path=model_path,
        checkpoint=checkpoint_path,
        replicas=num_replicas,
        timeout_s=_timeout_s(options),
    )


def List(id: str, options: AdminOptions | None = None) -> tuple[str, str, int]:
    """Return (model path, checkpoint, number of ready replicas)."""
    detail = ListDetail(id, options)
    return detail.model, detail.ckpt, detail.active_replicas


def ListDetail(id: str, options: AdminOptions | None = None) -> ModelDetail:
    model = _client(id).list(id, timeout_s=_timeout_s(options))
    return ModelDetail(
        model=model.spec.model_path,
        ckpt=model.spec.checkpoint,
        max_replicas=model.spec.replicas,
        active_replicas=model.ready_replicas,
        overrides=dict(model.spec.overrides),
    )


def ListAll(id: str, options: AdminOptions | None = None) -> list[str]:
    models = _client(id).list_all(id, timeout_s=_timeout_s(options))
    return [model.spec.model_id for model in models]


def Stats(id: str, options: AdminOptions | None = None) -> list[ModelServerTypeStat]:
    """Count the replicas of a model or a cell by machine type."""
    stats = _client(id).stats(id, timeout_s=_timeout_s(options))
    return [
        ModelServerTypeStat(stat.chip_type, stat.chip_topology, stat.replicas)
        for stat in stats.types
    ]


def WaitForReady(id: str, num_replicas: int, options: AdminOptions | None = None) -> None:
    """Wait until `num_replicas` are ready; without a timeout, wait indefinitely."""
    _client(id).wait_for_ready(id, num_replicas, timeout_s=_timeout_s(options))


def GetACL(id: str, method: str = "", options: AdminOptions | None = None) -> str | dict[str, str]:
    """Return the ACL of a method, of operators (no method), or of all methods as a dict ("all")."""
    spec = _client(id).list(str(_model_id(id)), timeout_s=_timeout_s(options)).spec
    if method == _ALL_METHODS:
        return dict(spec.acls)
    return spec.acls.get(method, "") if method else spec.admin_acl


def SetACL(id: str, acl: str, method: str = "", options: AdminOptions | None = None) -> None:
    """Set the ACL of a method, or of operators (no method)."""
    client, model_id, timeout_s = _client(id), str(_model_id(id)), _timeout_s(options)
    if not method:
        client.update(model_id, admin_acl=acl, timeout_s=timeout_s)
        return
    acls = client.list(model_id, timeout_s=timeout_s).spec.acls
    client.update(model_id, acls={**acls, method: acl}, timeout_s=timeout_s)


class LanguageModel:
    """Text methods of one model."""

    def __init__(self, model_id: str, route: Route) -> None:
        self._model_id = model_id
        self._route = route

    def Generate(self, text: str, options: ModelOptions | None = None) -> list[tuple[str, float]]:
        options = options or ModelOptions()
        return _client(self._model_id).saxml_generate(
            self._model_id, text, options.extra_inputs, options.timeout_s, route=self._route
        )

    def GenerateStream(
        self, text: str, callback: StreamCallback, options: ModelOptions | None = None
    ) -> None:
        """Call back with (False, items) for each message and (True, []) at the end.

        An item is (text, prefix_len, scores): truncate the text so far to prefix_len characters,
        then append text.
        """
        options = options or ModelOptions()
        messages = _client(self._model_id).saxml_generate_stream(
            self._model_id, text, options.extra_inputs, options.timeout_s, route=self._route
        )
        for message in messages:
            callback(False, [_stream_item(item) for item in message.items])
        callback(True, [])

    def Score(
        self, prefix: str, suffix: Sequence[str], options: ModelOptions | None = None
    ) -> list[float]:
        options = options or ModelOptions()
        return _client(self._model_id).score(
            self._model_id,
            prefix,
            suffix,
            options.extra_inputs,
            options.timeout_s,
            route=self._route,
        )

    def Embed(self, text: str, options: ModelOptions | None = None) -> list[float]:
        options = options or ModelOptions()
        return _client(self._model_id).saxml_embed(
            self._model_id, text, options.extra_inputs, options.timeout_s, route=self._route
        )

    def Gradient(
        self, prefix: str, suffix: str, options: ModelOptions | None = None
    ) -> tuple[list[float], dict[str, list[float]]]:
        """Return the scores and the gradients, each flattened, by the names of their tensors."""
        options = options or ModelOptions()
        found = _client(self._model_id).gradient(
            self._model_id,
            prefix,
            suffix,
            options.extra_inputs,
            options.timeout_s,
            route=self._route,
        )
        return found.score, dict(found.gradients)


class CustomModel:
    """Custom methods of one model."""

    def __init__(self, model_id: str, route: Route) -> None:
        self._model_id = model_id
        self._route = route

    def Custom(self, request: bytes, method: str, options: ModelOptions | None = None) -> bytes:
        options = options or ModelOptions()
        return _client(self._model_id).custom(
            self._model_id,
            request,
            method,
            options.extra_inputs,
            options.timeout_s,
            route=self._route,
        )


class Model:
    """A published model."""

    def __init__(self, id: str, options: Options | None = None) -> None:
        self._model_id = str(ModelId.parse(id))
        self._route = (options or Options()).route()

    def LM(self) -> LanguageModel:
        return LanguageModel(self._model_id, self._route)

    def VM(self) -> NoReturn:
        """Vision is not served yet."""
        raise _unserved("VM()")

    def AM(self) -> NoReturn:
        """Audio is not served yet."""
        raise _unserved("AM()")

    def MM(self) -> NoReturn:
        """Multimodal is not served yet."""
        raise _unserved("MM()")

    def CM(self) -> CustomModel:
        return CustomModel(self._model_id, self._route)


def _client(name: str) -> Client:
    cell = (CellId if name.count("/") == 2 else ModelId).parse(name).cell
    return _client_at(admin_address(cell=cell))


@functools.cache
def _client_at(address: str) -> Client:
    """One client per admin and process: Saxml's functions have no client object to own it."""
    return Client(address)


def _timeout_s(options: AdminOptions | None) -> float | None:
    return options.timeout_s if options is not None else None


def _model_id(name: str) -> ModelId:
    if name.count("/") == 2:
        raise UnsupportedParameter(
            f"{name}: a cell's own ACL is set when its admin server starts; name a model",
            param="id",
        )
    return ModelId.parse(name)


def _stream_item(item: lm_pb2.GenerateStreamItem) -> StreamItem:
    return item.text, item.prefix_len, [*item.scores]


def _unserved(method: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"{method} is part of Saxml but not served yet: only LM().Generate, GenerateStream, Score "
        "and Embed and CM().Custom are",
        param="method",
    )
