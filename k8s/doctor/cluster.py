"""Reads a live cluster through its API server. The only file that needs lightkube.

Never writes. Reads one list after another; records a list that is forbidden or fails and continues
with the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, cast

from k8s.doctor.snapshot import LOOKS, Look, Snapshot
from k8s.render.fields import Object, part, parts, text
from sax.errors import InvalidRequest, SaxError, Unauthenticated, Unavailable

_TIMEOUT_S = 10.0
_PAGE = 500  # objects per response
_MOST_PAGES = 200
_ADMIN = "/api/v1/namespaces/{}/services/sax-admin-server:status/proxy/status.json"
_LACKING = "the Kubernetes client is not installed: pip install 'lightkube>=1,<2'"


class _ApiReply(Protocol):
    status_code: int

    @property
    def content(self) -> bytes: ...


class _Http(Protocol):
    def get(self, path: str, *, params: Any = None) -> _ApiReply: ...


class LiveCluster:
    """An API server and the namespace of a cell."""

    def __init__(self, http: _Http, failures: tuple[type[Exception], ...], namespace: str) -> None:
        self._http = http
        self._failures = failures
        self.namespace = namespace

    def look(self) -> Snapshot:
        """Read all lists. Raises Unavailable, Unauthenticated if the API server cannot be read."""
        version = text(self._get("/version"), "gitVersion")
        seen: dict[str, list[Object]] = {}
        forbidden: set[str] = set()
        failed: dict[str, str] = {}
        for look in LOOKS:
            try:
                seen[look.name] = self._list(look)
            except _Forbidden:
                forbidden.add(look.name)
            except Unavailable as exc:
                failed[look.name] = exc.text
        admin, trouble = self._admin()
        return Snapshot(
            namespace=self.namespace,
            version=version,
            seen=seen,
            forbidden=frozenset(forbidden),
            failed=failed,
            admin=admin,
            admin_trouble=trouble,
        )

    def _list(self, look: Look) -> list[Object]:
        """Read all pages of a list; a kind that the cluster does not know gives an empty list."""
        path, _, query = look.path.format(namespace=self.namespace).partition("?")
        params = {"limit": str(_PAGE)}
        if query:
            params["fieldSelector"] = query.partition("=")[2]
        found: list[Object] = []
        for _ in range(_MOST_PAGES):
            try:
                page = self._get(path, params)
            except _Absent:
                return found
            found += parts(page, "items")
            params["continue"] = text(page, "metadata", "continue")
            if not params["continue"]:
                break
        return found

    def _admin(self) -> tuple[Object | None, str]:
        try:
            return self._get(_ADMIN.format(self.namespace)), ""
        except _Absent:
            return None, ""  # not running: the check of its Deployment reports that
        except SaxError as exc:
            return None, exc.text

    def _get(self, path: str, params: dict[str, str] | None = None) -> Object:
        try:
            answer = self._http.get(path, params=params)
        except self._failures as exc:
            raise Unavailable(f"{type(exc).__name__}: {exc}") from exc
        body = _object(answer.content)
        said = text(body, "message") or f"HTTP {answer.status_code}"
        if answer.status_code == 401:
            raise Unauthenticated(f"the API server rejected your credentials: {said}")
        if answer.status_code == 403:
            raise _Forbidden(said)
        if answer.status_code == 404:
            raise _Absent(said)
        if answer.status_code != 200:
            raise Unavailable(said)
        return body


class _Forbidden(Unavailable):
    """403."""


class _Absent(Unavailable):
    """404."""


@contextmanager
def open_cluster(
    kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
) -> Generator[LiveCluster]:
    """Open kubectl's current cluster, or that of a kubeconfig file and context.

    Raises Unavailable if lightkube is not installed, InvalidRequest if the kubeconfig is wrong.
    """
    adapter, config = _client_of(kubeconfig, context)
    failures = (adapter.httpx.HTTPError, adapter.ConfigError, OSError, ValueError)
    try:
        params = adapter.ConnectionParams(timeout=adapter.httpx.Timeout(_TIMEOUT_S))
        http = adapter.Client(config, params)
    except (*failures, AssertionError) as exc:
        raise InvalidRequest(f"the kubeconfig is not usable: {exc}") from exc
    with http:
        failures += (subprocess.SubprocessError,)  # from a credential plugin
        yield LiveCluster(cast(_Http, http), failures, namespace or config.namespace or "default")


def _client_of(kubeconfig: str | None, context: str | None) -> tuple[Any, Any]:
    try:
        adapter = import_module("lightkube.config.client_adapter")
        files = import_module("lightkube.config.kubeconfig")
    except ImportError as exc:
        raise Unavailable(_LACKING) from exc
    file = kubeconfig or _first_of(os.environ.get("KUBECONFIG", ""))
    try:
        found = files.KubeConfig.from_file(file) if file else files.KubeConfig.from_env()
        return adapter, found.get(context)
    except Exception as exc:  # lightkube raises anything for a file that is not a kubeconfig
        raise InvalidRequest(
            f"no cluster is configured ({exc or type(exc).__name__}): run gcloud container "
            "clusters get-credentials CLUSTER --location=LOCATION, or give --kubeconfig and "
            "--context"
        ) from exc


def _first_of(paths: str) -> str:
    """Return the first existing file of a $KUBECONFIG list; kubectl would merge them."""
    given = [path for path in paths.split(os.pathsep) if path]
    return next((path for path in given if os.path.isfile(path)), given[0] if given else "")


def _object(body: bytes) -> Object:
    try:
        return part({"body": json.loads(body)}, "body")
    except ValueError:
        return {}
