"""Writes a checkpoint as a GGUF file that llama.cpp reads, tensor by tensor.

The inverse of `GgufCheckpoint`, for the same architectures. `gguf.GGUFWriter` lays out the file and
takes one tensor at a time. Stores float32, float16, bfloat16, Q8_0 and Q4_0; better quantised kinds
are left to llama.cpp's own tools.

GGUF names pre-tokenizers but does not store their rules, so a written tokenizer is read back and
must give the same tokens for probe texts that expose the differences.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType, TokenType
from gguf.gguf_writer import GGUFWriter
from gguf.quants import quantize

from model_server.checkpoints.cast import cast
from model_server.checkpoints.checkpoint import Checkpoint, ordered_ends
from model_server.checkpoints.gguf.architecture import (
    Config,
    GgufArchitecture,
    TensorPlace,
    inverse,
)
from model_server.checkpoints.gguf.config import architecture_for, metadata_of, with_defaults
from model_server.checkpoints.gguf.tokenizer import (
    FOR_TOOLS,
    PRE_TOKENIZERS,
    ends_by_text,
    tokenizer_of,
)
from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.sentence_piece import SPACE
from sax.errors import CheckpointError
from sax.types import Progress

_KINDS = {
    "float32": GGMLQuantizationType.F32,
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
}
# The format of most matrices, which some readers ask for.
_FILE_TYPES = {
    "float32": LlamaFileType.ALL_F32,
    "float16": LlamaFileType.MOSTLY_F16,
    "bfloat16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
QUANTISED = ("q8_0", "q4_0")
# llama.cpp requires float32 for these, as for everything that is not a matrix.
_FLOAT32 = (
    "position_embd.weight",
    "token_types.weight",
    "ffn_gate_inp.weight",
    "shortconv.conv.weight",
)
Metadata = dict[str, Any]  # keys without the tokenizer.ggml. prefix
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_PROBES = (
    "Hello World, I'll say: don't 1234567 3.14",
    " two  spaces\n\n new\r\n\tlines   ",
    "naïve CAFÉ — 你好世界 🙂👍🏽 ПРИВЕТ",
    "def f(x_1):\n    return x_1**2  # ok!!\n",
    "",
)


@dataclass(frozen=True, slots=True)
class _TensorToWrite:
    gguf_name: str
    names: tuple[str, ...]  # Hugging Face names; several for stacked experts, in order
    place: TensorPlace
    shape: tuple[int, ...]  # in the file
    dtype: str  # key of _KINDS

    @property
    def nbytes(self) -> int:
        block, nbytes = GGML_QUANT_SIZES[_KINDS[self.dtype]]
        return math.prod(self.shape) // block * nbytes


def write_gguf(
    source: Checkpoint,
    path: Path,
    dtypes: Mapping[str, str],
    report: Callable[[Progress], None],
) -> None:
    """Write `source` to `path`; `dtypes` is the wanted format per tensor (float32, ..., q4_0).

    Overridden where llama.cpp requires it: vectors and a few matrices are stored as float32, and
    matrices whose rows are not whole blocks as float16. Raises CheckpointError.
    """
    config = with_defaults(source.config)
    architecture = architecture_for(config)
    metadata = {
        f"{architecture.name}.{suffix}": value
        for suffix, value in metadata_of(config, architecture).items()
    } | _tokenizer_metadata(source)
    entries = _entries(source, architecture, config, dtypes)
    factors = architecture.factors(config)
    writer = GGUFWriter(path, architecture.name)
    try:
        writer.add_file_type(_file_type(entries))
        for key, value in metadata.items():
            _add(writer, key, value)
        _announce(writer, entries, factors)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for values in factors.values():
            writer.write_tensor_data(values)
        _write_tensors(writer, source, config, entries, report)
    finally:
        writer.close()


def _file_type(entries: Sequence[_TensorToWrite]) -> LlamaFileType:
    matrices = Counter(entry.dtype for entry in entries if len(entry.shape) > 1)
    return _FILE_TYPES[max(matrices, key=matrices.__getitem__, default="float32")]


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _entries(
    source: Checkpoint, architecture: GgufArchitecture, config: Config, dtypes: Mapping[str, str]
) -> list[_TensorToWrite]:
    """Return entries in the order of `dtypes`; a layer's experts at the place of the first."""
    groups: dict[str, tuple[TensorPlace, dict[int, str]]] = {}
    for name in dtypes:
        if architecture.drops(name, config):
            continue
        named = architecture.from_hf(name)
        if named is None:
            raise CheckpointError(f"GGUF has no name for {architecture.name}'s tensor {name}")
        _, members = groups.setdefault(named.gguf_name, (named.place, {}))
        members[named.expert or 0] = name
    return [
        _entry(source, gguf_name, place, members, dtypes)
        for gguf_name, (place, members) in groups.items()
    ]


