"""The real loader: recipe, memory plan, weights, pages, compiled buckets, in that order.

Nothing is allocated before the plan holds.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from model_server.advertised import advertised_host
from model_server.capacity import PREFILL_BLOCKS, device_limit, kv_dtype, plan_capacity
from model_server.chat_template import ChatTemplate
from model_server.checkpoints.checkpoint import Checkpoint, open_checkpoint
from model_server.compile_watch import CompileWatch
from model_server.config import ModelServerConfig
from model_server.custom import CustomModel
from model_server.custom_loading import load_custom
from model_server.disaggregation.kv_transfers import KvTransfers
from model_server.disaggregation.making import by_heads, make_apart, make_transfers
from model_server.disaggregation.transfer_server import TransferServer
from model_server.embed_loading import NeededTensors, load_embedder
from model_server.engine.buckets import closed_set
from model_server.engine.runner import ModelRunner
from model_server.engine.types import EngineLimits
from model_server.kernels import xla
from model_server.kernels.pages import allocate
from model_server.loaded import AnyLoaded, Loaded, LoadedCustom, LoadedEmbedder
from model_server.memory_plan import Room, human
from model_server.models.recipe import Recipe
from model_server.models.registry import find, make_recipe
from model_server.models.sharding import make_mesh
from model_server.models.weight import Blueprint
from model_server.tokenizer import ByteTokenizer
from model_server.vocabulary_fit import check_fit
from model_server.weights import random_weights, read_weights
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound
from sax.names import NO_CHECKPOINT
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

_METHODS = ("lm.generate", "lm.generate_stream", "lm.score")

Report = Callable[[Progress], None]


class _Closes(Protocol):
    """A runner; once closed it holds no memory."""

    @property
    def closed(self) -> bool: ...


class ModelLoader:
    """Loads models into this process's devices and remembers what they take up."""

    def __init__(self, config: ModelServerConfig, watch: CompileWatch) -> None:
        self._config = config
        self.watch = watch
        self._transfer = TransferServer(advertised_host(config.host))
        self._live: list[tuple[_Closes, int]] = []

    def __call__(self, spec: ModelSpec, report: Report) -> AnyLoaded:
        report(Progress("starting"))
        entry = find(spec.model_path)  # an unknown path is the clearer error, so it comes first
        check_offered(entry.path, self._config.model_filter_regex)
        with self.watch.loading():
            if isinstance(entry, CustomModel):
                return self._keep(load_custom(entry, spec, self._config, self._room(), report))
            with _named(spec.checkpoint), self._open(spec) as checkpoint:
                config = checkpoint.config if checkpoint else None
                recipe = make_recipe(spec.model_path, config, spec.overrides)
                if isinstance(recipe, Recipe):
                    return self._load(spec, recipe, checkpoint, report)
                assert checkpoint is not None, "every embedder needs a checkpoint"
                return self._keep(
                    load_embedder(
                        recipe, checkpoint, spec.checkpoint, self._config, self._room(), report
                    )
                )

    def compiles_while_serving(self) -> int:
        """How many programs were compiled outside loads, ever."""
        return self.watch.while_serving

    def _open(self, spec: ModelSpec) -> AbstractContextManager[Checkpoint | None]:
        if spec.checkpoint == NO_CHECKPOINT:
            return nullcontext(None)
        return closing(open_checkpoint(spec.checkpoint))

    def _load(
        self, spec: ModelSpec, recipe: Recipe, checkpoint: Checkpoint | None, report: Report
    ) -> Loaded:
        # What is cheap to get wrong comes before what is slow: vocabulary, plan, then weights.
        tokenizer = checkpoint.tokenizer() if checkpoint else ByteTokenizer(recipe.vocab)
        if checkpoint:
            check_fit(checkpoint.tokenizer(), recipe.vocab, spec.checkpoint)
        template = checkpoint.chat_template() if checkpoint else None
        as_chat = chat_queries(recipe, template)
        mesh = mesh_of(recipe)
        module = recipe.blueprint(mesh.shape["model"], checkpoint)
        limits, planned = plan_capacity(recipe, module, mesh, self._config, self._in_use())
        _warn_of_plain(spec, module)
        logger.info(
            "%s: %s planned per device, %d pages, mesh %s",
            spec.model_id,
            human(planned.total),
            planned.pages,
            dict(mesh.shape),
        )
        needed: Any = checkpoint and NeededTensors(checkpoint, recipe.unused)
        leaves = _weights(spec, module, needed, mesh, report)
        traffic = make_transfers(self._transfer, self._config, recipe, limits, mesh)
        runner = _compiled(recipe, module, leaves, limits, mesh, traffic, report)
        self._live.append((runner, planned.total))
        return Loaded(
            runner=runner,
            tokenizer=tokenizer,
            vocab=recipe.vocab,
            chat_template=template,
            chat_queries=as_chat,
            defaults=recipe.defaults,
            samples=recipe.samples,
            memory=planned.total * mesh.size,
            methods=_METHODS,
            apart=traffic and make_apart(traffic, spec, recipe, limits, mesh),
        )

    def _room(self) -> Room:
        """What a model on one device may fill."""
        mesh = make_mesh((1, 1, len(jax.devices())))
        return Room(device_limit(mesh, self._config), self._in_use())

    def _keep(self, loaded: LoadedEmbedder | LoadedCustom) -> LoadedEmbedder | LoadedCustom:
        self._live.append((loaded.runner, loaded.memory))
        return loaded

    def _in_use(self) -> int:
        self._live = [(runner, size) for runner, size in self._live if not runner.closed]
        return sum(size for _, size in self._live)


