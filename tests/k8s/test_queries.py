"""Alerts and dashboards ask only for what a process exposes, in queries that Prometheus takes."""

from __future__ import annotations

from typing import Any

import yaml

from tests.each_case import each_case
from tests.k8s.manifests import K8S
from tests.k8s.metrics import check_metrics
from tests.k8s.queries import Query, expressions

OBJECTS: list[dict[str, Any]] = [
    each
    for path in sorted((K8S / "overlays" / "monitoring").glob("*.yaml"))
    for each in yaml.safe_load_all(path.read_text())
    if each["kind"] in ("PrometheusRule", "ConfigMap")
]


def rule(expr: str) -> dict[str, Any]:
    groups = [{"name": "g", "rules": [{"alert": "A", "expr": expr}]}]
    return {"kind": "PrometheusRule", "metadata": {"name": "r"}, "spec": {"groups": groups}}


def test_ours_hold() -> None:
    assert len([text for each in OBJECTS for text in expressions(each)]) > 40
    assert [str(found) for found in check_metrics(OBJECTS)] == []


@each_case(
    "expr, told",
    [
        ("sum by (model (sax_slots)", "is no query"),
        ("rate(sax_slots)", "is no query"),
        ("sax_slotz > 1", "there is no metric sax_slotz"),
        ("sax_preemptions > 1", "there is no metric sax_preemptions"),  # it ends in _total
        ("max(sax_slots) > 1", "mixes cells"),
        ("sum by (model) (sax_slots) > 1", "mixes cells"),
        ("sum by (model) (rate(sax_preemptions_total[5m])) / sum(sax_slots)", "mixes cells"),
        ("absent(sax_slots == 1)", "mixes cells"),
    ],
)
def test_what_would_never_fire_is_found(expr: str, told: str) -> None:
    (found,) = check_metrics([rule(expr)])
    assert told in str(found)


@each_case(
    "expr",
    [
        "sum by (namespace, model) (sax_slots) > 1",
        'sum(sax_slots{namespace="a"}) / max(rate(sax_preemptions_total{namespace="a"}[5m]))',
        "increase(sax_preemptions_total[5m]) > 1",
        "group by (namespace) (sax_slots) or absent(sax_slots)",
    ],
)
def test_what_tells_cells_apart_is_let_through(expr: str) -> None:
    assert list(check_metrics([rule(expr)])) == []


def test_a_query_tells_which_labels_it_asks_for() -> None:
    query = Query.parse(
        'sum by (model, le) (rate(a_bucket{model=~"$model"}[$__rate_interval])) / b{pod="x"}'
    )
    assert query.selected == {"a_bucket": {"model"}, "b": {"pod"}}
    assert query.grouped == {"model"}
