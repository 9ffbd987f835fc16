"""What transformers computes with real models: ids, texts and vectors; no weights are stored.

The models are those that `make model`, `make gemma`, `make minilm` and `make whisper` put into
.cache.
"""

from __future__ import annotations

from pathlib import Path

from tests.tools.golden import common
from tests.tools.golden.real import gemma3, minilm, smollm2, speech

_CACHE = common.GOLDEN.parents[1] / ".cache" / "models"
# Name -> file or folder of the model, and what makes the case.
_ROWS = {
    "smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", smollm2),
    "gemma3": ("gemma-3-270m-Q4_K_M.gguf", gemma3),
    "minilm": ("all-MiniLM-L6-v2", minilm),
    "speech": ("whisper-tiny.en", speech),
}
CASES = [*_ROWS]


def make(name: str, into: Path) -> None:
    import torch

    source, module = _ROWS[name]
    into.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        module.make(_CACHE / source, into)
