"""Cluster access through lightkube, from inside a pod or by a kubeconfig.

The only file that imports lightkube, and only when used. lightkube finds the server, certificates
and credentials, and builds resource URLs; objects stay plain mappings.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from admin_server.provisioning.cluster import (
    Body,
    ClusterRefused,
    ClusterTrouble,
    NameTaken,
    NotServed,
    ObjectKind,
    part,
    parts,
)
from sax.errors import InvalidRequest

if TYPE_CHECKING:
    from lightkube.core.exceptions import ApiError

_TIMEOUT_S = 10.0
_CHUNK = 500  # objects in one answer


def connect(namespace: str | None, timeout_s: float = _TIMEOUT_S) -> Kubernetes:
    """A client of the surrounding cluster. Raises InvalidRequest if none is found.

    The default namespace is that of the pod, or of the kubeconfig's context, or `default`.
    """
    try:
        from lightkube.config.client_adapter import ConnectionParams
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core import generic_client
        from lightkube.core.exceptions import ApiError, ConfigError
    except ImportError as exc:
        raise InvalidRequest(
            f"--kubernetes needs the package lightkube ({exc}): pip install 'lightkube>=1,<2'",
            param="kubernetes",
        ) from exc
    try:
        config = KubeConfig.from_env().get()
        httpx = cast("Any", generic_client).httpx  # whichever lightkube imports
        # It logs each request: two lines every few seconds, for ever.
        logging.getLogger(httpx.__name__).setLevel(logging.WARNING)
        params = ConnectionParams(timeout=httpx.Timeout(timeout_s))
        client = generic_client.GenericAsyncClient(params, config, namespace=namespace)
    except Exception as exc:  # a bad kubeconfig can make lightkube raise anything
        raise InvalidRequest(
            f"--kubernetes finds no cluster ({exc or type(exc).__name__}): run in a pod with a "
            "service account token, or set KUBECONFIG to a kubeconfig",
            param="kubernetes",
        ) from exc
    # KeyError: an error response without a content type.
    return Kubernetes(client, ApiError, (httpx.HTTPError, ConfigError, OSError, KeyError))


class Kubernetes:
    """A `Cluster` of one namespace. No call retries, and every call raises ClusterTrouble."""

    def __init__(
        self, client: Any, refusals: type[ApiError], failures: tuple[type[Exception], ...]
    ) -> None:
        """lightkube raises `refusals` for a Status, `failures` if there is no answer."""
        self._client = client
        self._refusals = refusals
        self._failures = failures

    @property
    def namespace(self) -> str:
        return self._client.namespace

    async def objects(
        self, kind: ObjectKind, labels: Mapping[str, str | Sequence[str]]
    ) -> Sequence[Body]:
        selector = ",".join(_term(name, value) for name, value in sorted(labels.items()))
        params = {"labelSelector": selector, "limit": str(_CHUNK)}
        items: list[Body] = []
        while True:
            request = self._client.prepare_request("list", _resource(kind), params=params)
            answer = await self._send(request, f"list {kind.resource}")
            items += parts(answer, "items")
            following = part(answer, "metadata").get("continue")
            if not following:
                return items
            params["continue"] = str(following)

    async def create(self, kind: ObjectKind, body: Body) -> Body:
        request = self._client.prepare_request("list", _resource(kind))
        request.method, request.data = "POST", body
        request.params["fieldManager"] = "sax-admin-server"
        return await self._send(request, f"create {kind.kind} {body['metadata']['name']}")

    async def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        request = self._client.prepare_request("delete", _resource(kind), name=name)
        request.data = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": uid},  # not a newer object of the same name
        }
        try:
            await self._send(request, f"delete {kind.kind} {name}")
        except NotServed:
            return  # already gone
        except NameTaken:
            return  # a newer object has its name

    async def close(self) -> None:
        await self._client.close()

    async def _send(self, request: Any, what: str) -> dict[str, Any]:
        try:
            response = await self._client.send(self._client.build_adapter_request(request))
            self._client.raise_for_status(response)
            return msgspec.json.decode(response.content, type=dict[str, Any])
        except self._refusals as exc:
            raise _trouble(exc.status.code, f"{exc.status.message or exc}", what) from exc
        except self._failures as exc:
            reason = str(exc) or type(exc).__name__
            raise ClusterTrouble(f"Kubernetes does not answer ({what}: {reason})") from exc
        except msgspec.DecodeError as exc:
            raise ClusterTrouble(f"Kubernetes gave an invalid answer ({what}: {exc})") from exc


def _term(name: str, value: str | Sequence[str]) -> str:
    return f"{name}={value}" if isinstance(value, str) else f"{name} in ({','.join(value)})"


def _trouble(code: int | None, message: str, what: str) -> ClusterTrouble:
    text = f"Kubernetes refuses to {what}: {message}"
    if code == 409:
        return NameTaken(text)
    if code == 404:
        has_none = "; if the cluster lacks this kind, install its controller"
        return NotServed(text + (has_none if what.startswith("list") else ""))
    if code == 403:
        return NotServed(text) if what.startswith("list") else ClusterRefused(text)
    if code is not None and 400 <= code < 500 and code != 429:
        return ClusterRefused(text)
    return ClusterTrouble(text)


@cache
def _resource(kind: ObjectKind) -> Any:
    from lightkube import generic_resource

    make = cast("Any", generic_resource).create_namespaced_resource
    return make(kind.group, kind.version, kind.kind, kind.plural)
