"""Loads a custom model: runs the user's load function, then compiles every bucket.

Memory is counted after the function has run, because only it knows what it loads.
"""

from __future__ import annotations

from collections.abc import Callable

from model_server.config import ModelServerConfig
from model_server.loading.custom.custom_runner import CompiledProgram
from model_server.loading.loaded import Batching, LoadedCustom
from model_server.loading.memory_plan import FreeMemory
from model_server.models.custom import CustomMethod, CustomModel, CustomProgram
from model_server.models.overrides import apply_overrides
from sax.errors import InvalidRequest, LoadFailed
from sax.memory_parts import MemoryParts
from sax.names import NO_CHECKPOINT
from sax.types import ModelSpec, Progress


def load_custom(
    model: CustomModel,
    spec: ModelSpec,
    config: ModelServerConfig,
    free: FreeMemory,
    report: Callable[[Progress], None],
) -> LoadedCustom:
    """Raises InvalidRequest, LoadFailed, MemoryPlanError, and what the user's function raises."""
    checkpoint = None if spec.checkpoint == NO_CHECKPOINT else spec.checkpoint
    if checkpoint is None and model.needs_checkpoint:
        raise InvalidRequest(f"{model.path} needs a checkpoint, not None", param="checkpoint")
    values = apply_overrides(model.overridable, spec.overrides)
    report(Progress("loading"))
    program = model.load(checkpoint, values)
    if not isinstance(program, CustomProgram):
        raise LoadFailed(
            f"load of {model.path} must return a CustomProgram, not a {type(program).__name__}"
        )
    runner = CompiledProgram(program, report)
    try:
        memory = free.reserve(weights=runner.bytes, workspace=runner.workspace)
    except BaseException:
        runner.close()
        raise
    batching = {name: _batching(method, config) for name, method in program.methods.items()}
    parts = MemoryParts(weights=runner.bytes, workspace=runner.workspace)
    return LoadedCustom(runner=runner, batching=batching, memory=memory, parts=parts)


def _batching(method: CustomMethod, config: ModelServerConfig) -> Batching:
    return Batching(max(method.batch_sizes), method.wait_s, method.queue or config.queue)
