"""Loads the models that a server's own flags name."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from model_server.serving.servables import Servables
from sax.errors import LoadFailed, SaxError
from sax.types import ModelSpec

logger = logging.getLogger(__name__)


async def load_static(servables: Servables, models: Sequence[ModelSpec]) -> None:
    """Load them in order. Raises LoadFailed naming the model: the server cannot do its work."""
    for spec in models:
        logger.info(
            "loading %s from %s (%s), as --model_keys says",
            spec.model_id,
            spec.checkpoint,
            spec.model_path,
        )
        try:
            await servables.load(spec)
        except SaxError as exc:
            raise LoadFailed(f"--model_keys: {spec.model_id} cannot be loaded: {exc.text}") from exc
    if models:
        logger.info("all %d models of --model_keys are loaded", len(models))
