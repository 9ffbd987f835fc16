"""The parts of a runner on this host, as its deployment has them, with their weights read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.engine.buckets import Bucket
from model_server.engine.running.adapters import AdapterFiles, Adapters
from model_server.engine.running.encoder import Encoder
from model_server.engine.running.runner import RunnerPart
from model_server.loading.deployment import Deployment
from model_server.loading.draft_loading import Weights, read_draft
from model_server.loading.media.encoder_weights import encoder_weights
from sax.types import Progress


def read_parts(
    plan: Deployment,
    checkpoint: Checkpoint | None,
    seed: int,
    report: Callable[[Progress], None],
    weights: Weights,
    adapters: AdapterFiles | None,
    buckets: Sequence[Bucket],
) -> list[RunnerPart]:
    """Return the parts that hosts warm in this order; a draft model, if there is one, comes last.

    weights: reads those of a deployment. adapters: of a model with room for them. buckets: of the
    steps. Raises CheckpointError.
    """
    parts: list[RunnerPart] = []
    if adapters is not None:
        parts.append(Adapters(adapters))
    if (encoder := plan.program.encoder) is not None:
        media, layout = plan.recipe.media, plan.layout
        read = encoder_weights(plan.encoder, layout, checkpoint, seed, report, media)
        parts.append(Encoder(encoder, read))
    if (draft := read_draft(plan, weights, buckets)) is not None:
        parts.append(draft)
    return parts
