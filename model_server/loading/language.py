"""Language models: planned, built on every host of the replica, and ready to run steps."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import NamedTuple

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig, advertised_host
from model_server.disaggregation.disaggregation import Disaggregation
from model_server.disaggregation.island_moves import IslandMoves
from model_server.disaggregation.kv_transfers import TransferServer
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Runner
from model_server.engine.step_times import StepTimes
from model_server.engine.worker import Worker
from model_server.grammars.compiler import GrammarCompiler
from model_server.islands import copies, is_proxied
from model_server.kernels.cpu.attention import MOST_DIM, supports
from model_server.kernels.cpu.served import described, is_native
from model_server.kernels.pages import LayerPages
from model_server.loading.adapters import Bases, load_own
from model_server.loading.checkpoint_opener import CheckpointOpener
from model_server.loading.chosen_tasks import tasks_of
from model_server.loading.deployment import Deployment
from model_server.loading.draft_loading import check_vocabulary, with_draft
from model_server.loading.images.image_reader import ImageReader, image_reader
from model_server.loading.island_copies import IslandCopies
from model_server.loading.island_loads import IslandLoads
from model_server.loading.kinds import AskedModel
from model_server.loading.lm_loading import LmLoad, measure, run_all
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_model import Report
from model_server.loading.media.encoder_weights import check_image_tokens
from model_server.loading.passes.loaded_passes import LoadedEmbedder, LoadedGradients
from model_server.loading.served_recipe import check_behind_proxy, check_routed_experts, recipe_of
from model_server.loading.stages.host_stage import StageHost, StageLoad
from model_server.loading.stages.island_stages import IslandStagesLoad
from model_server.loading.start_loading import keep_templates
from model_server.models.media.media_recipe import written_for
from model_server.models.recipe import Recipe
from model_server.models.saxml_replies import SaxmlReplies
from model_server.models.tasks import GENERATE
from model_server.models.weights.weight import Declaration
from model_server.multihost.lockstep import Lockstep
from model_server.multihost.vote import Shares
from model_server.text.chat_template import ChatTemplate
from model_server.text.dialect import AnswerDialect, dialect_of
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from model_server.text.vocabulary_fit import check_fit
from sax.chat import ToolParser
from sax.errors import CheckpointError, InvalidRequest, LoadFailed
from sax.format import human_bytes
from sax.types import ModelSpec

logger = logging.getLogger(__name__)

AnyLoad = LmLoad | StageLoad | IslandStagesLoad
_METHODS = ("lm.generate", "lm.generate_stream", "lm.score")
_MULTIMODAL = ("mm.generate", "mm.score")


class _ModelText(NamedTuple):
    """The tokenizer and the templates of a model's prompts and answers."""

    tokenizer: HfTokenizer | ByteTokenizer
    template: ChatTemplate | None
    as_chat: bool  # render a Saxml query as a user message
    images: ImageReader | None
    replies: SaxmlReplies