def make_loader(config: ModelServerConfig) -> ModelLoader:
    """The loader of this process. Call it once: it listens to every compilation from then on."""
    return ModelLoader(config, CompileWatch(strict=config.strict_compile))


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Puts the checkpoint's name before what is wrong in it, where the text does not say it."""
    try:
        yield
    except CheckpointError as exc:
        if path in exc.text:
            raise
        raise CheckpointError(f"{path}: {exc.text}", param=exc.param) from exc


def _warn_of_plain(spec: ModelSpec, module: Blueprint) -> None:
    left = [declared.path for declared in module.declarations if declared.left_plain]
    if left:
        logger.warning(
            "%s: QUANTIZE fits neither shape nor checkpoint of %d matrices, which stay plain: %s%s",
            spec.model_id,
            len(left),
            ", ".join(left[:3]),
            ", ..." if len(left) > 3 else "",
        )


def check_offered(path: str, filter_regex: str) -> None:
    """Raises ModelPathNotFound for a path that this server was told not to offer."""
    if not re.fullmatch(filter_regex, path):
        raise ModelPathNotFound(
            f"{path} is known here but not offered: this server was started with "
            f"--model_filter_regex {filter_regex!r}",
            param="model_path",
        )


def mesh_of(recipe: Recipe) -> Mesh:
    """The mesh a recipe asks for; by default every device of this process shares the work."""
    return make_mesh(recipe.mesh_shape or (1, 1, len(jax.devices())))


def _weights(
    spec: ModelSpec, module: Blueprint, checkpoint: Checkpoint | None, mesh: Mesh, report: Report
) -> list[jax.Array]:
    if checkpoint:
        return read_weights(module.declarations, checkpoint, report, mesh)
    return random_weights(module.declarations, zlib.crc32(spec.model_id.encode()), report, mesh)


def _compiled(
    recipe: Recipe,
    module: Blueprint,
    leaves: list[jax.Array],
    limits: EngineLimits,
    mesh: Mesh,
    traffic: KvTransfers | None,
    report: Report,
) -> ModelRunner:
    """Pages beside the weights, and every bucket compiled."""
    pages = allocate(
        recipe.cache(mesh.shape["model"]),
        limits.pages,
        limits.page_size,
        kv_dtype(recipe),
        by_heads(recipe, mesh),
    )
    buckets = closed_set(limits.slots, PREFILL_BLOCKS)
    runner = ModelRunner(module, leaves, pages, limits, buckets, xla.paged_attention, traffic)
    try:
        runner.compile(report)
    except BaseException:
        runner.close()
        raise
    return runner


def chat_queries(recipe: Recipe, template: ChatTemplate | None) -> bool:
    """Whether a Saxml query is a user's turn. Raises InvalidRequest if it cannot be."""
    if recipe.query_format == "chat" and template is None:
        raise InvalidRequest(
            'QUERY_FORMAT is "chat" but the checkpoint has no chat template',
            param="overrides.QUERY_FORMAT",
        )
    return template is not None and recipe.query_format != "raw"
