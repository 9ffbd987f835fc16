"""A Hugging Face folder as a checkpoint.

config.json, model.safetensors or its shards, tokenizer.json and what goes with them. Reads tensor
by tensor. Knows the folder's layout, not what the model is.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from model_server.chat_template import ChatTemplate
from model_server.checkpoints.json_file import read_json, read_text
from model_server.checkpoints.safetensors_header import DTYPES, StoredTensor, read_header
from model_server.checkpoints.tensor_file import TensorFile
from model_server.tokenizer import HfTokenizer
from sax.errors import CheckpointError

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsCheckpoint:
    """An open Hugging Face folder. Reading is thread-safe."""

    format = "safetensors"

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError, naming the file."""
        self._folder = folder
        self._files: list[TensorFile] = []
        self.config = _read_config(folder)
        self.generation_config = read_json(folder / "generation_config.json", missing={})
        try:
            self._tensors = self._open_tensors()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        return str(self._dtype(name))

    def nbytes(self, name: str) -> int:
        return self._find(name).nbytes

    def read(self, name: str) -> np.ndarray:
        """One tensor as it is stored."""
        tensor, dtype = self._find(name), self._dtype(name)
        raw = tensor.file.read(tensor.offset, tensor.nbytes, f"tensor {name!r}")
        return raw.view(dtype).reshape(tensor.shape)

    def tokenizer(self) -> HfTokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> HfTokenizer:
        path = self._folder / "tokenizer.json"
        settings = self._tokenizer_config()
        serialized = read_text(path)
        try:
            return HfTokenizer(
                serialized,
                bos=self._bos(settings),
                eos=self._eos(settings),
                adds_bos=settings.get("add_bos_token"),
            )
        except CheckpointError as exc:
            raise CheckpointError(f"{path} cannot be loaded: {exc.text}") from exc

    def chat_template(self) -> ChatTemplate | None:
        settings = self._tokenizer_config()
        path, source = self._template_source(settings)
        if source is None:
            return None
        try:
            return ChatTemplate(
                source,
                _content(settings.get("bos_token")) or "",
                _content(settings.get("eos_token")) or "",
                self.tokenizer().control_tokens.texts,
            )
        except CheckpointError as exc:
            raise CheckpointError(f"{path} cannot be loaded: {exc.text}") from exc

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _open_tensors(self) -> dict[str, StoredTensor]:
        if (self._folder / _ONE_FILE).exists():
            return self._open_file(_ONE_FILE)
        if (self._folder / _INDEX).exists():
            return self._open_shards()
        raise CheckpointError(f"{self._folder} holds neither {_ONE_FILE} nor {_INDEX}")

    def _open_file(self, name: str) -> dict[str, StoredTensor]:
        file = TensorFile(self._folder / name)
        self._files.append(file)
        return read_header(file)

    def _open_shards(self) -> dict[str, StoredTensor]:
        path = self._folder / _INDEX
        shard_of = read_json(path).get("weight_map")
        if not isinstance(shard_of, dict) or not all(map(_is_file_name, shard_of.values())):
            raise CheckpointError(f"{path} has no weight_map of tensor names to file names")
        tensors: dict[str, StoredTensor] = {}
        for shard in sorted(set(shard_of.values())):
            listed = {name for name, place in shard_of.items() if place == shard}
            found = self._open_file(shard)
            _check_shard(path, shard, listed, found.keys())
            tensors |= found
        return tensors

    def _find(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self._folder} has no tensor {name}") from None

    def _dtype(self, name: str) -> np.dtype[Any]:
        tensor = self._find(name)
        if tensor.dtype not in DTYPES:
            raise CheckpointError(
                f"tensor {name} in {tensor.file.path} is stored as {tensor.dtype}; "
                f"supported are {', '.join(DTYPES)}"
            )
        return DTYPES[tensor.dtype]

    def _tokenizer_config(self) -> dict[str, Any]:
        return read_json(self._folder / "tokenizer_config.json", missing={})

    def _bos(self, settings: dict[str, Any]) -> int | str | None:
        given = _content(settings.get("bos_token")) or self.config.get("bos_token_id")
        return given if isinstance(given, int | str) else None

    def _eos(self, settings: dict[str, Any]) -> set[int | str]:
        """Every end anyone names: chat models end turns with several tokens."""
        found: set[int | str] = set()
        for source in (self.generation_config, self.config):
            given = source.get("eos_token_id")
            found |= {i for i in (given if isinstance(given, list) else [given]) if type(i) is int}
        content = _content(settings.get("eos_token"))
        return found | ({content} if content else set())

    def _template_source(self, settings: dict[str, Any]) -> tuple[Path, str | None]:
        own_file = self._folder / "chat_template.jinja"
        if own_file.exists():
            return own_file, read_text(own_file)
        path, source = self._folder / "tokenizer_config.json", settings.get("chat_template")
        if isinstance(source, list):  # several by name
            named = {e.get("name"): e.get("template") for e in source if isinstance(e, dict)}
            source = named.get("default")
        if source is not None and not isinstance(source, str):
            raise CheckpointError(
                f"{path}: chat_template is neither text nor a list with a default"
            )
        return path, source


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} does not say its model_type")
    # Newer files say dtype and rope_parameters for what older ones call otherwise.
    if "torch_dtype" not in config and "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" not in config:
        config["rope_theta"] = rope.get("rope_theta", 10000.0)
        scaled = rope.get("rope_type", "default") != "default"
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        config["rope_scaling"] = rest if scaled else None
    return config


def _check_shard(index: Path, shard: str, listed: set[str], found: Any) -> None:
    if missing := sorted(listed - set(found)):
        raise CheckpointError(
            f"{index.parent / shard} lacks {len(missing)} tensors that {index.name} says it has, "
            f"the first is {missing[0]}"
        )
    if extra := sorted(set(found) - listed):
        raise CheckpointError(
            f"{index.parent / shard} has {len(extra)} tensors that {index.name} does not list "
            f"there, the first is {extra[0]}: the files are not of one checkpoint"
        )


def _is_file_name(text: Any) -> bool:
    return isinstance(text, str) and text.endswith(".safetensors") and "/" not in text


def _content(token: Any) -> str | None:
    """A token in tokenizer_config.json is text, or an object with its text in `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
