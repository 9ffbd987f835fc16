"""What Orbax wrote is read in Hugging Face's terms, from wherever it lies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.each_case import Failures
from tests.model_server.checkpoints.bucket_server import BucketServer
from tests.model_server.checkpoints.orbax_trees import flax_llama, nested, save, with_config
from tests.model_server.checkpoints.tiny_folder import CHAT, CONFIG, random_weights, write_tiny

WEIGHTS = random_weights(CONFIG)
QUERY = "model.layers.0.self_attn.q_proj.weight"


def _assert_holds(checkpoint: Checkpoint, weights: dict[str, np.ndarray] = WEIGHTS) -> None:
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, values in weights.items():
        read = checkpoint.read(name)
        np.testing.assert_array_equal(read, values)
        assert checkpoint.shape(name) == values.shape
        assert checkpoint.dtype(name) == str(values.dtype) == str(read.dtype)
        assert checkpoint.nbytes(name) == values.nbytes


@pytest.mark.parametrize("ocdbt", [True, False])
@pytest.mark.parametrize("zarr3", [True, False])
def test_every_way_of_storing_is_read(tmp_path: Path, ocdbt: bool, zarr3: bool) -> None:
    folder = with_config(save(tmp_path / "x", WEIGHTS, ocdbt=ocdbt, zarr3=zarr3), CONFIG)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.format == "orbax"
    _assert_holds(checkpoint)
    region = (slice(3, 7), slice(2, 5))
    np.testing.assert_array_equal(checkpoint.read(QUERY, region), WEIGHTS[QUERY][3:7, 2:5])


def test_nested_names_and_half_precision(tmp_path: Path) -> None:
    weights = {name: values.astype(ml_dtypes.bfloat16) for name, values in WEIGHTS.items()}
    folder = with_config(save(tmp_path / "x", nested(weights, ".")), CONFIG)
    _assert_holds(open_checkpoint(str(folder)), weights)


def test_only_the_weights_of_a_training_state_count(tmp_path: Path) -> None:
    state = {
        "step": 7,
        "note": "text",
        "opt_state": {"mu": {"w": np.zeros(3)}},
        "params": {"params": nested(WEIGHTS, ".")},
    }
    _assert_holds(open_checkpoint(str(with_config(save(tmp_path / "x", state), CONFIG))))


def test_variables_of_nnx_are_the_arrays_inside_them(tmp_path: Path) -> None:
    tree = {name: {"value": values} for name, values in WEIGHTS.items()}
    _assert_holds(open_checkpoint(str(with_config(save(tmp_path / "x", tree), CONFIG))))


def test_a_checkpoint_manager_keeps_config_beside_its_steps(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in (9, 10):
            tree = {n: v + np.float32(step) for n, v in WEIGHTS.items()}
            manager.save(step, args=ocp.args.Composite(params=ocp.args.StandardSave(tree)))
    with_config(tmp_path / "run", CONFIG)
    for path in ("run", "run/10", "run/10/params"):
        read = open_checkpoint(str(tmp_path / path)).read(QUERY)
        np.testing.assert_array_equal(read, WEIGHTS[QUERY] + np.float32(10))


def test_metadata_is_not_needed(tmp_path: Path) -> None:
    for ocdbt in (True, False):
        folder = save(tmp_path / str(ocdbt), flax_llama(WEIGHTS), ocdbt=ocdbt)
        (folder / "_METADATA").unlink()
        _assert_holds(open_checkpoint(str(with_config(folder, CONFIG))))


@pytest.mark.parametrize("scheme", [pytest.param("gs", marks=pytest.mark.nightly), "s3"])
@pytest.mark.parametrize("ocdbt", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_buckets_are_read_in_place(
    bucket_server: BucketServer, tmp_path: Path, scheme: str, ocdbt: bool
) -> None:
    place = bucket_server.root / "bucket" / "run" / "3"
    write_tiny(tmp_path / "tiny")
    place.mkdir(parents=True)
    save(place / "default", WEIGHTS, ocdbt=ocdbt)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "tiny" / name, place.parent / name)
    (place / "commit_success.txt").touch()
    checkpoint = open_checkpoint(f"{scheme}://bucket/run")
    _assert_holds(checkpoint)
    template = checkpoint.chat_template()
    assert template is not None
    assert template.source == CHAT
    assert checkpoint.tokenizer().encode("he")
    checkpoint.close()


@pytest.mark.parametrize("scheme", ["gs", pytest.param("s3", marks=pytest.mark.nightly)])
def test_a_region_fetches_few_bytes(
    bucket_server: BucketServer, tmp_path: Path, scheme: str
) -> None:
    big = np.ones((9000, 256), np.float32)
    _convert_one(bucket_server.root / "bucket" / "big", tmp_path, big)
    checkpoint = open_checkpoint(f"{scheme}://bucket/big")
    bucket_server.sent.clear()
    rows = checkpoint.read("model.embed_tokens.weight", (slice(10, 20), slice(0, 256)))
    assert rows.shape == (10, 256)
    assert sum(bucket_server.sent.values()) < big.nbytes / 2
    checkpoint.close()


def _convert_one(place: Path, tmp_path: Path, embedding: np.ndarray) -> None:
    folder = write_tiny(
        tmp_path / "one", num_hidden_layers=1, vocab_size=len(embedding), hidden_size=256
    )
    save_file({"model.embed_tokens.weight": embedding}, folder / "model.safetensors")
    convert(str(folder), str(place), to="orbax")


def test_an_unfinished_step_in_google_storage_is_refused(bucket_server: BucketServer) -> None:
    place = bucket_server.root / "bucket" / "run" / "3" / "default"
    place.parent.mkdir(parents=True)
    with_config(save(place, WEIGHTS), CONFIG)
    (place / "commit_success.txt").unlink(missing_ok=True)
    for path in ("run", "run/3", "run/3/default"):
        with pytest.raises(CheckpointError, match=r"incomplete Orbax checkpoint"):
            open_checkpoint(f"gs://bucket/{path}")
    open_checkpoint("s3://bucket/run/3").close()  # copied there after it was finished


def test_a_bucket_without_orbax_says_what_is_read_from_buckets(
    bucket_server: BucketServer,
) -> None:
    write_tiny_into = bucket_server.root / "bucket"
    write_tiny_into.mkdir(parents=True)
    write_tiny(write_tiny_into / "hf")
    with pytest.raises(CheckpointError, match=r"gs://bucket/hf does not exist or.*Orbax.*copy it"):
        open_checkpoint("gs://bucket/hf")


def test_arrays_without_a_configuration_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json: put the model's config\.json"):
        open_checkpoint(str(save(tmp_path / "x", WEIGHTS)))


def test_an_unknown_tree_shows_what_it_holds(tmp_path: Path) -> None:
    folder = with_config(save(tmp_path / "x", {"net": {"w1": np.zeros(2)}}), CONFIG)
    with pytest.raises(
        CheckpointError, match=r"it holds net/w1\. Known are Praxis.*Google's Gemma"
    ):
        open_checkpoint(str(folder))


def test_other_number_formats_are_refused_when_they_are_used(tmp_path: Path) -> None:
    tree: dict[str, Any] = {**WEIGHTS, "model.norm.weight": np.zeros(12, np.int32)}
    checkpoint = open_checkpoint(str(with_config(save(tmp_path / "x", tree), CONFIG)))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight .* is stored as int32"):
        checkpoint.read("model.norm.weight")


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    folder = with_config(save(tmp_path / "x", nested(WEIGHTS, "."), ocdbt=False), CONFIG)
    shutil.rmtree(folder / "model.norm.weight")
    with pytest.raises(CheckpointError, match=r"lacks the array model\.norm\.weight"):
        open_checkpoint(str(folder))


def test_a_missing_chunk_is_not_read_as_zeros(tmp_path: Path) -> None:
    folder = with_config(save(tmp_path / "x", WEIGHTS, ocdbt=False), CONFIG)
    (folder / "model.norm.weight" / "0").unlink()
    with pytest.raises(CheckpointError, match=r"tensor model\.norm\.weight .* missing"):
        open_checkpoint(str(folder)).read("model.norm.weight")


@pytest.mark.parametrize("ocdbt", [True, False])
def test_a_truncated_array_is_named(tmp_path: Path, ocdbt: bool) -> None:
    weights = {"model.embed_tokens.weight": np.ones((600, 12), np.float32)}
    config = CONFIG | {"num_hidden_layers": 1}
    folder = with_config(save(tmp_path / "x", weights, ocdbt=ocdbt), config)
    files = folder.rglob("d/*" if ocdbt else "0.0")
    largest = max(files, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight"):
        open_checkpoint(str(folder)).read("model.embed_tokens.weight")


def test_nonsense_for_metadata_is_a_checkpoint_error(tmp_path: Path) -> None:
    folder = with_config(save(tmp_path / "x", WEIGHTS), CONFIG)
    failures = Failures()
    for text in ("not json", "[]", "{}", '{"tree_metadata": {"a": 1}}', '{"tree_metadata": 3}'):
        (folder / "_METADATA").write_text(text)
        with (
            failures.of(text),
            pytest.raises(CheckpointError, match="_METADATA is not what Orbax writes"),
        ):
            open_checkpoint(str(folder))
    assert not failures, str(failures)


def test_a_path_out_of_the_checkpoint_is_not_followed(tmp_path: Path) -> None:
    save(tmp_path / "other", {"w": np.zeros(2)}, ocdbt=False)
    folder = with_config(save(tmp_path / "x", WEIGHTS, ocdbt=False), CONFIG)
    metadata = json.loads((folder / "_METADATA").read_text())
    metadata["tree_metadata"]["bad"] = {
        "key_metadata": [{"key": "../other/w", "key_type": 2}],
        "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
    }
    (folder / "_METADATA").write_text(json.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"\.\./other/w"):
        open_checkpoint(str(folder))


def test_a_closed_checkpoint_says_so(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(with_config(save(tmp_path / "x", WEIGHTS), CONFIG)))
    checkpoint.close()
    with pytest.raises(CheckpointError, match="it is closed"):
        checkpoint.read(QUERY)


def test_plain_numbers_are_not_packed(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(with_config(save(tmp_path / "x", WEIGHTS), CONFIG)))
    assert checkpoint.packing(QUERY) is None
    with pytest.raises(CheckpointError, match="not quantised"):
        checkpoint.read_packed(QUERY)
    with pytest.raises(CheckpointError, match="no tensor nothing"):
        checkpoint.read("nothing")
