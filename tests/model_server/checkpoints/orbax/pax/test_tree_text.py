"""The text that jax prints for a tree says where its leaves belong."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.orbax.pax.tree_text import BadTree, leaf_paths
from tests.each_case import each_case
from tests.model_server.checkpoints.pax_writer import TrainState

Pair = namedtuple("Pair", "first second")


class NestedMap(dict[str, Any]):
    """As Praxis registers its own: keys are the auxiliary data."""


jax.tree_util.register_pytree_node(
    NestedMap,
    lambda tree: (tuple(tree[key] for key in sorted(tree)), tuple(sorted(tree))),
    lambda keys, children: NestedMap(zip(keys, children, strict=True)),
)


def paths_of(tree: Any) -> list[str]:
    return leaf_paths(str(jax.tree.structure(tree)))


def test_a_train_state_has_the_fields_of_pax() -> None:
    state = TrainState(1, {"params": {"lm": {"b": 2, "a": 3}}}, [{"m": (4, None)}], {"ema": 5})
    assert paths_of(state) == [
        "step",
        "mdl_vars/params/lm/a",
        "mdl_vars/params/lm/b",
        "opt_states/0/m/0",
        "extra_state/ema",
    ]


def test_nested_maps_have_their_keys_and_other_classes_numbers() -> None:
    tree = [NestedMap(w=1, b=NestedMap(x=2)), Pair(3, 4), (), {}, None]
    assert paths_of(tree) == ["0/b/x", "0/w", "1/0", "1/1"]


def test_a_leaf_alone_has_no_path() -> None:
    assert paths_of(7) == [""]


_TREES = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.from_regex(r"\A[a-z_.0-9]{1,6}\Z"), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
)


@given(_TREES)
def test_paths_are_those_that_jax_finds(tree: Any) -> None:
    wanted = [
        "/".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    assert paths_of(tree) == wanted


@given(st.text(alphabet="*{}[](),:' aNone", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BadTree):
        leaf_paths(text)


@each_case(
    "text",
    ["", "PyTreeDef(*", "PyTreeDef(*) *", "{'a' *}", "Foo", "[" * 1000, "CustomNode(A[, [*])"],
)
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(BadTree):
        leaf_paths(text)
