"""The real loader: from a spec to a model in memory, for every kind of model.

A language model may span the hosts of a replica; other kinds use devices of the primary.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig, advertised_host
from model_server.disaggregation.disaggregation import Disaggregation
from model_server.disaggregation.transfer_server import TransferServer
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.running.ops import Runner
from model_server.engine.types import EngineLimits
from model_server.grammars.compiler import GrammarCompiler
from model_server.islands.devices import copies
from model_server.islands.proxy_backend import is_proxied
from model_server.loading.adapters.bases import Bases
from model_server.loading.audio.audio_loading import load_audio
from model_server.loading.compile_watch import CompileWatch
from model_server.loading.cpu_kernels import kernels_of
from model_server.loading.custom.custom_loading import load_custom
from model_server.loading.device_memory import device_limit, free_memory, server_devices
from model_server.loading.draft_loading import check_vocabulary, with_draft
from model_server.loading.images.image_reader import image_reader
from model_server.loading.island_copies import IslandCopies
from model_server.loading.island_loads import IslandLoads
from model_server.loading.lm_loading import LmLoad, measure, run_all
from model_server.loading.loaded import (
    AnyLoaded,
    AudioRunner,
    CustomRunner,
    EmbedRunner,
    Loaded,
    LoadedAdapter,
    LoadedAudio,
    LoadedCustom,
    LoadedEmbedder,
    LoadedGradients,
    LoadedVision,
    VisionRunner,
)
from model_server.loading.media.image_tokens import check_image_tokens
from model_server.loading.memory_plan import Devices, FreeMemory
from model_server.loading.model_text import answer_dialect, chat_queries, read_text
from model_server.loading.opening.checkpoint_opener import CheckpointOpener, Report, named
from model_server.loading.passes.chosen_tasks import generates, tasks_of
from model_server.loading.passes.embed_loading import load_embedder
from model_server.loading.served_recipe import check_behind_proxy, check_offered, recipe_of
from model_server.loading.stages.host_stage import StageHost, StageLoad
from model_server.loading.stages.island_stages import IslandStagesLoad
from model_server.loading.vision.vision_loading import load_vision
from model_server.models.custom import CustomModel
from model_server.models.recipe import Recipe
from model_server.models.registry import (
    AdapterClass,
    audio_class,
    check_overrides,
    find,
    vision_class,
)
from model_server.models.tasks import GENERATE
from model_server.models.weights.sharding import Layout
from model_server.models.whole_recipe import whole_recipe
from model_server.multihost.lockstep import Lockstep
from model_server.multihost.vote import Shares
from model_server.sharing.freeing import give_back_unused
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.adapters import parse_base
from sax.errors import (
    InvalidRequest,
    LoadFailed,
    Unavailable,
)
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

LoadedPasses = LoadedEmbedder | LoadedCustom | LoadedVision | LoadedAudio
_METHODS = ("lm.generate", "lm.generate_stream", "lm.score")
_MULTIMODAL = ("mm.generate", "mm.score")


AnyLoad = LmLoad | StageLoad | IslandStagesLoad
AnyRunner = Runner | EmbedRunner | CustomRunner | VisionRunner | AudioRunner


class _Live(NamedTuple):
    """A model in memory."""

    runner: AnyRunner | IslandLoads
    model_id: str
    memory: int  # bytes per device


class ModelLoader:
    """Loads models onto this process's devices and accounts for their memory."""

    def __init__(
        self,
        config: ModelServerConfig,
        watch: CompileWatch,
        hosts: Shares | None = None,
        stage_host: StageHost | None = None,
    ) -> None:
        """hosts: of this replica, on its primary. stage_host: None: this host is alone."""
        self._config = config
        self._hosts = hosts
        self._stage_host = stage_host or StageHost()
        self.watch = watch
        self._opener = CheckpointOpener(config.checkpoint_roots, config.open_seconds)
        self.pin = self._opener.pin
        self._transfer = TransferServer(advertised_host(config.host))
        self._bases = Bases()
        self._live: list[_Live] = []
        self._copies = IslandCopies(
            config, self._opener, self._transfer, self._loading, self._holders
        )
        # Launch order of each model whose hosts wait for each other.
        self._orders: list[tuple[Runner, str]] = []

    def __call__(self, spec: ModelSpec, report: Report) -> AnyLoaded:
        report(Progress("starting"))
        entry = find(spec.model_path)  # an unknown path is the clearer error, so it comes first
        check_offered(entry.path, self._config.model_filter_regex)
        spec = self._opener.pinned(spec)
        if isinstance(entry, AdapterClass):  # compiles nothing
            return self._load_adapter(spec, report)
        with self._loading(spec):
            if isinstance(entry, CustomModel):
                spec = self._opener.local(spec, report)
                return self._keep(
                    spec, load_custom(entry, spec, self._config, self._free_memory(), report)
                )
            with self._opener.opened(spec, report) as checkpoint:
                config = checkpoint.config if checkpoint else None
                if vision := vision_class(spec.model_path, config):
                    free = self._free_on
                    return self._keep(
                        spec, load_vision(vision, spec, checkpoint, self._config, free, report)
                    )
                if audio := audio_class(spec.model_path, config):
                    free = self._free_on
                    return self._keep(
                        spec, load_audio(audio, spec, checkpoint, self._config, free, report)
                    )
                recipe = recipe_of(spec, config)
                if isinstance(recipe, Recipe):
                    if generates(recipe, checkpoint):
                        with with_draft(
                            recipe, spec.overrides, self._opener.opener(report)
                        ) as recipe:
                            return self._load(spec, recipe, checkpoint, report)
                    recipe = whole_recipe(recipe)
                assert checkpoint is not None, "every embedder needs a checkpoint"
                return self._keep(
                    spec,
                    load_embedder(
                        recipe,
                        checkpoint,
                        spec.checkpoint,
                        self._config,
                        self._free_on,
                        report,
                    ),
                )

    def share(
        self, spec: ModelSpec, limits: EngineLimits, programs: Programs, report: Report
    ) -> Runner:
        """Load this host's share of a model for its primary. Raises as a load does."""
        with self._loading(spec), self._opener.opened(spec, report) as checkpoint:
            config = checkpoint.config if checkpoint else None
            recipe = recipe_of(spec, config)
            assert isinstance(recipe, Recipe), "only language models span hosts"
            with with_draft(recipe, spec.overrides, self._opener.opener(report)) as recipe:
                load = self._planned(spec, recipe, checkpoint, limits)
                runner = load.build(programs, report)
            self._live.append(_Live(runner, spec.model_id, load.deployment.memory.total))
            return runner

    def compiles_while_serving(self) -> int:
        return self.watch.while_serving

    def devices(self) -> Devices:
        """Return the devices models can use. Raises Unavailable if jax finds none."""
        try:
            return server_devices(self._config)
        except RuntimeError as exc:  # e.g. chip in use, bad driver, unknown platform
            raise Unavailable(f"jax has no devices here: {exc}") from exc
        except AssertionError as exc:  # jax's, for a platform that has no plugin here
            asked = os.environ.get("JAX_PLATFORMS", "")
            raise Unavailable(f"jax has no devices here: JAX_PLATFORMS={asked}") from exc

    @contextmanager
    def _loading(self, spec: ModelSpec) -> Iterator[None]:
        """Log what a load compiles, and give back the memory that it used in passing."""
        with self.watch.loading() as compiles:
            yield
        logger.info("%s: while it loaded, XLA compiled %s", spec.model_id, compiles)
        if len(self._live) == 1:  # nobody is served meanwhile
            give_back_unused()

    def _load(
        self, spec: ModelSpec, recipe: Recipe, checkpoint: Checkpoint | None, report: Report
    ) -> Loaded:
        # Cheap checks come before slow work: vocabulary, plan, then weights.
        tokenizer, template = read_text(recipe, checkpoint, spec.checkpoint, self._opener)
        as_chat = chat_queries(recipe, template)
        check_vocabulary(tokenizer, recipe, self._draft_tokenizer)
        check_image_tokens(recipe.media, tokenizer)
        images = image_reader(recipe.media)
        if images is not None and template is not None:
            template = template.with_images(images.recipe.placeholder)
        replies = recipe.replies.of_tokenizer(tokenizer.eos_ids)
        check_behind_proxy(recipe, self._config)
        load = self._planned(spec, recipe, checkpoint, tasks=tasks_of(recipe, checkpoint))
        self._check_order(load.order)
        moves = self._copies.moves(load) if is_proxied() else None
        runner = self._run(spec, load, report)
        islands = None
        if is_proxied():
            assert not isinstance(load, StageLoad)
            islands = self._copies.load_others(spec, runner, load, moves, report)
        times = measure(runner, load.measured, spec.model_id)
        held = islands or runner
        self._live.append(_Live(held, spec.model_id, load.deployment.memory.total))
        if load.order is not None:
            self._orders.append((runner, load.order))
        disaggregation = self._disaggregation(load, runner)
        embedder, gradients = self._beside(load, runner, checkpoint, tokenizer, report)
        loaded = Loaded(
            runner=disaggregation.runner if disaggregation else runner,
            tokenizer=tokenizer,
            vocab=recipe.vocab,
            chat_template=template,
            images=images,
            dialect=answer_dialect(recipe, template),
            chat_queries=as_chat,
            tokenized_input=recipe.tokenized_input,
            tokenized_output=recipe.tokenized_output,
            start_token=recipe.start_token if checkpoint is None else None,
            replies=replies,
            grammars=GrammarCompiler(tokenizer, recipe.vocab),
            note=recipe.note,
            defaults=recipe.defaults,
            samples=recipe.samples,
            memory=load.deployment.total_bytes,
            parts=load.deployment.parts,
            kernels=kernels_of(load.deployment),
            devices=load.deployment.layout.mesh.size,
            methods=(
                *replies.served(_METHODS),
                *(_MULTIMODAL if images else ()),
                *(embedder.methods if embedder else ()),
                *(("lm.gradient",) if gradients else ()),
            ),
            step_times=times,
            step_limit_s=self._config.step_timeout_seconds,
            stream_interval_s=self._config.stream_interval_seconds,
            islands=islands,
            disaggregation=disaggregation,
            embedder=embedder,
            gradients=gradients,
        )
        if recipe.adapters is not None:
            self._bases.keep(spec, recipe.adapters, loaded, runner)
        return loaded

    def _beside(
        self,
        load: AnyLoad,
        runner: Runner,
        checkpoint: Checkpoint | None,
        tokenizer: HfTokenizer | ByteTokenizer,
        report: Report,
    ) -> tuple[LoadedEmbedder | None, LoadedGradients | None]:
        """Return what the model does beside generating; each of its programs has run once."""
        if not isinstance(load, LmLoad) or load.beside is None:
            return None, None
        beside, leaves, queue = load.beside, load.leaves, self._config.queue
        try:
            embedder = beside.embedder(leaves, checkpoint, tokenizer, queue, report)
            return embedder, beside.gradients(leaves, queue, report)
        except BaseException:
            runner.close()
            raise

    def _load_adapter(self, spec: ModelSpec, report: Report) -> LoadedAdapter:
        """Load a LoRA adapter into its base. Raises LoadFailed, CheckpointError, InvalidRequest."""
        check_overrides(spec.model_path, spec.overrides)
        base = parse_base(spec.overrides)
        with named(spec.checkpoint):
            self._opener.check_adapter(spec.checkpoint, report)
            return self._bases.load(spec, base, report)

    def _draft_tokenizer(self, path: str, checkpoint: Checkpoint) -> HfTokenizer:
        return self._opener.read(path, checkpoint.tokenizer)

    def _planned(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        limits: EngineLimits | None = None,
        tasks: frozenset[str] = frozenset(),
    ) -> AnyLoad:
        how = (spec, recipe, checkpoint, self._config, self._holders())
        if recipe.stages > 1:
            if tasks - {GENERATE}:
                raise InvalidRequest(
                    "TASKS beside generate need a model in one stage: leave out NUM_STAGES or "
                    "TASKS",
                    param="overrides.TASKS",
                )
            if self._config.programs:
                logger.warning("%s: in stages, so its hosts ignore --programs", spec.model_id)
            if is_proxied():
                return self._copies.planned(*how[:3], self._holders(), copies(recipe.stages)[0])
            return StageLoad(*how, self._stage_host, limits)
        return LmLoad(*how, self._transfer, limits, tasks)

    def _run(self, spec: ModelSpec, load: AnyLoad, report: Report) -> Runner:
        if self._hosts is not None and load.spans_hosts:
            return self._hosts.load(
                spec, load.deployment.limits, lambda programs: load.build(programs, report), report
            )
        runner = load.build(COMPILED_HERE, report)
        run_all(runner, report)
        return runner

    def _check_order(self, order: str | None) -> None:
        """Raise LoadFailed if hosts could launch the programs of two models in different orders."""
        self._orders = [(runner, held) for runner, held in self._orders if not runner.closed]
        others = {held for _, held in self._orders} - {order}
        if order is not None and others:
            raise LoadFailed(
                f"a model that lies {order} cannot be beside one that lies {others.pop()}: hosts "
                "would wait for each other forever; unload that one, or set NUM_STAGES to the "
                "number of hosts"
            )

    def _disaggregation(self, load: AnyLoad, runner: Runner) -> Disaggregation | None:
        if isinstance(load, IslandStagesLoad):
            return None
        if isinstance(load, StageLoad):
            if self._config.takes_pages:
                logger.warning("--prefill_servers is ignored for a model in stages")
            return None
        if load.traffic is None:
            return None
        if isinstance(runner, Lockstep):
            assert self._hosts is not None
            return load.disaggregation(runner, self._hosts.transfers(runner, load.traffic))
        return load.disaggregation(runner, load.traffic)

    def _free_memory(self) -> FreeMemory:
        holders = self._holders()
        limit = device_limit(jax.local_devices(), self._config)
        return FreeMemory(limit, sum(holders.values()), holders)

    def _free_on(self, layout: Layout) -> FreeMemory:
        """Return what is left on each device of a layout."""
        if layout.mesh.size == 1:
            return self._free_memory()
        return free_memory(layout, self._config, self._holders())

    def _keep(self, spec: ModelSpec, loaded: LoadedPasses) -> LoadedPasses:
        self._live.append(_Live(loaded.runner, spec.model_id, loaded.memory))
        return loaded

    def _holders(self) -> dict[str, int]:
        """Return the models in memory, with the bytes that each has planned on a device."""
        self._live = [live for live in self._live if not live.runner.closed]
        holders: dict[str, int] = {}
        for live in self._live:
            holders[live.model_id] = holders.get(live.model_id, 0) + live.memory
        return holders


def make_loader(
    config: ModelServerConfig, hosts: Shares | None = None, stage_host: StageHost | None = None
) -> ModelLoader:
    """Return the process's loader. Call once: it listens to every compilation from then on."""
    return ModelLoader(config, CompileWatch(strict=config.strict_compile), hosts, stage_host)