class LanguageModels:
    """The language models of one process, which may be one host of a replica."""

    def __init__(
        self,
        context: LoadContext,
        hosts: Shares | None = None,
        stage_host: StageHost | None = None,
    ) -> None:
        """hosts: of this replica, on its primary. stage_host: None: this host is alone."""
        self.context = context
        self.hosts = hosts
        self.bases = Bases()
        self._stage_host = stage_host or StageHost()
        keep_templates(context.config)
        self._transfer = TransferServer(advertised_host(context.config.host))
        self.copies = IslandCopies(
            context.config, context.opener, self._transfer, context.loading, context.holders
        )
        # Launch order of each model whose hosts wait for each other.
        self._orders: list[tuple[Runner, str]] = []

    @property
    def config(self) -> ModelServerConfig:
        return self.context.config

    def plan(self, asked: AskedModel, report: Report) -> LanguagePlan:
        """The text is read while the memory is planned, since templates wait for a process."""
        spec, checkpoint, opener = asked.spec, asked.checkpoint, self.context.opener
        recipe = asked.recipe
        assert isinstance(recipe, Recipe), "the kind was chosen by it"
        recipe = asked.opened.enter_context(
            with_draft(recipe, spec.overrides, checkpoint, opener.opener(report))
        )
        context = copy_context()
        reading = Worker.once(
            f"load text of {spec.model_id}",
            lambda: context.run(self._text, spec, recipe, checkpoint),
        )
        try:
            check_behind_proxy(recipe, self.config)
            check_routed_experts(recipe, self.config)
            load = self._planned(spec, recipe, checkpoint, tasks=tasks_of(recipe, checkpoint))
            self._check_order(load.order)
        finally:
            text = reading.result()  # what is wrong with it is told first
        moves = self.copies.moves(load) if is_proxied() else None
        return LanguagePlan(self, spec, recipe, checkpoint, text, load, moves)

    def share(
        self, spec: ModelSpec, limits: EngineLimits, programs: Programs, report: Report
    ) -> Runner:
        """Load this host's share of a model for its primary. Raises as a load does."""
        opener = self.context.opener
        with self.context.loading(spec), opener.opened(spec, report) as checkpoint:
            recipe = recipe_of(spec, checkpoint.config if checkpoint else None)
            assert isinstance(recipe, Recipe), "only language models span hosts"
            opened = with_draft(recipe, spec.overrides, checkpoint, opener.opener(report))
            with opened as recipe:
                load = self._planned(spec, recipe, checkpoint, limits)
                runner = load.build(programs, report)
            self.context.keep(spec, runner, load.deployment.memory.total)
            return runner

    def keep(
        self, spec: ModelSpec, load: AnyLoad, runner: Runner, islands: IslandLoads | None
    ) -> None:
        """Count a model's memory, and remember in which order its hosts launch."""
        self.context.keep(spec, islands or runner, load.deployment.memory.total)
        if load.order is not None:
            self._orders.append((runner, load.order))

    def _text(self, spec: ModelSpec, recipe: Recipe, checkpoint: Checkpoint | None) -> _ModelText:
        opener = self.context.opener
        tokenizer, template = _read_text(recipe, checkpoint, spec.checkpoint, opener)
        as_chat = chat_queries(recipe, template)
        check_vocabulary(tokenizer, recipe, lambda path, draft: opener.read(path, draft.tokenizer))
        check_image_tokens(recipe.media, tokenizer)
        images = image_reader(recipe.media)
        if images is not None and template is not None:
            template = template.with_media(**written_for(images.recipes))
        if template is not None:
            template.written()  # it keeps them
        replies = recipe.replies.of_tokenizer(tokenizer.eos_ids)
        return _ModelText(tokenizer, template, as_chat, images, replies)

    def _planned(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        limits: EngineLimits | None = None,
        tasks: frozenset[str] = frozenset(),
    ) -> AnyLoad:
        holders = self.context.holders()
        how = (spec, recipe, checkpoint, self.config, holders)
        if recipe.stages > 1:
            if tasks - {GENERATE}:
                raise InvalidRequest(
                    "TASKS beside generate need a model in one stage: leave out NUM_STAGES or "
                    "TASKS",
                    param="overrides.TASKS",
                )
            if self.config.programs:
                logger.warning("%s: in stages, so its hosts ignore --programs", spec.model_id)
            if is_proxied():
                first = copies(recipe.stages)[0]
                return self.copies.planned(spec, recipe, checkpoint, holders, first)
            return StageLoad(*how, self._stage_host, limits)
        return LmLoad(*how, self._transfer, limits, tasks)

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


