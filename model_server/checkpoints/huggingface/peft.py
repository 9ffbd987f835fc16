"""Opens a LoRA adapter as Hugging Face's PEFT saves it: adapter_config.json and its tensors.

What PEFT can train beside the factors of linear layers (biases, whole modules, embeddings, experts)
cannot be applied row by row of a batch. `open_adapter` refuses it by name, as leaving it out would
change the answers; `merged_adapter.py` writes it into a copy of the base.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.files import read_json
from model_server.checkpoints.huggingface.safetensors_header import DTYPES
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.region import Region
from model_server.checkpoints.roots import local_place
from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess, ProcessEnded, ProcessStarved
from sax.errors import CheckpointError
from sax.format import quoted, shortened

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MERGE = "write it into a copy of its base (sax convert BASE FOLDER --adapter ADAPTER), publish that"
_PREFIX = "base_model.model."
# Text models inside a multimodal checkpoint; a base's own tensors are named without it too.
_TEXT_PART = "language_model."
_FACTORS = (".lora_A.weight", ".lora_B.weight")
_LENGTH = ".lora_magnitude_vector"
# Initialisations that also change the base's weights while training.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Settings that tensors repeat, or that matter only for training.
_HARMLESS = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config",
        "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
        "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout",
        "lora_ga_config", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r",
        "alpha_pattern", "rank_pattern", "use_dora",
        "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
        "ensure_weight_tying",
    }
)  # fmt: skip
# Settings of what `merged_adapter.py` writes into a base.
_MERGED = frozenset(
    {"bias", "lora_bias", "modules_to_save", "target_parameters", "trainable_token_indices"}
)
_OFF = (None, False, "none", [], {}, "")
_SECONDS = 5.0  # of processor time
_MEMORY, _ADDRESSES = 512 << 20, 2 << 30
_LITERAL = re.compile(r"\^?(?:[\w-]|\\?\.)+\$?", re.ASCII)


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """A module's factors: its rank, what B @ A is multiplied by, and whether it has lengths."""

    rank: int
    scale: float
    length: bool = False  # of each row of the sum (DoRA)


