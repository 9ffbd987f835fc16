"""Small random models of the types that are served by transformers' code, as folders on disk.

A case is a file of tests/golden/transformers: a config.json without what transformers' own
configuration says anyway. transformers writes the folder, so names and layouts are its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.random_tensor import random_tensor
from tests.model_server.checkpoints.tiny_folder import VOCAB, tokenizer_json

FOLDER = Path(__file__).parents[3] / "golden" / "transformers"


def case_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


class Reference:
    """A case in transformers: float32, eager attention."""

    def __init__(self, name: str) -> None:
        import torch
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        self._torch = torch
        given = json.loads((FOLDER / f"{name}.json").read_text())
        config = CONFIG_MAPPING[given["model_type"]].from_dict(given)
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        self._model = kind._from_config(
            config, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self._model.tie_weights()
        self._fill()

    def _fill(self) -> None:
        """Set weights that follow from their names, and buffers that checkpoints hold likewise."""
        kept = self._model.state_dict(keep_vars=True)
        with self._torch.no_grad():
            for name, held in kept.items():
                if held.is_floating_point():
                    made = random_tensor(name, tuple(held.shape))
                    held.copy_(self._torch.from_numpy(made))

    def save(self, folder: Path) -> Path:
        """Write the folder as transformers publishes it, with a tokenizer."""
        self._model.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(tokenizer_json())
        return folder

    def logits(self, prompt: np.ndarray) -> np.ndarray:
        """f32[S, V]."""
        tokens = self._torch.from_numpy(np.asarray(prompt, np.int64))[None]
        with self._torch.no_grad():
            return self._model(input_ids=tokens, use_cache=False).logits[0].numpy()


def prompt_of(length: int, seed: int = 0) -> np.ndarray:
    """i64[S] tokens that are no special ones."""
    return np.random.default_rng(seed).integers(3, VOCAB, length)
