"""A small API server of Kubernetes on a loopback port: a store of objects, spoken to over HTTP.

Holds objects of any built-in group and of the custom kinds that are installed, with resource
versions, uids, conflicts, preconditions, selectors, pages, merge patches and applied ones, Status
bodies for every error, rights that can be taken away, and troubles that can be made. There are no
controllers: a test plays them with `change` and `remove`.

    with kubernetes_api(tmp_path) as api:
        api.install("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
        api.add("nodes", {"metadata": {"name": "n1"}})
        api.forbid("create", "jobsets.jobset.x-k8s.io")
        KUBECONFIG=api.kubeconfig ...

A resource is named as kubectl names it: `nodes`, `jobsets.jobset.x-k8s.io`.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

Object = dict[str, Any]
Key = tuple[str, str, str]  # resource, namespace ("": of the cluster), name
Trouble = Literal["500", "503", "429", "hang", "drop", "lost"]  # lost: done, and no answer

_CRDS = "customresourcedefinitions.apiextensions.k8s.io"
_REVIEWS = "selfsubjectaccessreviews.authorization.k8s.io"
_CLUSTER_WIDE = {"nodes", "namespaces", "persistentvolumes", _CRDS, _REVIEWS}
_BUILT_IN = {"", "apps", "batch", "autoscaling", "policy"}
_BUILT_IN |= {
    f"{group}.k8s.io"
    for group in (
        *("rbac.authorization", "authorization", "networking", "storage", "apiextensions"),
        *("coordination", "scheduling", "discovery", "events", "node", "admissionregistration"),
    )
}
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|scale))?"
)
_TOKEN = "the-token-of-a-test"


class Refused(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.reason = code, message, reason or _REASONS[code]

    def body(self) -> Object:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return {**status, "message": self.message, "reason": self.reason, "code": self.code}


@dataclass(slots=True)
class _Fault:
    trouble: Trouble
    verb: str
    resource: str
    left: int | None  # how often it still strikes; None: until `heal`


@dataclass(slots=True)
class KubernetesApi:
    """What the server holds and how it behaves. Any thread may call it."""

    namespace: str = "default"
    version: str = "v1.33.1"
    lingers: bool = False  # what is deleted in the foreground stays, terminating, until `remove`
    url: str = ""
    kubeconfig: Path = Path()
    requests: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    pages: dict[str, Object] = field(  # other paths, as those of a service's proxy
        default_factory=dict[str, Object]
    )
    checks: dict[str, Callable[[Object], str]] = field(  # by resource: what is wrong with it, or ""
        default_factory=dict[str, Callable[[Object], str]]
    )
    closing: threading.Event = field(default_factory=threading.Event)
    lock: Any = field(default_factory=threading.RLock)
    _objects: dict[Key, Object] = field(default_factory=dict[Key, Object])
    _forbidden: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _faults: list[_Fault] = field(default_factory=list[_Fault])
    _clock: int = 100

    # What tests do

    def install(
        self, group: str, version: str, kind: str, plural: str, *, namespaced: bool = True
    ) -> None:
        """Serve a custom kind, and list its definition."""
        spec = {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": version, "served": True, "storage": True}],
        }
        condition = {"type": "Established", "status": "True"}
        crd = {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}
        self.add(_CRDS, {**crd, "status": {"conditions": [condition]}})

    def add(self, resource: str, thing: Object) -> Object:
        """Put an object there, whatever was there before; with its status, as controllers do."""
        with self.lock:
            meta = thing.get("metadata", {})
            wide = self._is_wide(resource)
            namespace = "" if wide else meta.get("namespace", self.namespace)
            return self._store((resource, namespace, meta["name"]), deepcopy(thing))

    def objects(self, resource: str, namespace: str | None = None) -> list[Object]:
        """All of a kind, by name."""
        with self.lock:
            return [
                deepcopy(thing)
                for (of, where, _), thing in sorted(self._objects.items())
                if of == resource and namespace in (None, where)
            ]

    def names(self, resource: str) -> list[str]:
        """Of all that is not on its way out."""
        things = [thing["metadata"] for thing in self.objects(resource)]
        return [meta["name"] for meta in things if "deletionTimestamp" not in meta]

    def change(self, resource: str, name: str, patch: Object, namespace: str | None = None) -> None:
        """Merge this into an object: a status, say."""
        with self.lock:
            key = self._key(resource, name, namespace)
            self._store(key, merged(self._objects[key], patch))

    def remove(self, resource: str, name: str, namespace: str | None = None) -> None:
        """Behind everyone's back, or the end of a deletion in the foreground."""
        with self.lock:
            del self._objects[self._key(resource, name, namespace)]

    def forbid(self, verb: str, resource: str) -> None:
        """403 from now on; `*` for any."""
        self._forbidden.add((verb, resource))

    def allow_all(self) -> None:
        """Nothing is forbidden any more."""
        self._forbidden.clear()

    def fail(
        self, trouble: Trouble, verb: str = "*", resource: str = "*", times: int | None = None
    ) -> None:
        """Have requests fail, so many times or until `heal`."""
        with self.lock:
            self._faults.append(_Fault(trouble, verb, resource, times))

    def heal(self) -> None:
        """No trouble any more."""
        with self.lock:
            self._faults.clear()

    # What the server does

    def trouble(self, verb: str, resource: str) -> Trouble | None:
        with self.lock:
            for fault in self._faults:
                hit = fault.verb in ("*", verb) and fault.resource in ("*", resource)
                if hit and fault.left != 0:
                    fault.left = None if fault.left is None else fault.left - 1
                    return fault.trouble
        return None

    def check_right(self, verb: str, resource: str, namespace: str) -> None:
        if not self._allowed(verb, resource):
            plural, _, group = resource.partition(".")
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            raise Refused(
                403,
                f'{resource} is forbidden: User "system:serviceaccount:default:test" cannot '
                f'{verb} resource "{plural}" in API group "{group}"{where}',
            )

    def check_served(self, resource: str, version: str) -> None:
        group = resource.partition(".")[2]
        crd = self._objects.get((_CRDS, "", resource))
        served = [v["name"] for v in crd["spec"]["versions"] if v["served"]] if crd else []
        if group not in _BUILT_IN and version not in served:
            raise Refused(404, "the server could not find the requested resource")

    def find(self, key: Key) -> Object:
        if key not in self._objects:
            raise Refused(404, f'{key[0]} "{key[2]}" not found')
        return deepcopy(self._objects[key])

    def listed(self, resource: str, namespace: str, query: Mapping[str, str]) -> Object:
        selected = [
            thing
            for thing in self.objects(resource, namespace or None)
            if selects(query.get("labelSelector", ""), thing["metadata"].get("labels", {}))
            and _has_fields(query.get("fieldSelector", ""), thing)
        ]
        start = int(query.get("continue") or 0)
        end = start + int(query.get("limit") or len(selected) or 1)
        meta: Object = {"resourceVersion": str(self._clock)}
        if end < len(selected):
            meta |= {"continue": str(end), "remainingItemCount": len(selected) - end}
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": selected[start:end]}

    def create(self, resource: str, namespace: str, thing: Object, *, dry: bool) -> Object:
        meta = thing.setdefault("metadata", {})
        if "name" not in meta and "generateName" in meta:
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if resource == _REVIEWS:
            return self._review(thing)
        name = meta.get("name", "")
        if meta.get("namespace", namespace) != namespace:
            raise Refused(400, "the namespace of the object is not that of the request")
        if not _NAME.fullmatch(name) or len(name) > 253:
            raise Refused(422, f'{resource} "{name}" is invalid: metadata.name: Invalid value')
        if wrong := self.checks.get(resource, lambda _: "")(thing):
            raise Refused(422, f'{resource} "{name}" is invalid: {wrong}')
        key = (resource, namespace, name)
        if key in self._objects:
            raise Refused(409, f'{resource} "{name}" already exists', "AlreadyExists")
        thing.pop("status", None)
        for ours in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            meta.pop(ours, None)
        return thing if dry else self._store(key, thing)

    def replace(self, key: Key, thing: Object, sub: str | None, *, dry: bool) -> Object:
        old = self.find(key)
        given = thing.get("metadata", {}).get("resourceVersion")
        if given not in (None, old["metadata"]["resourceVersion"]):
            message = f'Operation cannot be fulfilled on {key[0]} "{key[2]}": it has been modified'
            raise Refused(409, message, "Conflict")
        new = {**old, "status": thing.get("status")} if sub == "status" else deepcopy(thing)
        if sub != "status" and "status" in old:
            new["status"] = old["status"]
        return new if dry else self._store(key, new)

    def patch(self, key: Key, patch: Object, how: str, query: Mapping[str, str]) -> Object:
        dry = "dryRun" in query
        if how.startswith("application/apply-patch"):
            if "fieldManager" not in query:
                raise Refused(400, "PatchOptions: fieldManager: Required value")
            if key not in self._objects:
                return self.create(key[0], key[1], patch, dry=dry)
        elif "merge-patch" not in how:
            raise Refused(415, f"the body of the request was in an unknown format: {how}")
        return self.replace(key, merged(self.find(key), patch), None, dry=dry)

    def delete(self, key: Key, options: Object, query: Mapping[str, str]) -> Object:
        thing = self.find(key)
        for name, value in options.get("preconditions", {}).items():
            if thing["metadata"].get(name) != value:
                message = f"Precondition failed: {name} in precondition: {value}"
                raise Refused(409, message, "Conflict")
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        if "dryRun" in query:
            return done
        policy = options.get("propagationPolicy") or query.get("propagationPolicy")
        if thing["metadata"].get("finalizers") or (self.lingers and policy == "Foreground"):
            thing["metadata"].setdefault("deletionTimestamp", _now())
            return self._store(key, thing)
        del self._objects[key]
        return done

    def _store(self, key: Key, thing: Object) -> Object:
        self._clock += 1
        old, meta = self._objects.get(key, {}), thing["metadata"]
        old_meta = old.get("metadata", {})
        changed = {k: v for k, v in thing.items() if k not in ("metadata", "status")} != {
            k: v for k, v in old.items() if k not in ("metadata", "status")
        }
        meta["name"] = key[2]
        if key[1]:
            meta["namespace"] = key[1]
        meta["uid"] = old_meta.get("uid") or meta.get("uid") or str(uuid.uuid4())
        now = meta.get("creationTimestamp") or _now()
        meta["creationTimestamp"] = old_meta.get("creationTimestamp") or now
        meta["generation"] = old_meta.get("generation", 0) + changed
        meta["resourceVersion"] = str(self._clock)
        self._objects[key] = thing
        return deepcopy(thing)

    def _key(self, resource: str, name: str, namespace: str | None) -> Key:
        wide = self._is_wide(resource)
        return resource, "" if wide else namespace or self.namespace, name

    def _is_wide(self, resource: str) -> bool:
        crd = self._objects.get((_CRDS, "", resource))
        scope = crd["spec"]["scope"] if crd else ""
        wide = resource in _CLUSTER_WIDE or resource.startswith("cluster")
        return wide or scope == "Cluster"

    def _allowed(self, verb: str, resource: str) -> bool:
        return not {
            (some_verb, some) for some_verb in (verb, "*") for some in (resource, "*")
        }.intersection(self._forbidden)

    def _review(self, thing: Object) -> Object:
        """May I? By the rights that were taken away."""
        asked = thing.get("spec", {}).get("resourceAttributes", {})
        resource = ".".join(t for t in (asked.get("resource", ""), asked.get("group", "")) if t)
        return {**thing, "status": {"allowed": self._allowed(asked.get("verb", ""), resource)}}


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386: null takes away, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Label selectors: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`, with commas."""
    return all(_term(term.strip(), labels) for term in re.split(r",(?![^(]*\))", selector) if term)


def _term(term: str, labels: Mapping[str, str]) -> bool:
    if found := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", term):
        values = {value.strip() for value in found[3].split(",")}
        return (labels.get(found[1]) in values) == (found[2] == "in")
    if found := re.fullmatch(r"([^=!]+?)\s*(!=|==?)\s*(.*)", term):
        return (labels.get(found[1]) == found[3]) == (found[2] != "!=")
    return term.removeprefix("!") in labels if term[0] != "!" else term[1:] not in labels


def _has_fields(selector: str, thing: Object) -> bool:
    for term in filter(None, selector.split(",")):
        path, _, value = term.partition("=")
        found: Any = thing
        for step in path.split("."):
            found = found.get(step, "") if isinstance(found, dict) else ""
        if str(found) != value.removeprefix("="):
            return False
    return True


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the head and the body are two writes
    api: KubernetesApi

    def log_message(self, format: str, *args: Any) -> None:  # its name is the library's
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        found = _PATH.fullmatch(unquote(url.path))
        part = {name: text or "" for name, text in found.groupdict().items()} if found else {}
        resource = ".".join(text for text in (part.get("plural"), part.get("group")) if text)
        verb = self._verb(part)
        self.api.requests.append((verb, resource, part.get("name", "")))
        trouble = self.api.trouble(verb, resource)
        if trouble == "hang":
            self.api.closing.wait()
        if trouble in ("hang", "drop"):
            return self._cut()
        try:
            if trouble in ("500", "503", "429"):
                raise Refused(int(trouble), "trouble that the test asked for")
            code, answer = self._answer(verb, resource, part, query, body)
        except Refused as refused:
            code, answer = refused.code, refused.body()
        return self._cut() if trouble == "lost" else self._send(code, answer)

    def _verb(self, part: Mapping[str, str]) -> str:
        if self.command == "GET":
            return "get" if part.get("name") or not part else "list"
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        return verbs[self.command]

    def _answer(
        self, verb: str, resource: str, part: Mapping[str, str], query: dict[str, str], body: bytes
    ) -> tuple[int, Object]:
        if self.headers.get("Authorization") != f"Bearer {_TOKEN}":
            raise Refused(401, "Unauthorized")
        if not part:
            return 200, self._about()
        key = (resource, part["namespace"], part["name"])
        with self.api.lock:
            self.api.check_right(verb, resource, part["namespace"])
            self.api.check_served(resource, part["version"])
            try:
                thing = yaml.safe_load(body) if body else {}
            except yaml.YAMLError as exc:
                raise Refused(400, f"the body makes no sense: {exc}") from exc
            return self._act(verb, key, part["sub"], query, thing)

    def _act(
        self, verb: str, key: Key, sub: str, query: dict[str, str], thing: Object
    ) -> tuple[int, Object]:
        api, dry = self.api, "dryRun" in query
        if verb == "create":
            return 201, api.create(key[0], key[1], thing, dry=dry)
        if verb == "update":
            return 200, api.replace(key, thing, sub, dry=dry)
        if verb == "patch":
            return 200, api.patch(key, thing, self.headers.get("Content-Type", ""), query)
        if verb == "delete":
            return 200, api.delete(key, thing, query)
        return 200, api.find(key) if verb == "get" else api.listed(key[0], key[1], query)

    def _about(self) -> Object:
        path = urlsplit(self.path).path
        if path == "/version":
            major, minor = self.api.version.removeprefix("v").split(".")[:2]
            return {"major": major, "minor": minor, "gitVersion": self.api.version}
        if path in ("/healthz", "/readyz", "/livez"):
            return {"status": "ok"}
        if path in self.api.pages:
            if "/proxy/" in path:
                self.api.check_right("get", "services/proxy", self.api.namespace)
            return self.api.pages[path]
        raise Refused(404, "the server could not find the requested resource")

    def _send(self, code: int, answer: Object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away


@contextmanager
def kubernetes_api(folder: Path, *, namespace: str = "default") -> Generator[KubernetesApi]:
    """A running server, and a kubeconfig for it in the folder."""
    api = KubernetesApi(namespace=namespace)
    handler = type("Handler", (_Handler,), {"api": api})
    server = _Server(("127.0.0.1", 0), handler)
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    api.kubeconfig = folder / "kubeconfig"
    api.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(api)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _kubeconfig(api: KubernetesApi) -> Object:
    context = {"cluster": "test", "user": "test", "namespace": api.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": api.url}}],
        "users": [{"name": "test", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "test", "context": context}],
    }
