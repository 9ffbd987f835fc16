"""Loads a LoRA adapter into a model that was loaded with room for it."""

from __future__ import annotations

from typing import NamedTuple

from model_server.checkpoints.huggingface.peft import open_adapter
from model_server.loading.checkpoint_opener import named
from model_server.loading.kinds import AskedModel
from model_server.loading.language import LanguageModels
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded import LoadedAdapter
from model_server.loading.loaded_model import Report
from model_server.models.registry import check_overrides
from sax.adapters import parse_base
from sax.types import ModelSpec


class AdapterPlan(NamedTuple):
    """An adapter whose base is named; whether it has room shows as it is loaded."""

    context: LoadContext
    spec: ModelSpec
    base: str  # model id

    def build(self, report: Report) -> LoadedAdapter:
        """Raises LoadFailed, CheckpointError."""
        opener, path = self.context.opener, self.spec.checkpoint
        with named(path):
            place = opener.place(path, report)
            # Open it once, so that a file system that does not answer ends in time.
            opener.read(path, lambda: open_adapter(place).close())
            bases = self.context.kind(LanguageModels).bases
            return bases.load(self.spec, self.base, report)


def plan(asked: AskedModel, context: LoadContext, report: Report) -> AdapterPlan:
    """Raises InvalidRequest."""
    spec = asked.spec
    check_overrides(spec.model_path, spec.overrides)
    return AdapterPlan(context, spec, parse_base(spec.overrides))
