"""The real loader: from a spec to a model in memory, for every kind of model.

A language model may span the hosts of a replica; other kinds use devices of the primary.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext

from model_server.config import ModelServerConfig
from model_server.engine.versions import own_digest
from model_server.engine.worker import Worker
from model_server.loading.compile_watch import CompileWatch
from model_server.loading.device_memory import server_devices
from model_server.loading.kinds import AskedModel, load_model
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_model import LoadedModel, Report
from model_server.loading.memory_plan import Devices
from model_server.loading.served_recipe import check_offered
from model_server.models.registry import AdapterClass, find
from sax.errors import Unavailable
from sax.types import ModelSpec, Progress


class ModelLoader:
    """Loads models onto this process's devices and accounts for their memory."""

    def __init__(self, config: ModelServerConfig, watch: CompileWatch) -> None:
        self.context = LoadContext(config, watch)
        self.watch = watch
        self.pin = self.context.opener.pin

    def __call__(self, spec: ModelSpec, report: Report) -> LoadedModel:
        context, opener = self.context, self.context.opener
        report(Progress("starting"))
        entry = find(spec.model_path)  # an unknown path is the clearer error, so it comes first
        check_offered(entry.path, context.config.model_filter_regex)
        spec = opener.pinned(spec)
        adapts = isinstance(entry, AdapterClass)  # which compiles nothing, beside a serving base
        with nullcontext() if adapts else context.loading(spec), ExitStack() as opened:
            return load_model(AskedModel(spec, entry, opener, opened, report), context, report)

    def compiles_while_serving(self) -> int:
        return self.watch.while_serving

    def devices(self) -> Devices:
        """Return the devices models can use. Raises Unavailable if jax finds none."""
        try:
            return server_devices(self.context.config)
        except RuntimeError as exc:  # e.g. chip in use, bad driver, unknown platform
            raise Unavailable(f"jax has no devices here: {exc}") from exc
        except AssertionError as exc:  # jax's, for a platform that has no plugin here
            asked = os.environ.get("JAX_PLATFORMS", "")
            raise Unavailable(f"jax has no devices here: JAX_PLATFORMS={asked}") from exc


def make_loader(config: ModelServerConfig) -> ModelLoader:
    """Return the process's loader. Call once: it listens to every compilation from then on."""
    if config.keep_programs and config.jax_cache_dir:
        Worker.once("sources", own_digest)  # for the keys of programs
    return ModelLoader(config, CompileWatch(strict=config.strict_compile))
