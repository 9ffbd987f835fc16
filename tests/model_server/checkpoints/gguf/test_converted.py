"""Files as llama.cpp's converter writes them hold the weights of the folders they come from.

The converter's metadata, tensor names, shapes and digests of its numbers are in
tests/golden/converted. The file is built here again, from the folder's weights and the tables of
`architectures`, each tensor against its digest; so the tables are proven to undo the conversion.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from flax import nnx
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import save_file

from model_server.checkpoints.gguf.architecture import GgufArchitecture, JoinedPlace, TensorPlace
from model_server.checkpoints.gguf.config import architecture_of, config_of
from model_server.checkpoints.gguf.header import GgufHeader, GgufTensor
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.gguf.test_config import NO_FILE
from tests.model_server.checkpoints.gguf_case import small_tokenizer
from tests.model_server.models.family_cases import module_of
from tests.tools.golden import converted as golden
from tests.tools.golden.converted import digest, tensors_of

GOLDEN = Path(__file__).parents[3] / "golden" / "converted"
NAMES = sorted(path.stem for path in GOLDEN.iterdir())
# Cases that a file does not tell wholly: rows that fill the vocabulary, an epsilon that the
# converter does not read, norms that follow from the number of experts, and the scale of LongRoPE.
UNLIKE = ("gemma3n", "glm", "llama4_interleaved", "phimoe")
# By case: tensors that the converter takes the mean from, in its folder and here. They are added to
# the scores of all experts, so it changes no choice.
CENTRED = {"sarvam_moe": ("mlp.gate.expert_bias", "ffw.router.bias")}
LOST = ("d_head", "no_rope_layers")  # said to the converter only


@dataclass(frozen=True)
class Case:
    name: str

    @property
    def told(self) -> dict[str, Any]:
        return json.loads((GOLDEN / f"{self.name}.json").read_text())

    @property
    def config(self) -> dict[str, Any]:
        given = golden.config_of(self.name, self.told["config"])
        return {key: value for key, value in given.items() if key not in LOST}

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return tensors_of(self.name)

    @property
    def architecture(self) -> GgufArchitecture:
        return architecture_of(GgufHeader(self.told["metadata"], {}))

    def folder(self, place: Path) -> Path:
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, place / "model.safetensors", {"format": "pt"})
        return place

    def file(
        self,
        path: Path,
        tensors: Mapping[str, np.ndarray],
        metadata: Mapping[str, Any] | None = None,
    ) -> Path:
        return write(path, metadata or self.told["metadata"], tensors)


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":
            add(writer, key, value)
    for name, numbers in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list) and max(map(_size, value)) >= 2**31:
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _size(value: Any) -> int:
    return value if type(value) is int else 0


# --- the conversion, by our tables


def converted(case: Case, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return what the converter makes of the folder's weights, by its names."""
    weights = {case.architecture.usual(n): x for n, x in case.tensors.items()}
    weights = _whole(
        {
            n.replace("language_model.", "").removeprefix("thinker."): _centred(case.name, n, x)
            for n, x in weights.items()
        }
    )
    made: dict[str, np.ndarray] = {}
    for name, (shape, numbers) in case.told["tensors"].items():
        if name.startswith("rope_f"):  # computed, not converted
            made[name] = np.asarray(numbers, np.float32)
        elif _drafts(case, config, name):  # read by nobody
            made[name] = np.zeros(shape, np.float32)
        else:
            made[name] = _tensor(case.architecture, config, weights, name, tuple(shape))
            if isinstance(numbers, list):
                np.testing.assert_allclose(made[name].ravel(), numbers, rtol=1e-6)
            else:
                assert digest(made[name]) == numbers, name
    return made


def _centred(case: str, name: str, numbers: np.ndarray) -> np.ndarray:
    return numbers - numbers.mean() if name.endswith(CENTRED.get(case, ("?",))) else numbers


