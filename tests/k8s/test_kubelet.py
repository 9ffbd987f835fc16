"""Variables as kubelets resolve them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each_case import each_case
from tests.k8s.kubelet import answer_field, container_of, expand, stores_of

POD = {
    "metadata": {"labels": {"a.example/b": "label"}, "annotations": {"c": "note"}},
    "spec": {"serviceAccountName": "someone"},
}
FIELD = answer_field(POD, {"status.podIP": "10.0.0.9", "metadata.name": "pod-0"})
STORES = {("ConfigMap", "cell"): {"A": "from the map"}, ("Secret", "keys"): {"k": "secret"}}


def made(**spec: Any) -> Any:
    return container_of({"name": "c", "image": "i", **spec}, FIELD, STORES, {})


def value(name: str, text: str) -> dict[str, str]:
    return {"name": name, "value": text}


def field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


@each_case(
    "text, becomes",
    [
        ("$(A)", "1"),
        ("x-$(A)-$(B)", "x-1-2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("a$$b", "a$b"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text: str, becomes: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == becomes


@given(st.text())
def test_text_without_a_dollar_stays(text: str) -> None:
    text = text.replace("$", "")
    assert expand(text, {"A": "1"}) == text


@given(st.text())
def test_doubled_dollars_keep_any_text_as_it_is(text: str) -> None:
    assert expand(text.replace("$", "$$"), {text: "1"}) == text


def test_only_variables_that_come_before_are_expanded() -> None:
    container = made(env=[value("B", "$(A)"), value("A", "1"), value("C", "$(A)")])
    assert container.env == {"B": "$(A)", "A": "1", "C": "1"}


def test_variables_of_a_map_are_not_expanded_in_others_but_in_arguments() -> None:
    source = [{"configMapRef": {"name": "cell"}}]
    container = made(envFrom=source, env=[value("B", "$(A)")], args=["--a=$(A)"], command=["$$(A)"])
    assert container.env == {"A": "from the map", "B": "$(A)"}
    assert container.args == ("--a=from the map",)
    assert container.command == ("$(A)",)


def test_variables_of_their_own_win_over_those_of_a_map() -> None:
    assert made(envFrom=[{"configMapRef": {"name": "cell"}}], env=[value("A", "own")]).env == {
        "A": "own"
    }


def test_fields_of_the_pod_are_told_and_not_expanded() -> None:
    env = [
        field("IP", "status.podIP"),
        field("NAME", "metadata.name"),
        field("LABEL", "metadata.labels['a.example/b']"),
        field("NOTE", "metadata.annotations['c']"),
        field("NO", "metadata.labels['absent']"),
        field("SA", "spec.serviceAccountName"),
        value("URL", "http://$(IP):1"),
    ]
    assert made(env=env).env == {
        "IP": "10.0.0.9",
        "NAME": "pod-0",
        "LABEL": "label",
        "NOTE": "note",
        "NO": "",
        "SA": "someone",
        "URL": "http://10.0.0.9:1",
    }


def test_keys_of_secrets_are_found() -> None:
    wanted = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}
    assert made(env=[wanted]).env == {"K": "secret"}


@each_case(
    "spec",
    [
        {"envFrom": [{"configMapRef": {"name": "absent"}}]},
        {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "no"}}}]},
        {"env": [field("X", "status.phase")]},
        {"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
    ],
)
def test_what_is_not_there_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="absent|no key|no field|no source"):
        made(**spec)


def test_what_is_optional_may_be_absent() -> None:
    key = {"name": "absent", "key": "k", "optional": True}
    env = [{"name": "K", "valueFrom": {"configMapKeyRef": key}}]
    source = [{"secretRef": {"name": "absent", "optional": True}}]
    assert made(env=env, envFrom=source).env == {}


def test_secrets_are_read_from_both_of_their_forms() -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"a": "aGVsbG8="},
        "stringData": {"b": "plain"},
    }
    assert stores_of([secret]) == {("Secret", "s"): {"a": "hello", "b": "plain"}}
