"""What the folder of a Pax checkpoint holds is found and read, or refused by name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.model_server.checkpoints.bucket_server import BucketServer
from tests.model_server.checkpoints.pax_writer import STEP, write_arrays
from tests.model_server.checkpoints.tiny_folder import tokenizer_json, write_json
from tests.tools.golden.pax.cases import CASES
from tests.tools.golden.pax.model import variables_of

BY_NAME = {case.name: case for case in CASES}


def test_metadata_of_other_shapes_is_refused_by_name(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    file = step / "metadata" / "metadata"
    file.write_text(file.read_text().replace("[61, 16]", "[62, 16]"))
    with pytest.raises(CheckpointError, match=r"emb_var is stored as \[61, 16\].*\[62, 16\]"):
        open_checkpoint(str(step))
    file.write_text("{")
    with pytest.raises(CheckpointError, match="metadata is not JSON"):
        open_checkpoint(str(step))


def test_chunks_that_dwarf_their_array_are_refused(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    file = step / "state" / "mdl_vars.params.lm.final_ln.scale" / ".zarray"
    file.write_text(file.read_text().replace('"chunks": [8]', '"chunks": [800000000]'))
    with pytest.raises(CheckpointError, match=r"final_ln\.scale is \[16\] in chunks of"):
        open_checkpoint(str(step))


@pytest.mark.parametrize("scheme", ["gs", pytest.param("s3", marks=pytest.mark.nightly)])
def test_buckets_are_read_in_place(
    bucket_server: BucketServer, tmp_path: Path, scheme: str
) -> None:
    case = BY_NAME["lm_cloud_stacked"]
    place = bucket_server.root / "bucket" / "run"
    step = write_arrays(place, variables_of(case))
    (step / "commit_success.txt").touch()
    (place / "tokenizer.json").write_text(tokenizer_json())
    write_arrays(tmp_path, variables_of(case))
    with closing(open_checkpoint(f"{scheme}://bucket/run/{STEP}")) as there:
        assert there.tokenizer().encode("he")
        with closing(open_checkpoint(str(tmp_path))) as here:
            assert sorted(there.names()) == sorted(here.names())
            for name in here.names()[::5]:
                np.testing.assert_array_equal(there.read(name), here.read(name))


def test_every_folder_of_the_checkpoint_may_be_named(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    step = write_arrays(tmp_path, variables_of(case))
    for path in (tmp_path, step, step / "state"):
        with closing(open_checkpoint(str(path))) as checkpoint:
            assert checkpoint.format == "pax"
            assert checkpoint.dtype("model.norm.weight") == "float32"


def test_a_region_of_the_queries_is_scaled_as_the_whole(tmp_path: Path) -> None:
    case = BY_NAME["lm_cloud_stacked"]
    with closing(open_checkpoint(str(write_arrays(tmp_path, variables_of(case))))) as checkpoint:
        name = "layers.1.qkv.kernel"
        whole = checkpoint.read(name)
        width = case.heads * case.head_dim
        assert whole.shape == (3 * width, case.embed)
        for rows in (slice(7, 20), slice(width - 3, width + 4), slice(2 * width, 3 * width)):
            region = (rows, slice(2, 9))
            np.testing.assert_array_equal(checkpoint.read(name, region), whole[region])
            out = np.zeros((rows.stop - rows.start, 7), np.float32)
            checkpoint.read(name, region, out)
            np.testing.assert_array_equal(out, whole[region])


def test_only_its_class_is_served_from_sizes_alone(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    with closing(open_checkpoint(str(write_arrays(tmp_path, variables_of(case))))) as checkpoint:
        for path in ("auto", "llama"):
            with pytest.raises(CheckpointError, match="publish it as its class"):
                make_recipe(path, checkpoint.config, {})
        with pytest.raises(CheckpointError, match="NUM_LAYERS is 2 but LLaMA13B has 40"):
            make_recipe(case.path.replace("7BFP16", "13B"), checkpoint.config, {})
        other = "saxml.server.pax.lm.params.gptj.GPTJ"
        with pytest.raises(CheckpointError, match="of model_type 'gptj', not 'llama'"):
            make_recipe(other, checkpoint.config, {})


def test_a_config_beside_it_counts_and_must_be_of_its_kind(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    write_json(step / "config.json", {"model_type": "llama", "rope_theta": 5.0})
    with closing(open_checkpoint(str(step))) as checkpoint:
        assert checkpoint.config["rope_theta"] == 5.0
    write_json(step / "config.json", {"model_type": "gemma"})
    with pytest.raises(CheckpointError, match=r"those of Llama.*config\.json.*'gemma'"):
        open_checkpoint(str(step))


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    step = write_arrays(tmp_path, variables_of(BY_NAME["llama"]))
    (step / "state" / "mdl_vars.params.lm.embedding_lookup.emb_var" / "0.0").write_bytes(b"no gzip")
    where = r"model\.embed_tokens\.weight.*emb_var.*damaged"
    with (
        closing(open_checkpoint(str(step))) as checkpoint,
        pytest.raises(CheckpointError, match=where),
    ):
        checkpoint.read("model.embed_tokens.weight")
