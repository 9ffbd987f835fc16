"""Do the metrics that alerts, dashboards, autoscalers and pickers ask for exist? Pure."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from http_gateway.metrics import GatewayMetrics as GatewayMetrics
from model_server.serving.metrics.registry import ModelServerMetrics as ModelMetrics
from model_server.serving.metrics.registry import VersionRequests
from tests.k8s.finding import Finding, title_of
from tests.k8s.manifests import ROOT
from tests.k8s.queries import expressions, mixes_cells

Json = Mapping[str, Any]
_NAME = re.compile(r"\b(?:sax|process)_\w+")
_ADMIN_COUNTER = re.compile(r'CounterMetricFamily\(\s*"(sax_\w+)"')
_ADMIN_ANY = re.compile(r'"(sax_admin_\w+)"')
_SAMPLES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
}


def check_metrics(objects: Sequence[Json]) -> Iterator[Finding]:
    """Every name that one of these objects asks for and nobody exposes, and every query that is
    none.
    """
    for each in objects:
        for text in expressions(each):
            try:
                if mixes_cells(text):
                    yield Finding(title_of(dict(each)), f"{text} mixes cells: say the namespace")
            except ValueError as problem:
                yield Finding(title_of(dict(each)), f"{text} is no query: {problem}")
        for name in sorted(asked_for(each) - exposed()):
            yield Finding(title_of(dict(each)), f"there is no metric {name}")


def asked_for(each: Json) -> set[str]:
    """The names of our metrics, and of those of our processes, in one object."""
    match each["kind"]:
        case "PrometheusRule":
            text = " ".join(expressions(each))
        case "HorizontalPodAutoscaler" | "ScaledObject":
            spec = {key: each["spec"].get(key) for key in ("metrics", "triggers")}
            text = json.dumps(spec)
        case "ConfigMap" if "grafana_dashboard" in (each["metadata"].get("labels") or {}):
            text = " ".join((*expressions(each), *_variables(each)))
        case "Deployment":
            every = each["spec"]["template"]["spec"]["containers"]
            words = (word for one in every for word in one.get("args", ()))
            text = " ".join(word for word in words if "-metric=" in word)
        case _:
            return set()
    return set(_NAME.findall(text))


def _variables(dashboard: Json) -> Iterator[str]:
    for text in dashboard["data"].values():
        listed = json.loads(text)["templating"]["list"]
        yield from (str(each.get("query", "")) for each in listed)


@functools.cache
def exposed() -> frozenset[str]:
    """The names of all samples that our three processes expose."""
    kinds = {
        family.name: family.type
        for registry in (GatewayMetrics().registry, ModelMetrics(lambda: (), lambda: 0).registry)
        for family in registry.collect()
    }
    kinds |= {each.name: each.type for each in VersionRequests(lambda: (), str).collect()}
    # The admin server's come with a cell that leads: read from where they are written.
    source = (ROOT / "admin_server" / "api" / "metrics.py").read_text()
    kinds |= dict.fromkeys(_ADMIN_ANY.findall(source), "gauge")
    kinds |= dict.fromkeys(_ADMIN_COUNTER.findall(source), "counter")
    return frozenset(f"{name}{end}" for name, kind in kinds.items() for end in _SAMPLES[kind])
