"""Presents a checkpoint with an adapter written into its weights.

Besides the factors of linear layers (W + scale * B @ A, with DoRA each row in its trained length)
that are whole modules, biases, embeddings, rows of tokens, and matrices of experts, which adapters
of one engine cannot have.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.cast import cast
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.peft import AdaptedModule, PeftAdapter
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, deliver, explicit
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError
from sax.format import quoted

# f32 numbers of a whole tensor -> those with the adapter
Change = Callable[[np.ndarray], np.ndarray]
_HEAD, _TIED = "lm_head.weight", "tie_word_embeddings"
_BASE = ".base_layer"
_TOKENS = ".token_adapter.trainable_tokens_delta"
_INPUT_MAJOR = ("gpt_oss",)  # experts as [E, in, out]; told by shapes where they are not square


class MergedAdapter:
    """A `Checkpoint`: its base's, but for the weights that the adapter changes."""

    def __init__(self, base: Checkpoint, adapter: PeftAdapter) -> None:
        """Raises CheckpointError for what is not in the base, or cannot be written into it."""
        self._base = base
        self._adapter = adapter
        self._there = set(base.names())
        self.config = base.config
        self._copied: dict[str, str] = {}  # a head that was tied: the embedding it is read from
        self._changes: dict[str, list[Change]] = {}
        self._made: tuple[str, np.ndarray] | None = None  # the last one that was read
        self._guard = threading.Lock()
        for name in adapter.others:  # whole modules first: factors may be of them
            if not name.endswith((*_FACTORS_OF_OTHERS, _TOKENS)):
                self._replace(name)
        for name in adapter.others:
            self._change_other(name)
        for module, adapted in adapter.modules.items():
            self._change(module, adapted)
        self._untie()

    @property
    def format(self) -> str:
        return self._base.format

    @property
    def folder(self) -> Path | None:
        return self._base.folder

    @property
    def generation_config(self) -> dict[str, Any]:
        return self._base.generation_config

    def names(self) -> list[str]:
        return [*self._base.names(), *self._copied]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._base.shape(self._stored(name))

    def dtype(self, name: str) -> str:
        return self._base.dtype(self._stored(name))

    def nbytes(self, name: str) -> int:
        return self._base.nbytes(self._stored(name))

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """As the interface says; but a changed tensor is made whole, and the last one kept."""
        stored = self._stored(name)
        if name not in self._changes:
            return self._base.read(stored, region, out)
        with self._guard:
            if self._made is None or self._made[0] != name:
                self._made = name, self._changed(name)
            numbers = self._made[1]
        part = numbers[explicit(region or (), numbers.shape)]
        return deliver(cast(name, part, self._base.dtype(stored)), out)

    def _changed(self, name: str) -> np.ndarray:
        numbers = self._base.read(self._stored(name)).astype(np.float32)
        for change in self._changes[name]:
            numbers = change(numbers)
        if not np.isfinite(numbers).all():
            raise CheckpointError(f"{name} with the adapter has numbers that are not finite")
        return numbers

    def packing(self, name: str) -> Packing | None:
        return None if name in self._changes else self._base.packing(self._stored(name))

    def read_packed(self, name: str, region: Region | None = None) -> PackedBlocks:
        assert name not in self._changes, "what an adapter changes is not packed"
        return self._base.read_packed(self._stored(name), region)

    def tokenizer(self) -> HfTokenizer:
        return self._base.tokenizer()

    def chat_template(self) -> ChatTemplate | None:
        return self._base.chat_template()

    def close(self) -> None:
        """Leave both to who opened them."""

    def _stored(self, name: str) -> str:
        return self._copied.get(name, name)

    def _add(self, name: str, change: Change, shape: tuple[int, ...], source: str) -> None:
        """Note a change of a base's tensor. Raises CheckpointError unless it is there and fits."""
        found = self._fitting(name, source)
        if found != shape:
            raise CheckpointError(
                f"the adapter makes {name} {list(shape)}, and its base has {list(found)}: it was "
                "trained for another model, or with more tokens"
            )
        self._changes.setdefault(self._in_base(name), []).append(change)

    def _fitting(self, name: str, source: str) -> tuple[int, ...]:
        """Return the shape of a base's tensor. Raises CheckpointError if it has none."""
        self._copy_head(name)
        if (found := self._in_base(name)) not in self._there and found not in self._copied:
            raise CheckpointError(
                f"the adapter changes {quoted(source)}, and its base has no {name}: it was "
                "trained for another model, or the base stores this in another way"
            )
        return self.shape(found)

    def _in_base(self, name: str) -> str:
        """Return the base's name of a tensor; some files lack the first part of every name."""
        rest = name.partition(".")[2]
        return rest if name not in self._there and rest in self._there else name

    def _copy_head(self, name: str) -> None:
        """Give a tied head a tensor of its own, which is read from the embedding."""
        table = self._table
        if name == _HEAD and name not in self._there and table is not None:
            self._copied[name] = table
            self.config = self.config | {_TIED: False}

    @property
    def _table(self) -> str | None:
        ends = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
        return next((name for name in self._there if name.endswith(ends)), None)

    def _replace(self, name: str) -> None:
        """Take a tensor of a whole module, or a bias, in place of the base's."""
        target = name.replace(_BASE, "").replace(".modules_to_save.", ".")
        self._add(
            target,
            lambda _: self._adapter.read(name).astype(np.float32),
            self._adapter.shape(name),
            name,
        )

    def _change_other(self, name: str) -> None:
        if name.endswith(_TOKENS):
            self._change_tokens(name)
        elif name.endswith(".lora_embedding_A"):
            self._change_embedding(name.removesuffix(".lora_embedding_A"))
        elif name.endswith(".lora_B.bias"):
            self._change_bias(name)

    def _change_tokens(self, name: str) -> None:
        """Take rows of an embedding, and of a head that is tied to it."""
        module = name.removesuffix(_TOKENS)
        rows = _rows_of(self._adapter.config.get("trainable_token_indices"), module)
        made, target = self._read(name), f"{module}.weight"

        def change(numbers: np.ndarray) -> np.ndarray:
            numbers = numbers.copy()
            numbers[rows] = made
            return numbers

        if target not in self._there:
            raise CheckpointError(
                f"the adapter changes {quoted(name)}, and its base has no {target}"
            )
        vocab, width = self.shape(target)
        if made.shape != (len(rows), width) or not all(0 <= row < vocab for row in rows):
            raise CheckpointError(
                f"{name} is {list(made.shape)}; trainable_token_indices names {len(rows)} tokens "
                f"of an embedding {[vocab, width]}"
            )
        self._add(target, change, (vocab, width), name)

    def _change_embedding(self, module: str) -> None:
        """Add (B @ A) transposed: factors of an embedding are [r, vocab] and [width, r]."""
        if self._adapter.config.get("use_dora"):
            raise CheckpointError(f"{module} has use_dora, which is not supported for embeddings")
        down, up = (self._read(f"{module}.lora_embedding_{letter}") for letter in "AB")
        scale = self._adapter.scales([module])[module](len(down))
        shape = down.shape[1], up.shape[0]
        self._add(
            f"{module}.weight", lambda numbers: numbers + scale * (up @ down).T, shape, module
        )

    def _change_bias(self, name: str) -> None:
        module = name.removesuffix(".lora_B.bias")
        scale, bias = self._adapter.modules[module].scale, self._read(name)
        target = f"{module.replace(_BASE, '')}.bias"
        self._add(target, lambda numbers: numbers + scale * bias, bias.shape, name)

    def _change(self, module: str, adapted: AdaptedModule) -> None:
        down, up = (self._read(f"{module}.lora_{letter}.weight") for letter in "AB")
        plain = module.replace(_BASE, "")
        if plain.endswith(".experts"):
            rooted = bool(self._adapter.config.get("use_rslora"))
            self._change_experts(plain, _ExpertFactors(down, up, adapted.scale, rooted))
            return
        turned = bool(self._adapter.config.get("fan_in_fan_out"))
        length = self._read(f"{module}.lora_magnitude_vector") if adapted.length else None

        def change(numbers: np.ndarray) -> np.ndarray:
            made = (numbers.T if turned else numbers) + adapted.scale * up @ down
            if length is not None:
                made = made * (length.reshape(-1) / np.linalg.norm(made, axis=1))[:, None]
            return made.T if turned else made

        shape = len(up), down.shape[1]
        self._add(f"{plain}.weight", change, shape[::-1] if turned else shape, module)

    def _change_experts(self, module: str, factors: _ExpertFactors) -> None:
        """Add each expert's own product to a matrix of all experts, or to its own matrices."""
        for kind in ("gate_up_proj", "down_proj"):
            whole = f"{module}.{kind}"
            if whole in self._there and (turned := self._turned(whole, factors.shape)) is not None:
                change, shape = factors.to_all(self.shape(whole)[0], turned=turned)
                self._add(whole, change, shape, whole)
                return
        self._change_apart(module, factors)

    def _turned(self, name: str, shape: tuple[int, int]) -> bool | None:
        """Return True if experts lie as [in, out]; None if the tensor is another one's."""
        stored = self.shape(name)[1:]
        if stored == shape == shape[::-1]:
            return self.config.get("model_type") in _INPUT_MAJOR
        return False if stored == shape else True if stored == shape[::-1] else None

    def _change_apart(self, module: str, factors: _ExpertFactors) -> None:
        count, rows = 0, factors.shape[0]
        while f"{module}.{count}.down_proj.weight" in self._there:
            count += 1
        if not count:
            raise CheckpointError(
                f"the adapter changes the experts {quoted(module)}, and its base stores none of "
                "this name and these sizes"
            )
        whole = self.shape(f"{module}.0.down_proj.weight") == factors.shape
        halves = {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)}
        for kind, part in ({"down_proj": slice(0, rows)} if whole else halves).items():
            for index in range(count):
                change, shape = factors.to_one(index, count, part)
                self._add(f"{module}.{index}.{kind}.weight", change, shape, module)

    def _untie(self) -> None:
        """Keep a tied head as it is where PEFT changes the embedding alone.

        PEFT changes both where tokens were trained, or where it was told to keep them tied.
        """
        table, config = self._table, self._adapter.config
        both = config.get("ensure_weight_tying") or config.get("trainable_token_indices")
        if table in self._changes and _HEAD not in self._there and not both:
            self._copy_head(_HEAD)

    def _read(self, name: str) -> np.ndarray:
        return self._adapter.read(name).astype(np.float32)