@dataclass(frozen=True, slots=True)
class LanguagePlan:
    """A language model whose pages are planned."""

    models: LanguageModels
    spec: ModelSpec
    recipe: Recipe  # with that of its draft model
    checkpoint: Checkpoint | None
    text: _ModelText
    load: AnyLoad
    moves: IslandMoves | None  # of pages between islands

    def build(self, report: Report) -> Loaded:
        """Raises as the loads do."""
        models, load = self.models, self.load
        runner = self._run(report)
        if self.recipe.adapters is not None:
            load_own(self.spec, self.recipe.adapters, runner)
        islands = None
        if is_proxied():
            assert not isinstance(load, StageLoad)
            islands = models.copies.load_others(self.spec, runner, load, self.moves, report)
        start = load.start if isinstance(load, LmLoad) else None
        times = measure(runner, load.measured, self.spec.model_id, start)
        models.keep(self.spec, load, runner, islands)
        loaded = self._loaded(runner, islands, times, report)
        if self.text.template is not None:
            self.text.template.prepare()
        if self.recipe.adapters is not None:
            models.bases.keep(self.spec, self.recipe.adapters, loaded, runner)
        return loaded

    def _loaded(
        self,
        runner: Runner,
        islands: IslandLoads | None,
        times: StepTimes | None,
        report: Report,
    ) -> Loaded:
        recipe, text, plan = self.recipe, self.text, self.load.deployment
        disaggregation = self._disaggregation(runner)
        embedder, gradients = self._beside(runner, report)
        return Loaded(
            runner=disaggregation.runner if disaggregation else runner,
            tokenizer=text.tokenizer,
            vocab=recipe.vocab,
            chat_template=text.template,
            images=text.images,
            dialect=_answer_dialect(recipe, text.template),
            chat_queries=text.as_chat,
            tokenized_input=recipe.tokenized_input,
            tokenized_output=recipe.tokenized_output,
            start_token=recipe.start_token if self.checkpoint is None else None,
            replies=text.replies,
            grammars=GrammarCompiler(text.tokenizer, recipe.vocab),
            note=recipe.note,
            defaults=recipe.defaults,
            samples=recipe.samples,
            memory=plan.total_bytes,
            parts=plan.parts,
            kernels=kernels_of(plan),
            devices=plan.layout.mesh.size,
            methods=(
                *text.replies.served(_METHODS),
                *(_MULTIMODAL if text.images else ()),
                *(each for one in (embedder, gradients) if one for each in one.methods),
            ),
            step_times=times,
            step_limit_s=self.models.config.step_timeout_seconds,
            stream_interval_s=self.models.config.stream_interval_seconds,
            islands=islands,
            disaggregation=disaggregation,
            source="" if self.checkpoint is None else self.spec.checkpoint,
            fixed="its devices are behind a proxy server" if is_proxied() else self.load.fixed,
            embedder=embedder,
            gradients=gradients,
        )

    def _run(self, report: Report) -> Runner:
        """Build it, and run each of its programs once."""
        load, hosts = self.load, self.models.hosts
        if hosts is not None and load.spans_hosts:
            return hosts.load(
                self.spec,
                load.deployment.limits,
                lambda programs: load.build(programs, report),
                report,
            )
        runner = load.build(COMPILED_HERE, report)
        try:
            run_all(runner, report)
        except jax.errors.JaxRuntimeError:
            if isinstance(load, LmLoad) and load.start is not None:
                load.start.forget()
            raise
        return runner

    def _disaggregation(self, runner: Runner) -> Disaggregation | None:
        load, hosts = self.load, self.models.hosts
        if isinstance(load, StageLoad) and self.models.config.takes_pages:
            logger.warning("--prefill_servers is ignored for a model in stages")
        if not isinstance(load, LmLoad) or load.traffic is None:
            return None
        if isinstance(runner, Lockstep):
            assert hosts is not None
            return load.disaggregation(runner, hosts.transfers(runner, load.traffic))
        return load.disaggregation(runner, load.traffic)

    def _beside(
        self, runner: Runner, report: Report
    ) -> tuple[LoadedEmbedder | None, LoadedGradients | None]:
        """Return what the model does beside generating; each of its programs has run once."""
        load, queue = self.load, self.models.config.queue
        if not isinstance(load, LmLoad) or load.beside is None:
            return None, None
        beside, leaves = load.beside, load.leaves
        try:
            embedder = beside.embedder(leaves, self.checkpoint, self.text.tokenizer, queue, report)
            return embedder, beside.gradients(leaves, queue, report)
        except BaseException:
            runner.close()
            raise


