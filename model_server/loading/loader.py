"""The real loader: from a spec to a model in memory, for every kind of model.

A language model may span the hosts of a replica; other kinds use one device of the primary.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.hub.fetching import is_fetched, local_copy, pin
from model_server.checkpoints.huggingface.peft import open_adapter
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.roots import CheckpointRoots
from model_server.config import ModelServerConfig, advertised_host
from model_server.disaggregation.disaggregation import Disaggregation
from model_server.disaggregation.island_moves import IslandMoves
from model_server.disaggregation.kv_runner import KvRunner
from model_server.disaggregation.transfer_server import TransferServer
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.islands.island_runner import IslandRunner
from model_server.engine.types import EngineLimits, HeldRunner
from model_server.grammars.compiler import GrammarCompiler
from model_server.islands.devices import Copy, answers, copies, copy_name, islands
from model_server.islands.proxy_backend import is_proxied
from model_server.loading.adapters.bases import Bases
from model_server.loading.audio.audio_loading import load_audio
from model_server.loading.compile_watch import CompileWatch
from model_server.loading.cpu_kernels import kernels_of
from model_server.loading.custom_loading import load_custom
from model_server.loading.device_memory import device_limit, free_memory, server_devices
from model_server.loading.draft_loading import check_vocabulary, draft_checkpoint, with_draft
from model_server.loading.images.image_reader import image_reader
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
from model_server.loading.media.usable_media import with_usable_media
from model_server.loading.memory_plan import Devices, FreeMemory
from model_server.loading.openings import Openings
from model_server.loading.passes.chosen_tasks import generates, tasks_of
from model_server.loading.passes.embed_loading import load_embedder
from model_server.loading.stages.host_stage import StageHost, StageLoad
from model_server.loading.stages.island_stages import IslandStagesLoad
from model_server.loading.vision.vision_loading import load_vision
from model_server.models.custom import CustomModel
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.recipe import Recipe
from model_server.models.registry import (
    AdapterClass,
    audio_class,
    check_overrides,
    find,
    make_recipe,
    vision_class,
)
from model_server.models.tasks import GENERATE
from model_server.models.weights.sharding import Layout
from model_server.models.whole_recipe import whole_recipe
from model_server.multihost.lockstep import Lockstep
from model_server.multihost.vote import Shares
from model_server.sharing.freeing import give_back_unused
from model_server.text.chat_template import ChatTemplate
from model_server.text.dialect import AnswerDialect, dialect_of
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from model_server.text.vocabulary_fit import check_fit
from sax.adapters import parse_base
from sax.errors import (
    CheckpointError,
    InvalidRequest,
    LoadFailed,
    ModelPathNotFound,
    Unavailable,
)
from sax.names import NO_CHECKPOINT
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

LoadedPasses = LoadedEmbedder | LoadedCustom | LoadedVision | LoadedAudio
_METHODS = ("lm.generate", "lm.generate_stream", "lm.score")
_MULTIMODAL = ("mm.generate", "mm.score")

Report = Callable[[Progress], None]


AnyLoad = LmLoad | StageLoad | IslandStagesLoad
AnyRunner = HeldRunner | EmbedRunner | CustomRunner | VisionRunner | AudioRunner


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
        self._roots = CheckpointRoots(config.checkpoint_roots)
        self._openings = Openings(config.open_seconds)
        self._transfer = TransferServer(advertised_host(config.host))
        self._bases = Bases()
        self._live: list[_Live] = []
        self._island_load = threading.Lock()  # one at a time, of whichever model
        # Launch order of each model whose hosts wait for each other.
        self._orders: list[tuple[HeldRunner, str]] = []

    def __call__(self, spec: ModelSpec, report: Report) -> AnyLoaded:
        report(Progress("starting"))
        entry = find(spec.model_path)  # an unknown path is the clearer error, so it comes first
        check_offered(entry.path, self._config.model_filter_regex)
        spec = self.pinned(spec)
        if isinstance(entry, AdapterClass):  # compiles nothing
            return self._load_adapter(spec, report)
        with self._loading(spec):
            if isinstance(entry, CustomModel):
                spec = self._local(spec, report)
                return self._keep(
                    spec, load_custom(entry, spec, self._config, self._free_memory(), report)
                )
            with _named(spec.checkpoint), self._open(spec, report) as checkpoint:
                config = checkpoint.config if checkpoint else None
                if vision := vision_class(spec.model_path, config):
                    free = self._free_memory()
                    return self._keep(
                        spec, load_vision(vision, spec, checkpoint, self._config, free, report)
                    )
                if audio := audio_class(spec.model_path, config):
                    free = self._free_memory()
                    return self._keep(
                        spec, load_audio(audio, spec, checkpoint, self._config, free, report)
                    )
                recipe = _recipe_of(spec, config)
                if isinstance(recipe, Recipe):
                    if generates(recipe, checkpoint):
                        with with_draft(recipe, spec.overrides, self._opener(report)) as recipe:
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
    ) -> HeldRunner:
        """Load this host's share of a model for its primary. Raises as a load does."""
        with self._loading(spec), _named(spec.checkpoint), self._open(spec, report) as checkpoint:
            config = checkpoint.config if checkpoint else None
            recipe = _recipe_of(spec, config)
            assert isinstance(recipe, Recipe), "only language models span hosts"
            with with_draft(recipe, spec.overrides, self._opener(report)) as recipe:
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

    def pinned(self, spec: ModelSpec) -> ModelSpec:
        """Name the commits of what a hub has, for every host and every later look at it.

        Raises InvalidName, CheckpointError.
        """
        overrides = dict(spec.overrides)
        if draft := draft_checkpoint(overrides):
            overrides["DRAFT_MODEL"] = json.dumps(self.pin(draft))
        return replace(spec, checkpoint=self.pin(spec.checkpoint), overrides=overrides)

    def pin(self, checkpoint: str) -> str:
        """Return a checkpoint with the commit that its revision means now; a path unchanged.

        Raises InvalidName, CheckpointError for one that no load here can fetch.
        """
        if not is_fetched(checkpoint):
            return checkpoint
        self._roots.check(checkpoint)
        return pin(checkpoint)

    def _open(self, spec: ModelSpec, report: Report) -> AbstractContextManager[Checkpoint | None]:
        if spec.checkpoint == NO_CHECKPOINT:
            return nullcontext(None)
        return self._opener(report)(spec.checkpoint)

    def _opener(self, report: Report) -> Callable[[str], AbstractContextManager[Checkpoint]]:
        """Return what fetches a checkpoint, if need be, and opens it."""

        def open_it(path: str) -> AbstractContextManager[Checkpoint]:
            self._openings.run(path, lambda: self._roots.check(path))
            place = local_copy(path, report)
            return closing(
                self._openings.run(path, lambda: open_checkpoint(place), lambda late: late.close())
            )

        return open_it

    def _local(self, spec: ModelSpec, report: Report) -> ModelSpec:
        """Return the spec with a local path, for models whose own function opens the checkpoint.

        Raises CheckpointError.
        """
        if spec.checkpoint == NO_CHECKPOINT:
            return spec
        self._openings.run(spec.checkpoint, lambda: self._roots.check(spec.checkpoint))
        return replace(spec, checkpoint=local_copy(spec.checkpoint, report))

    def _load(
        self, spec: ModelSpec, recipe: Recipe, checkpoint: Checkpoint | None, report: Report
    ) -> Loaded:
        # Cheap checks come before slow work: vocabulary, plan, then weights.
        tokenizer, template = self._text(spec, recipe, checkpoint)
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
        moves = self._moves(load)
        runner = self._run(spec, load, report)
        islands = None
        if is_proxied():
            assert not isinstance(load, StageLoad)
            islands = self._on_islands(spec, runner, load, moves, report)
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
            dialect=_dialect(recipe, template),
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

    def _moves(self, load: AnyLoad) -> IslandMoves | None:
        """Return what moves pages between islands, if some compute prompts for the others.

        Raises InvalidRequest if none are left for the answers.
        """
        if not (is_proxied() and self._config.prefill_islands):
            return None
        assert isinstance(load, LmLoad), "check_behind_proxy has refused stages"
        every = copies(1)
        prompts = {copy for copy in every if copy[0] in self._config.prefill_islands}
        if len(prompts) in (0, len(every)):
            raise InvalidRequest(
                f"--prefill_islands names {len(prompts)} of the {len(every)} islands: name some, "
                "and leave some for the answers"
            )
        moves = IslandMoves({copy_name(copy) for copy in prompts}, load.deployment.limits)
        load.port = moves.port(copy_name(every[0]), load.deployment.pool_shapes)
        return moves

    def _on_islands(
        self,
        spec: ModelSpec,
        first: HeldRunner,
        load: LmLoad | IslandStagesLoad,
        moves: IslandMoves | None,
        report: Report,
    ) -> IslandLoads:
        """Load one copy of the model after another, on the islands that the first left.

        Each copy is all of it, so that any can go on with the sequences of another.
        """
        limits = load.deployment.limits
        first_copy, *others = copies(load.deployment.recipe.stages)
        runners = {first_copy: _island_runner(first, load, moves, first_copy)}
        try:
            for copy in others:
                runners[copy] = self._copied(spec, limits, copy, moves, report)
        except BaseException:
            for runner in runners.values():
                for lane in runner.lanes:
                    lane.close()
            raise

        def load_again(copy: Copy) -> IslandRunner:
            return self._copied(spec, limits, copy, moves, _report_to_nobody)

        elastic = self._config.elastic_slices
        return IslandLoads(spec.model_id, load_again, answers, runners, elastic, moves)

    def _copied(
        self,
        spec: ModelSpec,
        limits: EngineLimits,
        copy: Copy,
        moves: IslandMoves | None,
        report: Report,
    ) -> IslandRunner:
        """Load a model that was planned on other islands. Raises as a load does."""
        with (
            self._island_load,
            self._loading(spec),
            _named(spec.checkpoint),
            self._open(spec, report) as checkpoint,
        ):
            config = checkpoint.config if checkpoint else None
            recipe = _recipe_of(spec, config)
            assert isinstance(recipe, Recipe), "only language models have islands"
            holders = self._holders()
            holders.pop(spec.model_id, None)
            load = self._planned_copy(spec, recipe, checkpoint, holders, copy, limits)
            if moves is not None and isinstance(load, LmLoad):
                load.port = moves.port(copy_name(copy), load.deployment.pool_shapes)
            runner = load.build(COMPILED_HERE, report)
            run_all(runner, report)
            return _island_runner(runner, load, moves, copy)

    def _planned_copy(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        holders: Mapping[str, int],
        copy: Copy,
        limits: EngineLimits | None = None,
    ) -> LmLoad | IslandStagesLoad:
        how = (spec, recipe, checkpoint, self._config, holders)
        if recipe.stages > 1:
            return IslandStagesLoad(*how, copy, limits)
        return LmLoad(*how, self._transfer, limits, among=islands()[copy[0]])

    def _beside(
        self,
        load: AnyLoad,
        runner: HeldRunner,
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
        with _named(spec.checkpoint):
            # A first look, so that a file system that does not answer ends in time.
            self._openings.run(spec.checkpoint, lambda: self._roots.check(spec.checkpoint))
            place = local_copy(spec.checkpoint, report)
            self._openings.run(spec.checkpoint, lambda: open_adapter(place).close())
            return self._bases.load(spec, base, report)

    def _text(
        self, spec: ModelSpec, recipe: Recipe, checkpoint: Checkpoint | None
    ) -> tuple[HfTokenizer | ByteTokenizer, ChatTemplate | None]:
        """Read the tokenizer and the chat template. Raises CheckpointError."""
        own = recipe.chat.template
        if checkpoint is None:
            return ByteTokenizer(recipe.vocab), None if own is None else _tried(ChatTemplate(own))
        tokenizer = self._openings.run(spec.checkpoint, checkpoint.tokenizer)
        check_fit(tokenizer, recipe.vocab, spec.checkpoint)
        if own is not None:
            theirs = None
            with suppress(CheckpointError):  # a broken one is what a publication may replace
                theirs = self._openings.run(spec.checkpoint, checkpoint.chat_template)
            made = template_of(own, tokenizer) if theirs is None else theirs.replaced(own)
            return tokenizer, _tried(made)
        template = self._openings.run(spec.checkpoint, checkpoint.chat_template)
        return tokenizer, template and _tried(template)

    def _draft_tokenizer(self, path: str, checkpoint: Checkpoint) -> HfTokenizer:
        return self._openings.run(path, checkpoint.tokenizer)

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
                return self._planned_copy(*how[:3], self._holders(), copies(recipe.stages)[0])
            return StageLoad(*how, self._stage_host, limits)
        return LmLoad(*how, self._transfer, limits, tasks)

    def _run(self, spec: ModelSpec, load: AnyLoad, report: Report) -> HeldRunner:
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

    def _disaggregation(self, load: AnyLoad, runner: HeldRunner) -> Disaggregation | None:
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
        assert isinstance(runner, KvRunner)
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


def _recipe_of(spec: ModelSpec, config: Mapping[str, Any] | None) -> Recipe | EmbedRecipe:
    """Return a model's recipe, with image input where it can be served.

    Raises as `make_recipe` does.
    """
    made = make_recipe(spec.model_path, config, spec.overrides)
    if not isinstance(made, Recipe) or made.media is None:
        return made
    return with_usable_media(made, spec.overrides, proxied=is_proxied())


def check_behind_proxy(recipe: Recipe, config: ModelServerConfig) -> None:
    """Raise InvalidRequest for what a model cannot have on islands behind a proxy server."""
    if not is_proxied():
        return
    for has, what, remedy in (
        (recipe.adapters is not None, "room for adapters", "publish it without MAX_ADAPTERS"),
        (recipe.draft is not None, "a draft model", "publish it without DRAFT_MODEL"),
        (
            config.prefill or bool(config.prefill_servers),
            "prefill on other servers",
            "start it with --prefill_islands in place of --prefill and --prefill_servers",
        ),
        (
            recipe.stages > 1 and bool(config.prefill_islands),
            "stages beside islands for prompts",
            "publish it without NUM_STAGES, or start the server without --prefill_islands",
        ),
    ):
        if has:
            raise InvalidRequest(f"behind a proxy server a model has no {what} yet: {remedy}")


def _island_runner(
    runner: HeldRunner, load: LmLoad | IslandStagesLoad, moves: IslandMoves | None, copy: Copy
) -> IslandRunner:
    if moves is not None:
        assert isinstance(runner, KvRunner), "its load has a port"
        runner = moves.attach(copy_name(copy), runner)
    return IslandRunner(runner, load.others)


def _report_to_nobody(progress: Progress) -> None:
    """For loads that nobody asked for."""


def make_loader(
    config: ModelServerConfig, hosts: Shares | None = None, stage_host: StageHost | None = None
) -> ModelLoader:
    """Return the process's loader. Call once: it listens to every compilation from then on."""
    return ModelLoader(config, CompileWatch(strict=config.strict_compile), hosts, stage_host)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Prefix checkpoint errors with the checkpoint's path, unless the text has it already."""
    try:
        yield
    except CheckpointError as exc:
        if path in exc.text:
            raise
        raise type(exc)(f"{path}: {exc.text}", param=exc.param) from exc


def check_offered(path: str, filter_regex: str) -> None:
    """Raise ModelPathNotFound for a path that --model_filter_regex excludes."""
    if not re.fullmatch(filter_regex, path):
        raise ModelPathNotFound(
            f"{path} is known here but not offered: this server was started with "
            f"--model_filter_regex {filter_regex!r}",
            param="model_path",
        )


def template_of(source: str, tokenizer: HfTokenizer) -> ChatTemplate:
    """Return a template with the tokens of a vocabulary. Raises CheckpointError."""
    start, ends = tokenizer.bos_id, sorted(tokenizer.eos_ids)
    return ChatTemplate(
        source,
        "" if start is None else tokenizer.token_text(start),
        tokenizer.token_text(ends[0]) if ends else "",
        tokenizer.control_tokens.texts,
    )


def _tried(template: ChatTemplate) -> ChatTemplate:
    template.try_out()
    return template


def _dialect(recipe: Recipe, template: ChatTemplate | None) -> AnswerDialect:
    source = "" if template is None else template.source
    return dialect_of(source, recipe.chat.tool_parser, recipe.chat.reasoning_parser)


def chat_queries(recipe: Recipe, template: ChatTemplate | None) -> bool:
    """Return True if a Saxml query is a user message. Raises InvalidRequest if it cannot be."""
    if recipe.query_format == "chat" and template is None:
        raise InvalidRequest(
            'QUERY_FORMAT is "chat" but the checkpoint has no chat template',
            param="overrides.QUERY_FORMAT",
        )
    text = not recipe.tokenized_input and recipe.query_format != "raw"
    return template is not None and text