_FACTORS_OF_OTHERS = (".lora_embedding_A", ".lora_embedding_B", ".lora_B.bias")


def _rows_of(given: Any, module: str) -> list[int]:
    """Return the tokens that a setting names for a module."""
    if isinstance(given, Mapping):
        given = next((rows for key, rows in given.items() if module.endswith(key)), None)
    if not isinstance(given, list) or not all(type(row) is int for row in given):
        raise CheckpointError(f"trainable_token_indices names no tokens of {quoted(module)}")
    return given


@dataclass(frozen=True, slots=True)
class _ExpertFactors:
    """The factors of all experts of a layer, for one of their matrices."""

    down: np.ndarray  # f32[E r, in], an expert after the other
    up: np.ndarray  # f32[out, r E], experts innermost
    scale: float  # as for a rank of E r
    rooted: bool  # it falls with the root of the rank

    @property
    def shape(self) -> tuple[int, int]:
        """Return (out, in) of an expert's product."""
        return len(self.up), self.down.shape[1]

    def to_all(self, count: int, *, turned: bool) -> tuple[Change, tuple[int, ...]]:
        """Return what adds to [E, out, in], or turned to [E, in, out]; and that shape."""
        self._check(count)

        def change(numbers: np.ndarray) -> np.ndarray:
            made = numbers.copy()
            for index in range(count):
                more = self._product(index, count)
                made[index] += more.T if turned else more
            return made

        return change, (count, *(self.shape[::-1] if turned else self.shape))

    def to_one(self, index: int, count: int, rows: slice) -> tuple[Change, tuple[int, ...]]:
        """Return what adds these rows of an expert's product to its matrix; and their shape."""
        self._check(count)
        shape = rows.stop - rows.start, self.shape[1]
        return lambda numbers: numbers + self._product(index, count)[rows], shape

    def _product(self, index: int, count: int) -> np.ndarray:
        rank = len(self.down) // count
        scale = self.scale * (math.sqrt(count) if self.rooted else count)
        up = self.up.reshape(len(self.up), rank, count)[:, :, index]
        return scale * up @ self.down[index * rank : (index + 1) * rank]

    def _check(self, count: int) -> None:
        if len(self.down) % count:
            raise CheckpointError(
                f"the adapter has {len(self.down)} rows of factors for {count} experts: it was "
                "trained for another model"
            )
