"""Opens a LoRA adapter as Hugging Face's PEFT saves it: adapter_config.json and its tensors.

What PEFT can train beside plain low-rank factors (biases, whole modules, DoRA, ...) is refused by
name: leaving it out would change the answers without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_server.checkpoints.huggingface.safetensors_header import DTYPES
from model_server.checkpoints.huggingface.safetensors_tensors import StoredTensors
from model_server.checkpoints.json_file import read_json
from model_server.checkpoints.region import Region
from model_server.checkpoints.roots import local_place
from sax.errors import CheckpointError
from sax.format import quoted, shortened

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
# Text models inside a multimodal checkpoint; a base's own tensors are named without it too.
_TEXT_PART = "language_model."
_FACTORS = (".lora_A.weight", ".lora_B.weight")
_PLAIN_NAME = re.compile(r"\^?[\w.]+\$?", re.ASCII)
# Initialisations that also change the base's weights while training.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Settings that tensors repeat, or that matter only for training.
_HARMLESS = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config",
        "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
        "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout",
        "megatron_core", "peft_type", "peft_version", "qalora_group_size", "r",
        "alpha_pattern", "rank_pattern",
        "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
        "ensure_weight_tying",
    }
)  # fmt: skip
_OFF = (None, False, "none", [], {}, "")


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """A module's factors: its rank, and what B @ A is multiplied by."""

    rank: int
    scale: float


class PeftAdapter:
    """An open adapter; its tensors are named MODULE.lora_A.weight [r, in] and MODULE.lora_B.weight
    [out, r], MODULE as in the base's checkpoint. Reading is thread-safe.
    """

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError, naming the file or the setting."""
        self._path = folder / WEIGHTS
        self._config = read_json(folder / CONFIG)
        self._check_config(folder / CONFIG)
        self._stored = StoredTensors(folder, one_file=WEIGHTS)
        try:
            self._names = self._named()
            self.modules = self._adapted()
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

    def _check_config(self, path: Path) -> None:
        config = self._config
        if config.get("peft_type") != "LORA":
            raise CheckpointError(
                f"{path}: peft_type is {quoted(config.get('peft_type'))}; only LORA is supported"
            )
        for key, value in config.items():
            if key not in _HARMLESS and value not in _OFF:
                raise CheckpointError(
                    f"{path}: {quoted(key)} is {shortened(str(value))}, which is not supported: "
                    "adapters are served as plain low-rank factors; merge the adapter into its "
                    "base and publish that, or train without it"
                )
        begun = config.get("init_lora_weights")
        if isinstance(begun, str) and begun.lower().startswith(_CHANGES_BASE):
            raise CheckpointError(
                f"{path}: init_lora_weights is {shortened(begun)}, which changes the base's own "
                "weights: save the adapter with path_initial_model_for_weight_conversion"
            )
        self._check_pattern(path, "alpha_pattern", config.get("alpha_pattern") or {})

    def _check_pattern(self, path: Path, key: str, given: Any) -> None:
        """Only plain names: an expression of a stranger could run for hours.

        That of ranks is not read: the tensors have them.
        """
        fine = isinstance(given, dict) and all(map(_PLAIN_NAME.fullmatch, given))
        if not fine or not all(map(_is_positive, given.values())):
            raise CheckpointError(
                f"{path}: {key} is {shortened(str(given))}; give module names, or their ends, with "
                "numbers above 0"
            )

    def _named(self) -> dict[str, str]:
        """Map the tensors' names without prefixes to those in the file."""
        names: dict[str, str] = {}
        for stored, dtype in self._stored.dtypes.items():
            name = stored.removeprefix(_PREFIX).replace(_TEXT_PART, "", 1)
            if not name.endswith(_FACTORS):
                raise CheckpointError(
                    f"{self._path} has tensor {quoted(stored)}, which is not a low-rank factor of "
                    "a linear layer (MODULE.lora_A.weight, MODULE.lora_B.weight): merge the "
                    "adapter into its base and publish that"
                )
            if dtype not in DTYPES:
                raise CheckpointError(
                    f"{self._path}: tensor {quoted(stored)} is {dtype}; supported are "
                    f"{', '.join(DTYPES)}"
                )
            names[name] = stored
        return names

    def _adapted(self) -> Mapping[str, AdaptedModule]:
        modules: dict[str, AdaptedModule] = {}
        for module in sorted({_module(name) for name in self._names}):
            shapes = [
                self.shape(name) if (name := f"{module}{factor}") in self._names else ()
                for factor in _FACTORS
            ]
            down, up = shapes
            if len(down) != 2 or len(up) != 2 or down[0] != up[1] or not down[0]:
                raise CheckpointError(
                    f"{self._path}: the factors of {quoted(module)} are {list(down)} and "
                    f"{list(up)}; they must be [r, in] and [out, r]"
                )
            modules[module] = AdaptedModule(down[0], self._scale(module, down[0]))
        if not modules:
            raise CheckpointError(f"{self._path} holds no tensors")
        return modules

    def _scale(self, module: str, rank: int) -> float:
        alpha = _of_module(self._config.get("alpha_pattern") or {}, module)
        alpha = self._config.get("lora_alpha", 8) if alpha is None else alpha
        if not _is_positive(alpha):
            raise CheckpointError(
                f"{self._path.parent / CONFIG}: lora_alpha is {shortened(str(alpha))}; give a "
                "number above 0"
            )
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)


def open_adapter(path: str) -> PeftAdapter:
    """Open a local folder that PEFT saved. Raises CheckpointError."""
    place = local_place(path)
    if place is None or not place.is_dir():
        raise CheckpointError(
            f"{path} is not a folder on this machine: an adapter is the folder that PEFT saves, "
            f"with {CONFIG} and {WEIGHTS}"
        )
    if not (place / CONFIG).exists():
        raise CheckpointError(f"{place} holds no {CONFIG}: it is not an adapter that PEFT saved")
    return PeftAdapter(place)


def _module(name: str) -> str:
    return name.rpartition(".lora_")[0]


def _of_module(pattern: Mapping[str, Any], module: str) -> Any:
    """Return the value of the first name that is the module's, or its last parts; else None."""
    for key, value in pattern.items():
        whole, name = key.startswith("^"), key.removeprefix("^").removesuffix("$")
        if module == name or (not whole and module.endswith(f".{name}")):
            return value
    return None


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf
