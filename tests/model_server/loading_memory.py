"""How much memory loading a checkpoint takes beside the weights, in a process of its own.

    python -m tests.model_server.loading_memory PATH [KEY=VALUE ...]

Prints JSON. The largest weights are loaded last, so that nothing hides what they take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.demo_model import ROOT

if TYPE_CHECKING:
    from model_server.models.weights.weight import Declaration

# Freed arrays go back to the system at once: what is resident is what is in use.
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(2**18), "JAX_ENABLE_COMPILATION_CACHE": "false"}


@dataclass(frozen=True)
class Taken:
    """All in bytes."""

    placed: int  # the weights, when all are there
    largest: int  # tensor of the checkpoint, as it is read
    resident: int  # most that the process grew by, less the weights


def taken(path: Path, **overrides: str) -> Taken:
    """Measured while a fresh process loads the checkpoint; overrides are JSON texts."""
    words = [f"{key}={value}" for key, value in overrides.items()]
    result = subprocess.run(
        [sys.executable, "-m", __name__, str(path), *words],
        env=os.environ | _ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return Taken(**json.loads(result.stdout))


def _measured(path: str, overrides: dict[str, str]) -> Taken:
    import jax

    from model_server.checkpoints.opening import open_checkpoint
    from model_server.loading.weights import read_weights
    from model_server.models.registry import make_recipe

    with closing(open_checkpoint(path)) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, overrides)
        declared = recipe.blueprint(checkpoint=checkpoint).declarations
        jax.device_put(0.0).block_until_ready()  # the device's own memory is not the weights'
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        leaves = read_weights(declared, _LargestLast(checkpoint, declared), lambda progress: None)
        placed = sum(weight.bytes for weight in declared)
        del leaves
        return Taken(
            placed=placed,
            largest=max(checkpoint.nbytes(name) for name in checkpoint.names()),
            resident=_status("VmHWM") - before - placed,
        )


class _LargestLast:
    """A checkpoint that says its tensors lie in the order of their weights' sizes."""

    def __init__(self, checkpoint: Any, declared: Sequence[Declaration]) -> None:
        self._checkpoint = checkpoint
        self._sizes = {name: weight.bytes for weight in declared for name in weight.source.names}

    def names(self) -> list[str]:
        return sorted(self._checkpoint.names(), key=lambda name: self._sizes.get(name, 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[2:])
    json.dump(asdict(_measured(sys.argv[1], given)), sys.stdout)
