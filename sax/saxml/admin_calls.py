"""Saxml's operator calls in Python: `import sax; sax.Publish(...)`.

Names, arguments and return values are Saxml's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sax.errors import InvalidRequest, UnsupportedParameter
from sax.names import ModelId
from sax.saxml.options import AdminOptions, client_of

_HOST = "127.0.0.1"

_ALL_METHODS = "all"
_SLASHES_OF_A_CELL = 2  # /sax/<cell>; a model has one more


@dataclass(frozen=True)
class ModelDetail:
    """Result of ListDetail."""

    model: str  # the model path
    ckpt: str
    max_replicas: int  # wanted
    active_replicas: int  # ready
    overrides: dict[str, str]
    warnings: tuple[str, ...] = ()  # of overrides without effect here; not in Saxml


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
    client_of(id).publish(
        id, model_path, checkpoint_path, num_replicas, overrides, timeout_s=_timeout_s(options)
    )


def Unpublish(id: str, options: AdminOptions | None = None) -> None:
    """Unpublish a model."""
    client_of(id).unpublish(id, timeout_s=_timeout_s(options))


def Update(
    id: str,
    model_path: str,
    checkpoint_path: str,
    num_replicas: int,
    options: AdminOptions | None = None,
) -> None:
    """Change checkpoint and replicas; overrides and ACLs stay."""
    client_of(id).update(
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
    """Return what is published as a model, and its ready replicas."""
    model = client_of(id).list(id, timeout_s=_timeout_s(options))
    return ModelDetail(
        model=model.spec.model_path,
        ckpt=model.spec.checkpoint,
        max_replicas=model.spec.replicas,
        active_replicas=model.ready_replicas,
        overrides=dict(model.spec.overrides),
        warnings=model.warnings,
    )


def ListAll(id: str, options: AdminOptions | None = None) -> list[str]:
    """Return the full names of a cell's models."""
    models = client_of(id).list_all(id, timeout_s=_timeout_s(options))
    return [model.spec.model_id for model in models]


def Stats(id: str, options: AdminOptions | None = None) -> list[ModelServerTypeStat]:
    """Count the replicas of a model or a cell by machine type."""
    stats = client_of(id).stats(id, timeout_s=_timeout_s(options))
    return [
        ModelServerTypeStat(stat.chip_type, stat.chip_topology, stat.replicas)
        for stat in stats.types
    ]


def WaitForReady(id: str, num_replicas: int, options: AdminOptions | None = None) -> None:
    """Wait until `num_replicas` are ready; without a timeout, wait indefinitely."""
    client_of(id).wait_for_ready(id, num_replicas, timeout_s=_timeout_s(options))


def GetACL(
    cell_or_model_id: str, method_id: str = "", options: AdminOptions | None = None
) -> str | dict[str, str]:
    """Return the ACL of a method, of operators (no method), or of all methods as a dict ("all").

    A cell has one for operators only.
    """
    if cell_or_model_id.count("/") == _SLASHES_OF_A_CELL and not method_id:
        return client_of(cell_or_model_id).cell_acl(timeout_s=_timeout_s(options))
    model_id = _model_id(cell_or_model_id)
    spec = client_of(model_id).list(model_id, timeout_s=_timeout_s(options)).spec
    if method_id == _ALL_METHODS:
        return dict(spec.acls)
    return spec.acls.get(method_id, "") if method_id else spec.admin_acl


def SetACL(
    cell_or_model_id: str, acl: str, method_id: str = "", options: AdminOptions | None = None
) -> None:
    """Set the ACL of a method, or of operators (no method); of a cell, who may do everything in it
    beside those of its --admin_acl."""
    if cell_or_model_id.count("/") == _SLASHES_OF_A_CELL and not method_id:
        client_of(cell_or_model_id).set_cell_acl(acl, timeout_s=_timeout_s(options))
        return
    model_id, timeout_s = _model_id(cell_or_model_id), _timeout_s(options)
    client = client_of(model_id)
    if not method_id:
        client.update(model_id, admin_acl=acl, timeout_s=timeout_s)
        return
    acls = client.list(model_id, timeout_s=timeout_s).spec.acls
    client.update(model_id, acls={**acls, method_id: acl}, timeout_s=timeout_s)


def _timeout_s(options: AdminOptions | None) -> float | None:
    return options.timeout_s if options is not None else None


def _model_id(name: str) -> str:
    if name.count("/") == _SLASHES_OF_A_CELL:
        raise UnsupportedParameter(
            f"{name} is a cell, which has a list for operators only: name a model, or no method",
            param="cell_or_model_id",
        )
    return str(ModelId.parse(name))


def StartDebugPort(port: int) -> None:
    """Serve this process's metrics at http://127.0.0.1:port/metrics, for Prometheus.

    Saxml serves its internal debugging pages there, on every interface. Raises InvalidRequest if
    the port is taken or is none.
    """
    from prometheus_client import start_http_server

    try:
        start_http_server(port, _HOST)
    except (OSError, OverflowError) as exc:
        raise InvalidRequest(
            f"port {port} cannot be used ({exc}): choose another", param="port"
        ) from exc