def _entry(
    source: Checkpoint,
    gguf_name: str,
    place: TensorPlace,
    members: dict[int, str],
    dtypes: Mapping[str, str],
) -> _TensorToWrite:
    names = tuple(name for _, name in sorted(members.items()))
    shapes = {source.shape(name) for name in names}
    if len(shapes) != 1 or sorted(members) != list(range(len(names))):
        raise CheckpointError(f"the {len(names)} experts of {names[0]} are not numbered from 0, "
                              "or not of one shape")  # fmt: skip
    (shape,) = shapes
    if place.transposed and len(shape) == 2:
        shape = shape[::-1]
    if place.filters and len(shape) == 3:
        shape = (shape[0], shape[2])
    dtype = _stored_dtype(gguf_name, shape, dtypes[names[0]])
    return _TensorToWrite(
        gguf_name, names, place, (len(names), *shape) if place.experts else shape, dtype
    )


def _stored_dtype(gguf_name: str, shape: tuple[int, ...], dtype: str) -> str:
    if len(shape) == 1 or gguf_name.endswith(_FLOAT32):
        return "float32"
    whole_blocks = shape[-1] % GGML_QUANT_SIZES[_KINDS[dtype]][0] == 0
    return dtype if whole_blocks else "float16"


def _announce(
    writer: GGUFWriter, entries: list[_TensorToWrite], factors: Mapping[str, np.ndarray]
) -> None:
    for name, values in factors.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    for entry in entries:
        # The writer uses the dtype only to detect shapes given in bytes, which these are not.
        float32 = np.dtype(np.float32)
        kind = _KINDS[entry.dtype]
        writer.add_tensor_info(entry.gguf_name, entry.shape, float32, entry.nbytes, kind)


def _write_tensors(
    writer: GGUFWriter,
    source: Checkpoint,
    config: Config,
    entries: list[_TensorToWrite],
    report: Callable[[Progress], None],
) -> None:
    total, done = sum(len(entry.names) for entry in entries), 0
    for entry in entries:
        parts: list[np.ndarray] = []
        for name in entry.names:
            report(Progress("writing", done, total, "tensors"))
            parts.append(_stored(name, source.read(name), entry, config))
            done += 1
        writer.write_tensor_data(np.stack(parts) if entry.place.experts else parts[0])
    report(Progress("writing", total, total, "tensors"))


def _stored(name: str, values: np.ndarray, entry: _TensorToWrite, config: Config) -> np.ndarray:
    """Convert one tensor to its form in the file; quantised tensors become bytes."""
    place = entry.place
    if place.transposed and values.ndim == 2:
        values = values.T
    if place.filters and values.ndim == 3:
        values = values[:, 0]
    values = np.ascontiguousarray(values)  # others are written one number at a time
    if place.order is not None:
        values = values[inverse(place.order.for_tensor(len(values), config, name))]
    if place.plus:
        values = values.astype(np.float32) + np.float32(place.plus)
    if entry.dtype in QUANTISED:
        return quantize(values.astype(np.float32), _KINDS[entry.dtype])
    return cast(name, values, entry.dtype)


def _tokenizer_metadata(source: Checkpoint) -> dict[str, Any]:
    """Return all tokenizer.* metadata, by full key."""
    tokenizer, template = source.tokenizer(), source.chat_template()
    serialized = json.loads(tokenizer.serialized)
    known = _ends(tokenizer.bos_id, ordered_ends(source), tokenizer)
    for variant in _variants(serialized, source.config):
        metadata = {f"tokenizer.ggml.{key}": value for key, value in (variant | known).items()}
        metadata["tokenizer.ggml.add_bos_token"] = tokenizer.adds_bos
        if _equal(tokenizer, metadata, serialized):
            chat = {} if template is None else {"tokenizer.chat_template": template.source}
            if template is not None and template.for_tools:
                chat[FOR_TOOLS] = template.for_tools
            return metadata | chat
    raise CheckpointError(
        "its tokenizer splits or normalises text in a way that GGUF has no name for; byte-level "
        f"pre-tokenizers that have one are {', '.join(PRE_TOKENIZERS)}"
    )