def plan(asked: AskedModel, context: LoadContext, report: Report) -> LanguagePlan:
    """Plan a language model of this process. Raises as the loads do."""
    return context.kind(LanguageModels).plan(asked, report)


def _read_text(
    recipe: Recipe, checkpoint: Checkpoint | None, path: str, opener: CheckpointOpener
) -> tuple[HfTokenizer | ByteTokenizer, ChatTemplate | None]:
    """Read the tokenizer and the chat template. Raises CheckpointError."""
    own = recipe.chat.template
    if checkpoint is None:
        return ByteTokenizer(recipe.vocab), None if own is None else _tried(ChatTemplate(own))
    tokenizer = opener.read(path, checkpoint.tokenizer)
    check_fit(tokenizer, recipe.vocab, path)
    if own is not None:
        theirs = None
        with suppress(CheckpointError):  # a broken one is what a publication may replace
            theirs = opener.read(path, checkpoint.chat_template)
        made = _template_of(own, tokenizer) if theirs is None else theirs.replaced(own)
        return tokenizer, _tried(made)
    template = opener.read(path, checkpoint.chat_template)
    if template is None and recipe.chat.usual is not None:
        template = _template_of(recipe.chat.usual, tokenizer)
    return tokenizer, template and _tried(template)


def _answer_dialect(recipe: Recipe, template: ChatTemplate | None) -> AnswerDialect:
    """Return how tool calls and reasoning are told apart in a model's answers."""
    tools, reasoning = recipe.chat.tool_parser, recipe.chat.reasoning_parser
    if template is None:
        return dialect_of("", tools=tools or ToolParser.NONE, reasoning=reasoning)
    source, written = template.for_tools or template.source, template.written()
    return dialect_of(source, written.calls, written.reasoning, tools=tools, reasoning=reasoning)


def chat_queries(recipe: Recipe, template: ChatTemplate | None) -> bool:
    """Return True if a Saxml query is a user message. Raises InvalidRequest if it cannot be."""
    if recipe.query_format == "chat" and template is None:
        raise InvalidRequest(
            'QUERY_FORMAT is "chat" but the checkpoint has no chat template',
            param="overrides.QUERY_FORMAT",
        )
    text = not recipe.tokenized_input and recipe.query_format != "raw"
    return template is not None and text


def _template_of(source: str, tokenizer: HfTokenizer) -> ChatTemplate:
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


def kernels_of(deployment: Deployment) -> str:
    """Return the kernels in one line; "": the model is not on CPUs.

    "avx512_bf16, 2 threads; XLA's for 3.1 MiB of float8 weights", or "XLA's: SAX_CPU_KERNELS=off".
    """
    layout = deployment.layout
    used = described(layout.platform, layout.mesh.size)
    if not is_native(layout.platform, layout.mesh.size):
        return used
    left = " and ".join(_left_to_xla(deployment))
    return f"{used}; XLA's for {left}" if left else used


def _left_to_xla(deployment: Deployment) -> Iterator[str]:
    """Yield the weights that XLA widens in every step, and attention to pages it computes."""
    taken: Counter[str] = Counter()
    for weight in deployment.blueprint.declarations:
        packing = weight.packing
        if packing is not None and _is_matrix(weight) and not weight.is_tiled:
            taken[f"experts' {packing.kind}" if len(weight.shape) > 2 else packing.kind] += (
                weight.bytes
            )
    if taken:
        kinds = ", ".join(f"{human_bytes(size, 1)} of {kind}" for kind, size in taken.items())
        yield f"{kinds} weights"
    attending = [each for each in deployment.pool_shapes if isinstance(each, LayerPages)]
    if not all(map(supports, attending)):
        yield f"attention (native: heads of at most {MOST_DIM} numbers)"


def _is_matrix(weight: Declaration) -> bool:
    """True for matrices, alone or one per expert; factors of adapters have kernels of their own,
    and filters of convolutions, whose second dimension is 1, need none."""
    return len(weight.shape) > 1 and min(weight.shape) > 1 and weight.low_rank is None
