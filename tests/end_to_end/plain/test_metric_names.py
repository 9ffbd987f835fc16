"""What alerts and dashboards ask for is there, with its labels, in a running cell."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from model_server.serving.metrics.registry import NAMES, OLDER
from tests.end_to_end.cell import SMOLLM2, Cell
from tests.k8s.metrics import exposed
from tests.k8s.queries import OF_TARGETS, Query, expressions
from tests.k8s.test_queries import OBJECTS

# Only an admin server that asks Kubernetes for model servers has them.
PROVISIONED = {"sax_admin_kubernetes_failing"}
_ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@pytest.fixture(scope="module")
def pages(served: Cell) -> list[str]:
    """What a scraper reads of gateway, model server and admin server, after a request."""
    served.complete("The sky is", max_tokens=4).raise_for_status()
    plan = served.plan
    urls = (
        f"{plan.gateway_url}/metrics",
        plan.model_servers[0].metrics_url,
        f"http://127.0.0.1:{plan.status_port}/metrics",
    )
    return [httpx.get(url, trust_env=False).raise_for_status().text for url in urls]


@pytest.fixture(scope="module")
def queries() -> list[Query]:
    return [Query.parse(text) for each in OBJECTS for text in expressions(each)]


def series(pages: list[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for page in pages:
        for family in text_string_to_metric_families(page):
            for ending in _ENDINGS[family.type]:
                yield f"{family.name}{ending}", frozenset()
            yield from ((each.name, frozenset(each.labels)) for each in family.samples)


def test_every_query_selects_what_is_exposed(pages: list[str], queries: list[Query]) -> None:
    labels: dict[str, set[str]] = {}
    for name, of_one in series(pages):
        labels.setdefault(name, set()).update(of_one)
    asked = {name: found for query in queries for name, found in query.selected.items()}
    assert set(asked) - PROVISIONED <= set(labels)
    for query in queries:
        found = [labels[name] for name in query.selected if labels.get(name)]
        if not found:
            continue  # no series yet
        for name, wanted in query.selected.items():
            assert not labels.get(name) or wanted <= labels[name] | OF_TARGETS, query.text
        assert query.grouped <= set.union(*found) | OF_TARGETS, query.text


def test_what_the_checks_of_manifests_take_for_exposed_is(
    pages: list[str], queries: list[Query]
) -> None:
    names = {name for name, _ in series(pages)}
    asked = {name for query in queries for name in query.selected}
    assert asked & exposed() - PROVISIONED <= names


def test_vllms_names_have_the_figures_of_the_model(pages: list[str]) -> None:
    families = {each.name: each for each in text_string_to_metric_families(pages[1])}
    for ours, theirs in (*NAMES, *OLDER):
        values = [each.value for each in families[theirs].samples]
        models = {each.labels.get("model_name") for each in families[theirs].samples}
        if ours != "sax_requests_ended":
            assert values == [each.value for each in families[ours].samples]
        assert SMOLLM2 in models, theirs
