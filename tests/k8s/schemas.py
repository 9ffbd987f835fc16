"""Does an object have the form that its API server asks for?

Core kinds by the published schemas of Kubernetes, custom kinds by the schema of their CRD, both
strictly: an unknown field is an error here, where a server would drop it or warn. A kind without a
schema is named in a note. Reads schemas from files; knows nothing of clusters.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.k8s.cel import check_rules
from tests.k8s.finding import Finding, title_of
from tests.k8s.manifests import ROOT
from tests.k8s.structural import check_lists, strict, with_defaults

CRDS = ROOT.parent / "shared" / "crds"
NO_CRDS = f"the custom resource definitions are not at {CRDS}"
# Of the nearest published version; what is new in it is none of ours.
_VERSION = kubernetes_validate.latest_version()
_METADATA = {"name", "namespace", "labels", "annotations", "finalizers", "generateName"}


@functools.cache
def custom_schemas(folder: Path = CRDS) -> Mapping[tuple[str, str], dict[str, Any]]:
    """The schemas of the CRDs in a folder, by apiVersion and kind; none where it is absent."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        spec = yaml.load(path.read_text(), loader)["spec"]
        for version in spec["versions"]:
            key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
            found[key] = version["schema"]["openAPIV3Schema"]
    return found


def check_schema(each: dict[str, Any]) -> list[Finding]:
    """Everything about the form of one object."""
    return list(_check(json.dumps(each, sort_keys=True)))


@functools.cache
def _check(text: str) -> tuple[Finding, ...]:
    """By text, as the same control plane is in most renderings."""
    each = json.loads(text)
    if not (each.get("apiVersion") and each.get("kind") and each.get("metadata", {}).get("name")):
        return (Finding(title_of(each), "apiVersion, kind or metadata.name is missing"),)
    schema = custom_schemas().get((each["apiVersion"], each["kind"]))
    if schema is not None:
        return tuple(check_custom(each, schema))
    try:
        kubernetes_validate.validate(each, _VERSION, strict=True)
    except kubernetes_validate.ValidationError as problem:
        path = ".".join(str(part) for part in problem.path)
        return (Finding(f"{title_of(each)} {path}", problem.message),)
    except kubernetes_validate.SchemaNotFoundError:
        kind = f"{each['apiVersion']} {each['kind']}"
        return (Finding(title_of(each), f"no schema here for {kind}", note=True),)
    return ()


def check_custom(each: dict[str, Any], schema: dict[str, Any]) -> Iterator[Finding]:
    """One object against the schema of its CRD, with the defaults that a server would fill in."""
    title = title_of(each)
    for key in sorted(set(each["metadata"]) - _METADATA):
        yield Finding(f"{title} metadata", f"unknown field {key!r}")
    filled = with_defaults(each, schema)
    problems = list(_validator(id(schema), schema).iter_errors(filled))
    for problem in problems:
        path = ".".join(str(part) for part in problem.absolute_path)
        yield Finding(f"{title} {path}", problem.message[:400])
    yield from check_lists(filled, schema, title)
    if not problems:  # rules are written for values of the right form
        yield from check_rules(filled, schema, title)


_VALIDATORS: dict[int, tuple[Any, Any]] = {}


def _validator(key: int, schema: dict[str, Any]) -> Any:
    if key not in _VALIDATORS or _VALIDATORS[key][0] is not schema:
        # OpenAPI 3.0 writes numbers' bounds as draft 4 did.
        _VALIDATORS[key] = schema, jsonschema.Draft4Validator(strict(schema, root=True))
    return _VALIDATORS[key][1]
