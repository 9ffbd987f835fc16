"""A container's environment and arguments as a kubelet makes them from a pod's specification.

Pure: the ConfigMaps and Secrets come with the call. Service variables are left out, as our pods
say `enableServiceLinks: false`.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_LABEL = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass(frozen=True, slots=True)
class Container:
    """What runs, with everything resolved."""

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: dict[str, str]


def expand(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, or stays where there is none; `$$` becomes `$`."""

    def replaced(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else values.get(name, found[0])

    return _REFERENCE.sub(replaced, text)


def stores_of(objects: Sequence[Json]) -> dict[tuple[str, str], dict[str, str]]:
    """The data of the ConfigMaps and Secrets, by kind and name."""
    found = {}
    for each in objects:
        if each["kind"] in ("ConfigMap", "Secret"):
            data = dict(each.get("data") or {})
            if each["kind"] == "Secret":
                data = {key: b64decode(value).decode() for key, value in data.items()}
                data |= each.get("stringData") or {}
            found[each["kind"], each["metadata"]["name"]] = data
    return found


def container_of(
    spec: Json,
    field: Callable[[str], str],
    stores: Mapping[tuple[str, str], Mapping[str, str]],
    added: Mapping[str, str],
) -> Container:
    """One container; `field` answers field paths, `added` is what a controller appends to env.

    Raises ValueError for a ConfigMap, Secret or key that must be there and is not.
    """
    env: dict[str, str] = {}
    for source in spec.get("envFrom", ()):
        env |= _all_of(source, stores)
    # Only what env itself has defined so far is expanded in it; envFrom is not.
    known: dict[str, str] = {}
    for each in _with_added(spec.get("env", ()), added):
        value = _value(each, known, field, stores)
        if value is not None:
            known[each["name"]] = env[each["name"]] = value
    return Container(
        spec["name"],
        spec["image"],
        tuple(expand(word, env) for word in spec.get("command", ())),
        tuple(expand(word, env) for word in spec.get("args", ())),
        env,
    )


def answer_field(pod: Json, told: Mapping[str, str]) -> Callable[[str], str]:
    """Answers field paths of a pod; `told` has those that only a cluster knows."""

    def answer(path: str) -> str:
        if path in told:
            return told[path]
        if found := _LABEL.fullmatch(path):
            return pod["metadata"].get(found[1], {}).get(found[2], "")
        if path == "spec.serviceAccountName":
            return pod["spec"].get("serviceAccountName", "default")
        raise ValueError(f"{path} is no field that a kubelet resolves here")

    return answer


def _with_added(env: Sequence[Json], added: Mapping[str, str]) -> list[Json]:
    names = {each["name"] for each in env}
    extra = ({"name": name, "value": value} for name, value in added.items() if name not in names)
    return [*env, *extra]


def _all_of(source: Json, stores: Mapping[tuple[str, str], Mapping[str, str]]) -> dict[str, str]:
    prefix = source.get("prefix", "")
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if field in source:
            data = _store(kind, source[field], stores)
            return {prefix + key: value for key, value in data.items()}
    raise ValueError(f"envFrom without a source: {source}")


def _value(
    each: Json,
    known: Mapping[str, str],
    field: Callable[[str], str],
    stores: Mapping[tuple[str, str], Mapping[str, str]],
) -> str | None:
    source = each.get("valueFrom")
    if source is None:
        return expand(each.get("value") or "", known)
    if "fieldRef" in source:
        return field(source["fieldRef"]["fieldPath"])
    for name, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if name in source:
            return _one_of(kind, source[name], stores)
    raise ValueError(f"{each['name']}: {source} is no source that is resolved here")


def _one_of(
    kind: str, wanted: Json, stores: Mapping[tuple[str, str], Mapping[str, str]]
) -> str | None:
    data = _store(kind, wanted, stores)
    if wanted["key"] in data:
        return data[wanted["key"]]
    if wanted.get("optional"):
        return None
    raise ValueError(f"{kind} {wanted['name']} has no key {wanted['key']}")


def _store(
    kind: str, wanted: Json, stores: Mapping[tuple[str, str], Mapping[str, str]]
) -> Mapping[str, str]:
    found = stores.get((kind, wanted["name"]))
    if found is None and not wanted.get("optional"):
        raise ValueError(f"{kind} {wanted['name']} is not in the same rendering")
    return found or {}
