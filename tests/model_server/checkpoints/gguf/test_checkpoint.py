"""A GGUF file reads as its makers published it; damage is an error that names the file."""

import contextlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.gguf_case import write_case
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
    with pytest.raises(CheckpointError, match="'mamba'; supported from GGUF: arcee, bert, .*llama"):
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