def _whole(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights with a table that is stored in shards as its first one."""
    made: dict[str, list[np.ndarray]] = {}
    for name, numbers in weights.items():
        made.setdefault(re.sub(r"\.shard_\d+\.", ".shard_0.", name), []).append(numbers)
    return {name: np.concatenate(x) if x[1:] else x[0] for name, x in made.items()}


def _drafts(case: Case, config: Mapping[str, Any], name: str) -> bool:
    layers = config[case.architecture.layer_count]
    return name.startswith("blk.") and int(name.split(".")[1]) >= layers


def _tensor(
    architecture: GgufArchitecture,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    name: str,
    shape: tuple[int, ...],
) -> np.ndarray:
    layer, inside = name.split(".", 2)[1:] if name.startswith("blk.") else ("", name)
    for join in architecture.joined:
        whole = weights.get(f"{architecture.layers}.{layer}.{join.name}")
        if inside in join.parts and whole is not None:
            return _part(join, config, whole, join.parts.index(inside), shape)
    if architecture.split_kv_b and inside in ("attn_k_b.weight", "attn_v_b.weight"):
        sizes = architecture.latent_sizes(config, int(layer))
        return _half(sizes, weights[f"model.layers.{layer}.self_attn.kv_b_proj.weight"], inside)
    named = architecture.from_gguf(name)
    assert named is not None, name
    if "{e}" not in named.hf_name:
        at = named.place.layer(config) if named.place.layer else layer
        x = weights[named.hf_name.replace("{layer}", str(at))]
        made = _placed(named.place, config, x, shape)
        return (
            made * np.float32(named.place.times(config, int(layer))) if named.place.times else made
        )
    count = shape[0]
    stack = [weights[named.hf_name.replace("{e}", str(each))] for each in range(count)]
    return np.stack(stack).reshape(shape)


def _part(
    join: JoinedPlace, config: Mapping[str, Any], whole: np.ndarray, at: int, shape: tuple[int, ...]
) -> np.ndarray:
    whole = whole.swapaxes(-1, -2) if join.transposed else whole
    rows = np.empty_like(whole)
    order = np.arange(whole.shape[-2]) if join.order is None else join.order(config)
    rows[..., order, :] = whole
    # Parts before the last are as high as each other; the last has the rest.
    height = shape[-2]
    start = 0 if at == 0 else whole.shape[-2] - height
    return rows[..., start : start + height, :]


def _half(sizes: Mapping[str, Any], both: np.ndarray, inside: str) -> np.ndarray:
    keys, heads = sizes["qk_nope_head_dim"], sizes["num_attention_heads"]
    per_head = both.reshape(heads, -1, both.shape[-1])
    return per_head[:, :keys].swapaxes(1, 2) if "k_b" in inside else per_head[:, keys:]


def _placed(
    at: TensorPlace, config: Mapping[str, Any], x: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    if at.transposed and x.ndim == 2:
        x = x.T
    if at.order is not None:
        rows = np.empty_like(x)
        rows[at.order.for_tensor(len(x), config, "x")] = x
        x = rows
    if at.columns is not None:
        columns = np.empty_like(x)
        columns[:, at.columns.for_tensor(x.shape[1], config, "x")] = x
        x = columns
    x = x.astype(np.int32) if at.whole else x
    x = -np.exp(x) if at.decay else x + x.dtype.type(at.plus)
    if x.ndim == 2 and len(x) < shape[0]:  # rows of tokens that the table of a layer lacks
        x = np.pad(x, ((0, shape[0] - len(x)), (0, 0)))
    return x.reshape(shape)


# --- the tests


def told_of(module: Any) -> str:
    """Return what a module says besides its weights: sizes, windows, bases, activations."""
    text = re.sub(r" at 0x\w+", "", repr(nnx.graphdef(module)))
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.4g}", text)


@each_case("name", NAMES)
def test_the_file_holds_the_folders_weights(name: str, tmp_path_factory: Any) -> None:
    case, place = Case(name), tmp_path_factory.mktemp(name)
    config = case.config | case.config.get("text_config", {})
    path = case.file(place / "x.gguf", converted(case, config))
    (found, module), (wanted, other) = map(module_of, (path, case.folder(place / "folder")))
    if name not in UNLIKE:
        assert told_of(module) == told_of(other)
    assert found.keys() == wanted.keys()
    for each, numbers in wanted.items():
        rows, numbers = np.atleast_1d(found[each]), np.atleast_1d(_centred(name, each, numbers))
        held, added = rows[: len(numbers)], rows[len(numbers) :]
        assert not added.any(), f"{each} has more rows"
        np.testing.assert_allclose(held, numbers, rtol=1e-6, atol=1e-6, err_msg=each)


def _first(case: Case, change: Any, place: Path) -> str:
    """Return what opening says of a file whose tensors were changed."""
    config = case.config | case.config.get("text_config", {})
    tensors = converted(case, config)
    change(tensors)
    with pytest.raises(CheckpointError) as refused:
        open_checkpoint(str(case.file(place / "x.gguf", tensors))).close()
    return refused.value.text


def test_parts_that_are_missing_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    case, gate = Case("granitemoe"), "blk.1.ffn_gate_exps.weight"
    told = _first(case, lambda tensors: tensors.pop(gate), tmp_path)
    assert f"{gate} is missing, a part of model.layers.1.block_sparse_moe.input_linear" in told

    def narrow(tensors: dict[str, np.ndarray]) -> None:
        tensors[gate] = tensors[gate][..., :-1]

    assert "they must fit together" in _first(case, narrow, tmp_path)

    def higher(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.0.attn_gate.weight"] = np.zeros((50, 48), np.float32)

    assert "unlike its parts" in _first(Case("qwen3_next"), higher, tmp_path)


def test_numbers_of_layers_in_the_metadata_are_one_for_each(tmp_path: Path) -> None:
    case = Case("apertus")
    tensors = converted(case, case.config)
    for name, value in (("few", [1.0]), ("whole", [1, 2]), ("absent", "x")):
        metadata = case.told["metadata"] | {"xielu.beta": value}
        with pytest.raises(CheckpointError, match="xielu.beta must be a list of 2 numbers"):
            open_checkpoint(str(case.file(tmp_path / f"{name}.gguf", tensors, metadata)))


def test_layers_that_draft_are_left_out_and_their_number_is_checked(tmp_path: Path) -> None:
    case = Case("deepseek_v32")
    key = "deepseek32.nextn_predict_layers"
    assert case.told["metadata"][key] == 1
    assert case.told["metadata"]["deepseek32.block_count"] == 4
    tensors = converted(case, case.config)
    tensors["blk.3.nextn.eh_proj.weight"] = np.zeros((48, 96), np.float32)
    with closing(open_checkpoint(str(case.file(tmp_path / "x.gguf", tensors)))) as checkpoint:
        assert checkpoint.config["num_hidden_layers"] == 3
        assert not any("layers.3." in name for name in checkpoint.names())
    metadata = case.told["metadata"] | {key: 4}
    with pytest.raises(CheckpointError, match="nextn_predict_layers is 4 of 4 blocks"):
        open_checkpoint(str(case.file(tmp_path / "y.gguf", tensors, metadata)))


@each_case(
    "key, value, told",
    [
        ("attention.compress_ratios", [0, 0, 0], "supported is one number above 0"),
        ("attention.compress_ratios", [0, 4, 4], "and 0 for the others"),
        ("ple.layers", [0, 1], "supported is one layer with n-grams"),
        ("ple.layers", [3], "supported is one layer with n-grams"),
        ("ple.layer_multipliers", [1, 3, 5], "the published seed makes .3923727992659049"),
        ("ple.head_vocab_sizes", [97, 101, 103, 107, 109, 127], "97, 101, 103, 107, 109, 113"),
        ("ple.head_vocab_sizes", [1009] * 6, "head_offsets is .0, 97"),
    ],
)
def test_what_a_file_of_qwen4_says_otherwise_is_refused(key: str, value: Any, told: str) -> None:
    case = Case("qwen4_exp")
    metadata = metadata_of(case) | {f"qwen4exp.{key}": np.array(value)}
    with pytest.raises(CheckpointError, match=told):
        config_of(GgufHeader(metadata, stored(case)), case.architecture, "float32")


def test_the_token_between_the_ngrams_of_qwen4_may_be_another_than_ends_texts(
    tmp_path: Path,
) -> None:
    case, words = Case("qwen4_exp"), json.loads(small_tokenizer(97))["model"]
    tokens = sorted(words["vocab"], key=words["vocab"].__getitem__)
    tokenizer = {
        "chat_template": "{{ eos_token }}",
        "ggml.eos_token_id": 2,
        "ggml.merges": [" ".join(pair) for pair in words["merges"]],
        "ggml.model": "gpt2",
        "ggml.pre": "qwen2",
        "ggml.token_type": [3, 3, 3, *[1] * (len(tokens) - 3)],
        "ggml.tokens": tokens,
    }
    metadata = case.told["metadata"] | {f"tokenizer.{key}": x for key, x in tokenizer.items()}
    path = case.file(tmp_path / "x.gguf", converted(case, case.config), metadata)
    with closing(open_checkpoint(str(path))) as checkpoint:
        assert checkpoint.config["eos_token_id"] == [31, 2]
        template = checkpoint.chat_template()
        assert template is not None
        assert template.render([]) == tokens[2]


@each_case(
    "key", ["rope.dimension_count", "rope.dimension_count_swa", "attention.value_length_swa"]
)
def test_heads_that_rotate_in_part_are_refused_where_they_are_not_read(key: str) -> None:
    case = Case("gemma4")
    metadata = metadata_of(case) | {f"gemma4.{key}": 6}
    with pytest.raises(CheckpointError, match=rf"its {key} is 6; it must be that of the keys"):
        config_of(GgufHeader(metadata, stored(case)), case.architecture, "float32")


def test_what_is_only_read_is_not_written(tmp_path: Path) -> None:
    folder = Case("olmoe").folder(tmp_path / "folder")
    with pytest.raises(CheckpointError, match="a 'olmoe' model cannot be written as GGUF"):
        convert(str(folder), str(tmp_path / "x.gguf"))


@each_case(
    "name, key, value, told",
    [
        ("granitemoehybrid", "attention.scale", None, "no attention.scale"),
        ("bamba", "rope.dimension_count", 4, "rotates 4 of 12 head dimensions; a Bamba, half"),
        ("sarvam_moe", "rope.dimension_count", 6, "a Ling 2, of which no family is served"),
        ("step3p7", "expert_weights_norm", False, "expert_weights_norm is false"),
        ("step3p7", "attention.head_count", [4, 6, 5, 4, 6], "layers of a kind must be alike"),
        ("step3p7", "attention.value_length", 6, "heads of different sizes"),
        ("step3p7", "attention.sliding_window_pattern", [0, 0, 1, 0, 1], "its first two layers"),
        ("step3p7", "swiglu_clamp_exp", [-1.0] * 5, "not a number for each layer"),
        ("mimo_v2_published", "expert_gating_func", 1, "expert_gating_func is 1"),
        ("mimo_v2_published", "attention.head_count_kv", [2, 2, 4, 4, 4, 4], "twice those"),
        ("mimo_v2_published", "rope.dimension_count", 7, "dimensions rotate in pairs"),
    ],
)
def test_what_would_answer_differently_is_refused(
    name: str, key: str, value: Any, told: str
) -> None:
    case, found = Case(name), metadata_of(Case(name))
    metadata = found | {f"{case.architecture.name}.{key}": _as_read(value)}
    if value is None:
        del metadata[f"{case.architecture.name}.{key}"]
    with pytest.raises(CheckpointError, match=told):
        config_of(GgufHeader(metadata, stored(case)), case.architecture, "float32")


def test_factors_for_other_heads_than_those_that_rotate_are_refused() -> None:
    """Step 3.5's factors of the half that does not rotate are 1."""
    case, factors = Case("step3p7"), np.array([1, 1, 2, 1, 2, 1], np.float32)
    header = GgufHeader(metadata_of(case), stored(case))
    with pytest.raises(CheckpointError, match="stretch more than the 6 dimensions that rotate"):
        config_of(header, case.architecture, "float32", {"rope_freqs.weight": factors})


def test_as_many_dimensions_of_a_head_rotate_as_the_file_says() -> None:
    """The share of 30 of 44, times 44, is less than 30."""
    case, key = Case("mimo_v2_published"), "mimo2.rope.dimension_count"
    for rotated, size in ((30, 44), (26, 46), (64, 192)):
        sizes = {key: rotated, "mimo2.attention.key_length": size}
        header = GgufHeader(metadata_of(case) | sizes, stored(case))
        for rope in config_of(header, case.architecture, "float32")["rope_parameters"].values():
            assert int(size * rope["partial_rotary_factor"]) == rotated


def metadata_of(case: Case) -> dict[str, Any]:
    """Return a header's metadata, in which numbers and flags of a list are an array."""
    return {key: _as_read(value) for key, value in case.told["metadata"].items()}


def _as_read(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


def stored(case: Case) -> dict[str, GgufTensor]:
    return {
        each: GgufTensor(each, tuple(shape), GGMLQuantizationType.F32, 0, 0, NO_FILE)
        for each, (shape, _) in case.told["tensors"].items()
    }


HOSTILE = (0, -1, 2**32 - 1, 0.0, True, "x", [1, 2], ["a", "b"], np.array([1, 2]), [True, False])


@each_case("name", NAMES)
def test_hostile_metadata_is_read_or_refused(name: str) -> None:
    architecture, metadata = Case(name).architecture, metadata_of(Case(name))
    tensors = stored(Case(name))
    for key in metadata:
        for value in HOSTILE if key != "general.architecture" else ():
            with contextlib.suppress(CheckpointError):
                config_of(GgufHeader(metadata | {key: value}, tensors), architecture, "float32")
    for left_out in metadata:
        fewer = {key: value for key, value in metadata.items() if key != left_out}
        with contextlib.suppress(CheckpointError):
            config_of(GgufHeader(fewer, tensors), architecture, "float32")
