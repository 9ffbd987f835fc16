"""The queries of alerts and dashboards, parsed as Prometheus does. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser
from promql_parser import AggregateExpr, BinaryExpr, Call, MatrixSelector, VectorSelector

Json = Mapping[str, Any]
# What Prometheus adds to all series of a pod.
OF_TARGETS = {"namespace", "pod", "container", "job", "instance"}
# Of a histogram's series, and none of the metric's own.
_OF_BUCKETS = {"le"}


@dataclass(frozen=True)
class Query:
    """One expression: which series it selects, by which labels, and by which it groups."""

    text: str
    selected: Mapping[str, frozenset[str]]  # labels that are asked of each metric
    grouped: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Query:
        """Raises ValueError for what Prometheus would refuse."""
        selected: dict[str, frozenset[str]] = {}
        grouped: set[str] = set()

        def visit(node: Any) -> None:
            if isinstance(node, MatrixSelector):
                node = node.vector_selector
            if isinstance(node, VectorSelector):
                labels = {each.name for each in node.matchers.matchers} - {"__name__"}
                selected[node.name or ""] = selected.get(node.name or "", frozenset()) | labels
            elif isinstance(node, AggregateExpr) and node.modifier is not None:
                grouped.update(node.modifier.labels)

        promql_parser.walk(promql_parser.parse(_without_variables(text)), visit)
        return cls(text, selected, frozenset(grouped) - _OF_BUCKETS)


def expressions(each: Json) -> Iterator[str]:
    """Yield the expressions of a rule, a dashboard or a ScaledObject; of other objects none."""
    if each["kind"] == "PrometheusRule":
        for group in each["spec"]["groups"]:
            yield from (rule["expr"] for rule in group["rules"])
    elif each["kind"] == "ScaledObject":
        yield from (trigger["metadata"]["query"] for trigger in each["spec"]["triggers"])
    elif "grafana_dashboard" in (each["metadata"].get("labels") or {}):
        for text in each["data"].values():
            for panel in json.loads(text)["panels"]:
                yield from (target["expr"] for target in panel["targets"])


def mixes_cells(text: str) -> bool:
    """Tell whether a query adds up series of several namespaces, or tells their absence as one.

    `... or absent(x)` tells of none at all, and is no mixture.
    """
    return _mixes(promql_parser.parse(_without_variables(text)))


def _mixes(node: Any) -> bool:
    if isinstance(node, BinaryExpr) and str(node.op) == "or" and _is_absent(node.rhs):
        return _mixes(node.lhs)
    groups = isinstance(node, AggregateExpr) and "namespace" not in (
        node.modifier.labels if node.modifier is not None else ()
    )
    return (groups or _is_absent(node)) and not _selects(node) or any(map(_mixes, _below(node)))


def _is_absent(node: Any) -> bool:
    return isinstance(node, Call) and node.func.name.startswith("absent")


def _selects(node: Any) -> bool:
    if isinstance(node, VectorSelector):
        return "namespace" in {each.name for each in node.matchers.matchers}
    return all(map(_selects, _below(node)))


def _below(node: Any) -> list[Any]:
    if isinstance(node, MatrixSelector):
        return [node.vector_selector]
    if isinstance(node, BinaryExpr):
        return [node.lhs, node.rhs]
    below = [getattr(node, "expr", None), *getattr(node, "args", ())]
    return [each for each in below if each is not None]


def _without_variables(text: str) -> str:
    """Return what Grafana would ask; its other variables stand within quotes."""
    return text.replace("$__rate_interval", "5m").replace("$__range", "1h")
