"""A GGUF file reads as its makers published it; damage is an error that names the file."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.checkpoints.gguf.header import read_header
from model_server.checkpoints.tensor_file import TensorFile
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.gguf_case import weights_of, write_case
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights

HEADER = 9_000  # bytes; what the tiny file's metadata and tensor list take, about
# Files whose tensors are experts, transposed, reordered, larger by one.
FUZZED = ("mixtral", "gpt2", "gpt_neox", "gemma3", "phi3_longrope_long", "deepseek_v3", "bert")


def write(path: Path, tensors: dict[str, Any], kinds: dict[str, Any] | None = None) -> Path:
    """A llama file with these tensors and just enough metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "embedding_length": 64,
        "feed_forward_length": 64,
        "block_count": 1,
        "attention.head_count": 2,
        "context_length": 32,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def one_layer() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"token_embd": (10, 64), "output_norm": (64,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = (64, 64)
    shapes |= {"blk.0.attn_norm": (64,), "blk.0.ffn_norm": (64,)}
    return {
        f"{name}.weight": rng.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def test_rows_come_back_in_hugging_face_order(gguf_file: Path) -> None:
    checkpoint = GgufCheckpoint(gguf_file)
    for name, values in random_weights(CONFIG).items():
        np.testing.assert_array_equal(checkpoint.read(name), values)


def test_the_file_itself_holds_neighbouring_pairs(gguf_file: Path) -> None:
    """Row 1 of the first head in the file is row 3 (half of 6) in Hugging Face's order."""
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(gguf_file).tensors}
    published = random_weights(CONFIG)["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(stored["blk.0.attn_q.weight"][:4], published[[0, 3, 1, 4]])


@each_case("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_tensors_come_as_float32(tmp_path: Path, kind: str) -> None:
    tensors = one_layer()
    quantised = getattr(gguf.GGMLQuantizationType, kind)
    name = "blk.0.ffn_up.weight"
    exact = tensors[name]
    tensors[name] = gguf.quantize(exact, quantised)
    checkpoint = GgufCheckpoint(write(tmp_path / "x.gguf", tensors, {name: quantised}))
    read = checkpoint.read("model.layers.0.mlp.up_proj.weight")
    assert checkpoint.dtype("model.layers.0.mlp.up_proj.weight") == "float32" == str(read.dtype)
    assert read.nbytes == checkpoint.nbytes("model.layers.0.mlp.up_proj.weight")
    np.testing.assert_allclose(read, exact, atol=0.5)
    assert abs(read - exact).max() > 0


def test_half_precision_stays_half(tmp_path: Path) -> None:
    tensors = one_layer()
    tensors["token_embd.weight"] = tensors["token_embd.weight"].astype(np.float16)
    checkpoint = GgufCheckpoint(write(tmp_path / "x.gguf", tensors))
    assert checkpoint.dtype("model.embed_tokens.weight") == "float16"
    assert checkpoint.config["torch_dtype"] == "float16"
    np.testing.assert_array_equal(
        checkpoint.read("model.embed_tokens.weight"), tensors["token_embd.weight"]
    )


def test_a_separate_head_means_untied_embeddings(tmp_path: Path) -> None:
    tensors = one_layer()
    assert GgufCheckpoint(write(tmp_path / "a.gguf", tensors)).config["tie_word_embeddings"]
    tensors["output.weight"] = tensors["token_embd.weight"]
    untied = GgufCheckpoint(write(tmp_path / "b.gguf", tensors))
    assert not untied.config["tie_word_embeddings"]
    assert "lm_head.weight" in untied.names()


@each_case(
    "name, shape, words",
    [
        ("blk.0.ffn_up.weight", None, r"x\.gguf.*layers\.0\.mlp\.up_proj"),  # is missing
        ("blk.0.mystery.weight", (4,), r"no tensor 'blk\.0\.mystery\.weight'"),
        ("blk.1.ffn_up.weight", (64, 64), r"announces 1 layers.*layers\.1"),
        ("blk.0.attn_k.weight", (32, 64), r"x\.gguf.*blk\.0\.attn_k\.weight has 32 rows.*64"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, name: str, shape: tuple[int, ...] | None, words: str
) -> None:
    tensors = one_layer()
    tensors.pop(name, None)
    tensors |= {} if shape is None else {name: np.zeros(shape, np.float32)}
    with pytest.raises(CheckpointError, match=words):
        GgufCheckpoint(write(tmp_path / "x.gguf", tensors))


def test_another_architecture_is_named_with_those_supported(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CheckpointError, match="'mamba'; supported from GGUF: afmoe, apertus, arcee, .*llama"
    ):
        GgufCheckpoint(tmp_path / "x.gguf")


def test_a_truncated_file_names_the_tensor_and_both_sizes(gguf_file: Path) -> None:
    size = gguf_file.stat().st_size
    with gguf_file.open("r+b") as file:
        file.truncate(size - 200)
    with pytest.raises(CheckpointError, match=r"truncated: tensor '.*' \(\d+ bytes\)") as caught:
        GgufCheckpoint(gguf_file)
    assert str(size - 200) in caught.value.text


def test_a_file_cut_while_it_is_open_is_an_error_not_a_crash(gguf_file: Path) -> None:
    checkpoint = GgufCheckpoint(gguf_file)
    with gguf_file.open("r+b") as file:
        file.truncate(gguf_file.stat().st_size // 2)
    last = checkpoint.names()[-1]
    with pytest.raises(CheckpointError, match="is truncated"):
        checkpoint.read(last)


FLIPS = st.lists(st.tuples(st.integers(0, HEADER), st.integers(1, 255)), max_size=4)
CUTS = st.none() | st.integers(0, HEADER + 2000)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150
)
@given(flips=FLIPS, cut=CUTS)
def test_garbage_gives_a_checkpoint_error_or_numbers(
    gguf_file: Path, flips: list[tuple[int, int]], cut: int | None
) -> None:
    read_damaged(gguf_file, flips, cut)


@pytest.mark.nightly
@pytest.mark.parametrize("case", FUZZED)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(flips=FLIPS, cut=CUTS)
def test_garbage_in_any_family_gives_a_checkpoint_error_or_numbers(
    tmp_path: Path, case: str, flips: list[tuple[int, int]], cut: int | None
) -> None:
    file = tmp_path / "x.gguf"
    if not file.exists():
        convert(str(write_case(case, tmp_path / "folder")), str(file))
    read_damaged(file, flips, cut)


def read_damaged(file: Path, flips: list[tuple[int, int]], cut: int | None) -> None:
    original = file.with_suffix(".original")
    if not original.exists():
        original.write_bytes(file.read_bytes())
    data = bytearray(original.read_bytes())
    for place, bits in flips:
        data[place % len(data)] ^= bits
    file.write_bytes(data[:cut])
    with (
        contextlib.suppress(CheckpointError),
        contextlib.closing(GgufCheckpoint(file)) as checkpoint,
    ):
        for name in checkpoint.names():
            shape = checkpoint.shape(name)
            assert checkpoint.read(name).shape == shape
            part = tuple(slice(size // 3, size - size // 3) for size in shape)
            whole = checkpoint.read(name)[part]
            np.testing.assert_array_equal(checkpoint.read(name, part), whole)
            if checkpoint.packing(name):
                checkpoint.read_packed(name)
        checkpoint.tokenizer()
        checkpoint.chat_template()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_a_checkpoint_error(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + tail)
    with pytest.raises(CheckpointError, match=r"x\.gguf"):
        GgufCheckpoint(path)


KV_B = "model.layers.1.self_attn.kv_b_proj.weight"


def rewritten(
    case: str, tmp_path: Path, change: Any, metadata: Mapping[str, Any] | None = None
) -> Path:
    """A case's file with other tensors: `change` takes and gives {GGUF name: numbers}."""
    convert(str(write_case(case, tmp_path / "folder")), str(tmp_path / "first.gguf"))
    file = TensorFile(tmp_path / "first.gguf")
    header = read_header(file)
    given = {
        name: file.read(t.offset, t.nbytes, name).view(np.float32).reshape(t.shape)
        for name, t in header.tensors.items()
    }
    name = header.metadata["general.architecture"]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", name)
    for key, value in {**header.metadata, **(metadata or {})}.items():
        if key.startswith(f"{name}."):
            kind = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
            kind.get(type(value), writer.add_string)(key, value)
    for name, values in change(given).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "x.gguf"


def test_one_expert_is_a_slice_of_the_stack(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(rewritten("mixtral", tmp_path, dict))
    for name, values in weights_of("mixtral").items():
        np.testing.assert_array_equal(checkpoint.read(name), values)
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    part = (slice(5, 17), slice(3, 40))
    np.testing.assert_array_equal(checkpoint.read(name, part), weights_of("mixtral")[name][part])


@pytest.mark.parametrize("case", ["gpt2", "gpt_neox", "llama_untied_mqa", "gemma3"])
def test_regions_are_of_the_published_layout(case: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(rewritten(case, tmp_path, dict))
    for name in checkpoint.names():
        whole = checkpoint.read(name)
        assert whole.shape == checkpoint.shape(name)
        assert whole.nbytes == checkpoint.nbytes(name)
        assert str(whole.dtype) == checkpoint.dtype(name)
        part = tuple(slice(size // 5, size - size // 3) for size in whole.shape)
        np.testing.assert_array_equal(checkpoint.read(name, part), whole[part])
        np.testing.assert_array_equal(checkpoint.read(name, part[:1]), whole[part[0]])


def split_kv_b(config: Mapping[str, Any], *, keep: bool = False) -> Any:
    """What newer converters do to kv_b_proj."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]

    def change(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        out: dict[str, np.ndarray] = {}
        for name, values in tensors.items():
            if not name.endswith("attn_kv_b.weight"):
                out[name] = values
                continue
            per_head = values.reshape(heads, -1, values.shape[-1])
            keys, rest = per_head[:, :nope], per_head[:, nope:]
            keys = np.ascontiguousarray(keys.swapaxes(1, 2))
            out[name.replace("kv_b", "k_b")] = keys
            out[name.replace("kv_b", "v_b")] = np.ascontiguousarray(rest)
            out |= {name: values} if keep else {}
        return out

    return change


@pytest.mark.parametrize("keep", [False, True])
def test_deepseeks_split_projection_is_put_together(tmp_path: Path, keep: bool) -> None:
    config = GgufCheckpoint(rewritten("deepseek_v3", tmp_path, dict)).config
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    newer = {  # as if queries met the latent itself
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": latent + rope,
        "deepseek2.attention.value_length": latent,
        "deepseek2.attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "deepseek2.attention.value_length_mla": config["v_head_dim"],
    }
    (tmp_path / "new").mkdir()
    path = rewritten("deepseek_v3", tmp_path / "new", split_kv_b(config, keep=keep), newer)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.config == config
    values = weights_of("deepseek_v3")[KV_B]
    np.testing.assert_array_equal(checkpoint.read(KV_B), values)
    for part in [(slice(3, 11), slice(2, 5)), (slice(0, 0), slice(0, 4)), (slice(7, 31),)]:
        np.testing.assert_array_equal(checkpoint.read(KV_B, part), values[part])
    assert checkpoint.packing(KV_B) is None


def test_half_of_a_split_projection_is_named(tmp_path: Path) -> None:
    config = GgufCheckpoint(rewritten("deepseek_v3", tmp_path, dict)).config

    def lose(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        changed = split_kv_b(config)(tensors)
        del changed["blk.1.attn_v_b.weight"]
        return changed

    (tmp_path / "new").mkdir()
    with pytest.raises(CheckpointError, match=r"x\.gguf.*blk\.1\.attn_v_b\.weight.*is missing"):
        GgufCheckpoint(rewritten("deepseek_v3", tmp_path / "new", lose))


def test_a_tensor_of_too_many_dimensions_is_named(tmp_path: Path) -> None:
    def deepen(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return tensors | {"blk.0.ffn_up.weight": tensors["blk.0.ffn_up.weight"][None]}

    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight has the shape \[1, "):
        GgufCheckpoint(rewritten("llama_tied", tmp_path, deepen))


def test_a_kind_that_is_not_read_is_named_with_those_that_are(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for key in ("embedding_length", "block_count", "attention.head_count", "context_length"):
        writer.add_uint32(f"llama.{key}", 1)
    writer.add_uint32("llama.feed_forward_length", 4)
    writer.add_uint32("llama.attention.key_length", 2)
    writer.add_layer_norm_rms_eps(1e-5)
    kind = GGMLQuantizationType.Q8_1  # of products only, never of a file
    writer.add_tensor("token_embd.weight", np.zeros((4, 40), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CheckpointError, match=r"token_embd\.weight is stored as Q8_1.*Q4_K.*IQ4_XS"
    ):
        GgufCheckpoint(tmp_path / "x.gguf")


def test_what_is_not_stored_in_blocks_of_its_rows_has_no_packing(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(rewritten("gpt2", tmp_path, dict))
    name = checkpoint.names()[0]
    assert checkpoint.packing(name) is None
    with pytest.raises(CheckpointError, match=r"x\.gguf.*not stored in blocks"):
        checkpoint.read_packed(name)