def _variants(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    """Yield candidate encodings of the tokenizer; `_equal` decides which one is right."""
    kind = serialized["model"]["type"]
    if kind == "BPE" and serialized["model"].get("byte_fallback"):
        kind = "SentencePiece"
    if kind not in _VOCABULARIES:
        raise CheckpointError(f"a {kind} tokenizer cannot be written as GGUF")
    return _VOCABULARIES[kind](serialized, config)


def _equal(tokenizer: HfTokenizer, metadata: Metadata, serialized: dict[str, Any]) -> bool:
    """Read the metadata back as a tokenizer and compare its tokens on the probe texts."""
    per_token = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores")
    arrays = {key: np.asarray(metadata[key]) for key in per_token if key in metadata}
    written = tokenizer_of(metadata | arrays)
    own = [token["content"] for token in serialized["added_tokens"][:64]]
    texts = (*_PROBES, "x" + " y".join(own))
    return all(
        written.encode(text) == tokenizer.encode(text)
        and written.encode_chat(text) == tokenizer.encode_chat(text)
        for text in texts
    )


def _tokens(serialized: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return texts and types by id; unused ids get a placeholder text."""
    model, added = serialized["model"], serialized["added_tokens"]
    ids = [*model["vocab"].values(), *(token["id"] for token in added)]
    if max(ids) >= size:
        raise CheckpointError(f"its tokenizer has the id {max(ids)}, and its vocab_size is {size}")
    tokens = [f"[PAD{token_id}]" for token_id in range(size)]
    types = [int(TokenType.UNUSED)] * size
    for token, token_id in model["vocab"].items():
        tokens[token_id], types[token_id] = token, int(TokenType.NORMAL)
    for token in added:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        tokens[token["id"]], types[token["id"]] = token["content"], int(kind)
    return tokens, types


def _byte_level(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    tokens, types = _tokens(serialized, config["vocab_size"])
    given = serialized.get("pre_tokenizer") or {}
    steps = given.get("pretokenizers", [given])
    merges = [_merge(merge) for merge in serialized["model"]["merges"]]
    for name, known in PRE_TOKENIZERS.items():
        if steps == known:
            yield {
                "model": "gpt2",
                "pre": name,
                "tokens": tokens,
                "token_type": types,
                "merges": merges,
            }


def _merge(merge: str | list[str]) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _sentence_piece(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    """Score a piece by the first merge that makes it, because SentencePiece merges by score."""
    model = serialized["model"]
    tokens, types = _tokens(serialized, config["vocab_size"])
    unknown = model["vocab"].get(model.get("unk_token"))
    for token_id, token in enumerate(tokens):
        if token_id == unknown:
            types[token_id] = int(TokenType.UNKNOWN)
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            types[token_id] = int(TokenType.BYTE)
    scores = [0.0] * len(tokens)
    for place, merge in enumerate(model["merges"]):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        made = model["vocab"]["".join(pair)]
        scores[made] = scores[made] or -1.0 - place
    for prefix in (True, False):
        yield {
            "model": "llama",
            "pre": "default",
            "tokens": tokens,
            "scores": scores,
            "token_type": types,
            "add_space_prefix": prefix,
            **({} if unknown is None else {"unknown_token_id": unknown}),
        }


def _word_piece(serialized: dict[str, Any], config: Mapping[str, Any]) -> Iterator[Metadata]:
    """BERT marks pieces that continue a word, GGUF marks those that begin one."""
    tokens, types = _tokens(serialized, config["vocab_size"])
    vocab = serialized["model"]["vocab"]
    special = {
        "unknown_token_id": vocab.get("[UNK]"),
        "cls_token_id": vocab.get("[CLS]"),
        "seperator_token_id": vocab.get("[SEP]"),  # as GGUF spells it
        "padding_token_id": vocab.get("[PAD]"),
        "mask_token_id": vocab.get("[MASK]"),
    }
    yield {
        "model": "bert",
        "pre": "default",
        "tokens": [_begun(token, kind) for token, kind in zip(tokens, types, strict=True)],
        "token_type": types,
        "token_type_count": config.get("type_vocab_size", 2),
        **{key: token_id for key, token_id in special.items() if token_id is not None},
    }


def _begun(token: str, kind: int) -> str:
    if kind == TokenType.CONTROL or (token.startswith("[") and token.endswith("]")):
        return token
    return token.removeprefix("##") if token.startswith("##") else SPACE + token


def _ends(bos_id: int | None, ends: list[int], tokenizer: HfTokenizer) -> Metadata:
    """Name the ends, if there are too many but for those that every reader finds by their texts."""
    if len(ends) > len(_EOS_KEYS):
        texts = [tokenizer.token_text(token_id) for token_id in ends]
        kinds = np.full(len(ends), TokenType.CONTROL)
        found = ends_by_text(texts, kinds)
        ends = [end for place, end in enumerate(ends) if place == 0 or place not in found]
    if len(ends) > len(_EOS_KEYS):
        raise CheckpointError(f"it has {len(ends)} end tokens; GGUF holds {len(_EOS_KEYS)}")
    named: Metadata = dict(zip(_EOS_KEYS, ends, strict=False))
    return named if bos_id is None else {"bos_token_id": bos_id, **named}


_VOCABULARIES: Mapping[str, Callable[[dict[str, Any], Mapping[str, Any]], Iterator[Metadata]]] = (
    MappingProxyType(
        {"BPE": _byte_level, "SentencePiece": _sentence_piece, "WordPiece": _word_piece}
    )
)
