"""Loads a custom model: runs the user's load function, then compiles every bucket.

Memory is counted after the function has run, because only it knows what it loads.
"""

from __future__ import annotations

from functools import partial

from model_server.config import ModelServerConfig
from model_server.loading.batch_plan import BatchPlan
from model_server.loading.custom.compiled_program import CompiledProgram
from model_server.loading.custom.loaded_custom import LoadedCustom
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import Batching
from model_server.loading.loaded_model import Report
from model_server.models.custom import CustomMethod, CustomModel, CustomProgram
from model_server.models.overrides import apply_overrides
from model_server.models.weights.sharding import own_device
from sax.errors import InvalidRequest, LoadFailed
from sax.memory_parts import MemoryParts
from sax.names import NO_CHECKPOINT
from sax.types import Progress


def plan(asked: AskedModel, context: LoadContext, report: Report) -> BatchPlan[LoadedCustom]:
    """Load a model and compile every bucket.

    Raises InvalidRequest, LoadFailed, and what the user's function raises.
    """
    model, config = asked.entry, context.config
    assert isinstance(model, CustomModel), "the kind was chosen by it"
    spec = context.opener.local(asked.spec, report)
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
    compiled = CompiledProgram(program, report)
    batching = {name: _batching(method, config) for name, method in program.methods.items()}
    return BatchPlan(
        context=context,
        spec=spec,
        layout=own_device(),
        parts=MemoryParts(weights=compiled.bytes, workspace=compiled.workspace),
        runner=lambda report: compiled,
        loaded=partial(LoadedCustom, batching=batching, methods=tuple(batching)),
        discard=compiled.close,
    )


def _batching(method: CustomMethod, config: ModelServerConfig) -> Batching:
    return Batching(max(method.batch_sizes), method.wait_s, method.queue or config.queue)