class PeftAdapter:
    """An open adapter; its tensors are named MODULE.lora_A.weight [r, in], MODULE.lora_B.weight
    [out, r] and MODULE.lora_magnitude_vector [out], MODULE as in the base's checkpoint. Reading is
    thread-safe.
    """

    def __init__(self, folder: Path, *, merging: bool = False) -> None:
        """Raises CheckpointError, naming the file or the setting.

        merging: take what only a merged base can have; the names of its tensors are `others`.
        """
        self._path = folder / WEIGHTS
        self.config = read_json(folder / CONFIG)
        self._check_config(folder / CONFIG, merging)
        self._stored = StoredTensors(folder, one_file=WEIGHTS)
        try:
            self._names = self._named()
            ours = {name for name in self._names if name.endswith((*_FACTORS, _LENGTH))}
            self.others = sorted(self._names.keys() - ours)
            if self.others and not merging:
                raise CheckpointError(
                    f"{self._path} has tensor {quoted(self._names[self.others[0]])}, which is not "
                    "a low-rank factor of a linear layer (MODULE.lora_A.weight, "
                    f"MODULE.lora_B.weight): {MERGE}"
                )
            self.modules = self._adapted(ours)
        except BaseException:
            self.close()
            raise

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored.shape(self._names[name])

    def read(
        self, name: str, region: Region | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        return self._stored.read(self._names[name], region, out)

    def close(self) -> None:
        self._stored.close()

    def _check_config(self, path: Path, merging: bool) -> None:
        config = self.config
        if config.get("peft_type") != "LORA":
            raise CheckpointError(
                f"{path}: peft_type is {quoted(config.get('peft_type'))}; only LORA is supported"
            )
        for key, value in config.items():
            if key in _HARMLESS or value in _OFF or (merging and key in _MERGED):
                continue
            way = MERGE if key in _MERGED else "train without it"
            raise CheckpointError(
                f"{path}: {quoted(key)} is {shortened(str(value))}, which is not supported beside "
                f"other adapters: {way}"
            )
        begun = config.get("init_lora_weights")
        if isinstance(begun, str) and begun.lower().startswith(_CHANGES_BASE):
            raise CheckpointError(
                f"{path}: init_lora_weights is {shortened(begun)}, which changes the base's own "
                "weights: save the adapter with path_initial_model_for_weight_conversion"
            )
        for key in ("alpha_pattern", "rank_pattern"):
            given = config.get(key) or {}
            if not isinstance(given, dict) or not all(map(_is_positive, given.values())):
                raise CheckpointError(
                    f"{path}: {key} is {shortened(str(given))}; give expressions of module names "
                    "with numbers above 0"
                )

    def _named(self) -> dict[str, str]:
        """Map the tensors' names without prefixes to those in the file."""
        names: dict[str, str] = {}
        for stored, dtype in self._stored.dtypes.items():
            name = stored.removeprefix(_PREFIX).replace(_TEXT_PART, "", 1)
            name = name.removesuffix(".weight") if name.endswith(f"{_LENGTH}.weight") else name
            if dtype not in DTYPES:
                raise CheckpointError(
                    f"{self._path}: tensor {quoted(stored)} is {dtype}; supported are "
                    f"{', '.join(DTYPES)}"
                )
            names[name] = stored
        return names

    def _adapted(self, ours: set[str]) -> Mapping[str, AdaptedModule]:
        named = sorted({_module(name) for name in ours})
        scales = self.scales(named)
        modules: dict[str, AdaptedModule] = {}
        for module in named:
            down, up = (
                self.shape(name) if (name := f"{module}{factor}") in ours else ()
                for factor in _FACTORS
            )
            if len(down) != 2 or len(up) != 2 or down[0] != up[1] or not down[0]:
                raise CheckpointError(
                    f"{self._path}: the factors of {quoted(module)} are {list(down)} and "
                    f"{list(up)}; they must be [r, in] and [out, r]"
                )
            length = f"{module}{_LENGTH}" in ours
            if length != bool(self.config.get("use_dora")):
                raise CheckpointError(
                    f"{self._path}: {quoted(module)} has {'a' if length else 'no'} "
                    f"lora_magnitude_vector, and use_dora is {not length}"
                )
            modules[module] = AdaptedModule(down[0], scales[module](down[0]), length)
        if not modules and not self.others:
            raise CheckpointError(f"{self._path} holds no tensors")
        return modules

    def scales(self, modules: Sequence[str]) -> dict[str, Callable[[int], float]]:
        """Return what B @ A of each module is multiplied by, by its rank.

        modules: by the names that this adapter's tensors have here.
        """
        given: dict[str, float] = self.config.get("alpha_pattern") or {}
        of_module = {_module(name): _module(stored) for name, stored in self._names.items()}
        whole = {of_module[name].removeprefix(_PREFIX): name for name in modules}
        found = first_matches(list(given), list(whole))
        return {
            module: partial(self._scale, given[found[name]] if name in found else None)
            for name, module in whole.items()
        }

    def _scale(self, alpha: Any, rank: int) -> float:
        alpha = self.config.get("lora_alpha", 8) if alpha is None else alpha
        if not _is_positive(alpha):
            raise CheckpointError(
                f"{self._path.parent / CONFIG}: lora_alpha is {shortened(str(alpha))}; give a "
                "number above 0"
            )
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def open_adapter(path: str, *, merging: bool = False) -> PeftAdapter:
    """Open a local folder that PEFT saved. Raises CheckpointError.

    merging: it is written into its base, where it may change more than linear layers.
    """
    place = local_place(path)
    if place is None or not place.is_dir():
        raise CheckpointError(
            f"{path} is not a folder on this machine: an adapter is the folder that PEFT saves, "
            f"with {CONFIG} and {WEIGHTS}"
        )
    if not (place / CONFIG).exists():
        raise CheckpointError(f"{place} holds no {CONFIG}: it is not an adapter that PEFT saved")
    return PeftAdapter(place, merging=merging)


def _module(name: str) -> str:
    return name.rpartition(".lora_")[0]


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def first_matches(patterns: Sequence[str], modules: Sequence[str]) -> dict[str, str]:
    """Return the first pattern that matches a module's name or its last parts, by module.

    Raises CheckpointError for a pattern that is no expression, or that takes too long.
    """
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as exc:
            raise CheckpointError(f"{quoted(pattern)} is no regular expression: {exc}") from exc
    if all(map(_LITERAL.fullmatch, patterns)):
        return dict(_matched(patterns, modules))
    process = ConfinedProcess(
        __name__, _SECONDS, 0, doing="matches an adapter's patterns", most=64 << 20
    )
    try:
        return process.exchange(framed(json.dumps([patterns, modules]).encode()), json.loads)
    except (ProcessEnded, ProcessStarved, OSError) as exc:
        raise CheckpointError(
            f"its expressions cannot be matched ({exc}): name the modules in full"
        ) from exc
    finally:
        process.stop()


def _matched(patterns: Iterable[str], modules: Iterable[str]) -> Iterable[tuple[str, str]]:
    compiled = {pattern: re.compile(rf"(.*\.)?({pattern})$") for pattern in patterns}
    for module in modules:
        for pattern, expression in compiled.items():
            if expression.match(module):
                yield module, pattern
                break


def _answer(frame: bytes) -> bytes:
    patterns, modules = json.loads(frame)
    return framed(json.dumps(dict(_matched(patterns, modules))).encode())


if __name__ == "__main__":
    confine(_MEMORY, _ADDRESSES)
    run(_answer)
