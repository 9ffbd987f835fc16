"""Arrays of a flax file are read in parts, those in pieces too; hostile files are refused."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.orbax.folder import Folder
from model_server.checkpoints.orbax.pax.flax_file import BadTree, leaf_paths, read_flax_tree
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.orbax_trees import nested, with_config
from tests.model_server.checkpoints.pax_writer import TrainState, packed
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights


def opened(folder: Path, tree: Any) -> dict[str, Any]:
    (folder / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(tree))
    found = read_flax_tree(Folder(str(folder)), "checkpoint")
    return found.open(found.paths)


def test_arrays_of_every_format_are_found_between_other_values(tmp_path: Path) -> None:
    tree = {
        "step": 7,
        "note": "text",
        "scalar": np.float32(2.5),
        "lm": {"a.b": np.arange(6, dtype=np.int32).reshape(2, 3), "none": None},
        "w": np.full((2, 2), 1.5, ml_dtypes.bfloat16),
    }
    arrays = opened(tmp_path, tree)
    assert sorted(arrays) == ["lm/a/b", "scalar", "w"]
    np.testing.assert_array_equal(arrays["lm/a/b"].read().result(), tree["lm"]["a.b"])
    assert arrays["scalar"].read().result() == 2.5
    assert arrays["w"].dtype.name == "bfloat16"
    np.testing.assert_array_equal(arrays["w"].read().result(), tree["w"])


@each_case("dtype", [np.float32, ml_dtypes.bfloat16])
def test_an_array_in_pieces_is_one_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 100)
    values = np.arange(7 * 5 * 4).reshape(7, 5, 4).astype(dtype)
    array = opened(tmp_path, {"big": {"w": values}})["big/w"]
    assert tuple(array.shape) == values.shape
    np.testing.assert_array_equal(array.read().result(), values)
    np.testing.assert_array_equal(array[2:6, 1, 1:3].read().result(), values[2:6, 1, 1:3])


def test_a_tree_of_another_library_is_read_in_its_dialect(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    (tmp_path / "checkpoint").write_bytes(
        flax.serialization.msgpack_serialize({"params": nested(weights, ".")})
    )
    checkpoint = open_checkpoint(str(with_config(tmp_path, CONFIG)))
    assert checkpoint.format == "orbax"
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)


def test_a_file_for_each_step_is_the_oldest_layout(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    body = flax.serialization.msgpack_serialize({"params": nested(weights, ".")})
    (tmp_path / "checkpoint_10").write_bytes(body)
    (tmp_path / "checkpoint_9").write_bytes(b"\x80")
    with_config(tmp_path, CONFIG)
    for path in (tmp_path, tmp_path / "checkpoint_10"):
        assert sorted(open_checkpoint(str(path)).names()) == sorted(weights)


def _array(shape: Any, kind: Any, body: bytes) -> msgpack.ExtType:
    return msgpack.ExtType(1, packed((shape, kind, body)))


def _chunked(shape: dict[str, int], *chunks: Any) -> dict[str, Any]:
    numbered = {str(number): chunk for number, chunk in enumerate(chunks)}
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": numbered}


_FOUR = _array([4], "float32", bytes(16))
HOSTILE: dict[str, tuple[Any, str]] = {
    "more numbers than bytes": (_array([2**40], "float32", bytes(8)), "has 8 bytes"),
    "a shape without end": (_array([2**40] * 9, "float32", b""), "no sensible shape"),
    "a negative shape": (_array([-1, -4], "float32", bytes(16)), "no sensible shape"),
    "a shape of texts": (_array(["4"], "float32", bytes(16)), "no sensible shape"),
    "Python objects": (_array([1], "object", bytes(8)), "no numbers"),
    "an unknown format": (_array([1], "float7", bytes(8)), "unknown number format"),
    "another content": (msgpack.ExtType(1, b"\x01"), "no array as flax packs it"),
    "no content": (msgpack.ExtType(1, b""), "ends within a value"),
    "pieces of another size": (_chunked({"0": 9}, _FOUR, _FOUR), "do not make up"),
    "no pieces": (_chunked({"0": 0}), "number format"),
    "pieces of two formats": (
        _chunked({"0": 6}, _FOUR, _array([2], "int32", bytes(8))),
        "number format",
    ),
    "pieces that are none": (_chunked({"0": 4}, 7), "no arrays"),
    "a shape with a gap": (_chunked({"1": 4}, _FOUR), "numbered from 0"),
}


@each_case("name", HOSTILE)
def test_hostile_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    value, reason = HOSTILE[name]
    (tmp_path / "checkpoint").write_bytes(packed({"lm": {"w": value}}))
    with pytest.raises(CheckpointError, match=f"checkpoint is not what flax writes.*{reason}"):
        read_flax_tree(Folder(str(tmp_path)), "checkpoint")


@each_case("body", [b"", b"\x80\x04\x95pickle", b"\x93\x01"])
def test_other_files_are_refused(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(body)
    with pytest.raises(CheckpointError, match="not what flax writes"):
        open_checkpoint(str(tmp_path))


def test_leaves_must_be_as_many_as_the_structure_has(tmp_path: Path) -> None:
    tree = {"flattened_state": {"0": 1}, "str_pytree_state": "PyTreeDef([*, *])"}
    with pytest.raises(CheckpointError, match="its structure has 2 leaves"):
        opened(tmp_path, tree)


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
