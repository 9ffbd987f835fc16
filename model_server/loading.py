"""The real loader: recipe, memory plan, weights, pages, compiled buckets, in that order.

Nothing is allocated before the plan holds.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext

import jax
import jax.numpy as jnp

from model_server.chat_template import ChatTemplate
from model_server.checkpoints.checkpoint import Checkpoint, open_checkpoint
from model_server.compile_watch import CompileWatch
from model_server.config import ModelServerConfig
from model_server.engine.buckets import closed_set
from model_server.engine.runner import ModelRunner
from model_server.engine.types import EngineLimits
from model_server.kernels import xla
from model_server.kernels.pages import allocate, bytes_per_page
from model_server.loaded import Loaded
from model_server.memory_plan import MemoryPlan, human, plan
from model_server.models.recipe import Recipe
from model_server.models.registry import find, make_recipe
from model_server.models.weight import Blueprint, blueprint
from model_server.tokenizer import ByteTokenizer
from model_server.weights import random_weights, read_weights
from sax.errors import InvalidRequest
from sax.names import NO_CHECKPOINT
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

_METHODS = ("lm.generate", "lm.generate_stream", "lm.score")
_PREFILL_BLOCK = 32  # tokens of one prompt that attend together
_PREFILL_BLOCKS = (1, 4, 8)  # bucket sizes: 32, 128 and 256 prompt tokens per step
# Unless told otherwise a CPU server keeps its page pool modest: memory is shared with others.
_CPU_KV_BYTES = 2**30

Report = Callable[[Progress], None]


class ModelLoader:
    """Loads models into this process's devices and remembers what they take up."""

    def __init__(self, config: ModelServerConfig, watch: CompileWatch) -> None:
        self._config = config
        self.watch = watch
        self._live: list[tuple[ModelRunner, int]] = []

    def __call__(self, spec: ModelSpec, report: Report) -> Loaded:
        report(Progress("starting"))
        find(spec.model_path)  # an unknown path is the clearer error, so it comes first
        with self.watch.loading(), self._open(spec) as checkpoint:
            recipe = make_recipe(
                spec.model_path, checkpoint.config if checkpoint else None, spec.overrides
            )
            return self._load(spec, recipe, checkpoint, report)

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
        template = checkpoint.chat_template() if checkpoint else None
        as_chat = chat_queries(recipe, template)
        module = blueprint(recipe.build)
        limits, planned = self._plan(recipe, module)
        logger.info("%s: %s planned, %d pages", spec.model_id, human(planned.total), planned.pages)
        runner = self._runner(spec, recipe, module, limits, checkpoint, report)
        self._live.append((runner, planned.total))
        return Loaded(
            runner=runner,
            tokenizer=tokenizer,
            chat_template=template,
            chat_queries=as_chat,
            defaults=recipe.defaults,
            samples=recipe.samples,
            memory=planned.total,
            methods=_METHODS,
        )

    def _runner(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        module: Blueprint,
        limits: EngineLimits,
        checkpoint: Checkpoint | None,
        report: Report,
    ) -> ModelRunner:
        if checkpoint:
            leaves = read_weights(module.declarations, checkpoint, report)
        else:
            seed = zlib.crc32(spec.model_id.encode())
            leaves = random_weights(module.declarations, seed, report)
        pages = allocate(
            recipe.layers,
            limits.pages,
            limits.page_size,
            recipe.kv_heads,
            recipe.head_dim,
            _kv_dtype(recipe),
        )
        buckets = closed_set(limits.slots, _PREFILL_BLOCKS)
        runner = ModelRunner(module, leaves, pages, limits, buckets, xla.paged_attention)
        try:
            runner.compile(report)
        except BaseException:
            runner.close()
            raise
        return runner

    def _plan(self, recipe: Recipe, module: Blueprint) -> tuple[EngineLimits, MemoryPlan]:
        config = self._config
        slots = recipe.slots or config.slots
        context = min(recipe.max_context, config.max_context or recipe.max_context)
        page = bytes_per_page(
            recipe.layers, config.page_size, recipe.kv_heads, recipe.head_dim, _kv_dtype(recipe)
        )
        per_sequence = -(-context // config.page_size)
        planned = plan(
            weights=module.bytes,
            kv_bytes_per_page=page,
            workspace=_workspace(recipe, slots),
            limit=config.memory_limit,
            in_use=self._in_use(),
            wanted_pages=self._wanted_pages(page, per_sequence, slots),
            min_pages=per_sequence,
        )
        limits = EngineLimits(
            slots=slots,
            pages=planned.pages,
            page_size=config.page_size,
            max_context=context,
            token_budget=slots + _PREFILL_BLOCK * max(_PREFILL_BLOCKS),
            max_logit_rows=max(slots, 2),
            prefill_block=_PREFILL_BLOCK,
            max_prefill_blocks=max(_PREFILL_BLOCKS),
            queue=config.queue,
        )
        return limits, planned

    def _wanted_pages(self, page: int, per_sequence: int, slots: int) -> int | None:
        """Pages for every slot's whole context, within what the flags or the CPU's habit allow."""
        whole = per_sequence * slots
        if self._config.kv_cache_bytes is not None:
            return min(whole, self._config.kv_cache_bytes // page - 1)
        if jax.default_backend() == "cpu":
            return min(whole, max(per_sequence, _CPU_KV_BYTES // page - 1))
        return None

    def _in_use(self) -> int:
        self._live = [(runner, size) for runner, size in self._live if not runner.closed]
        return sum(size for _, size in self._live)


def make_loader(config: ModelServerConfig) -> ModelLoader:
    """The loader of this process. Call it once: it listens to every compilation from then on."""
    return ModelLoader(config, CompileWatch(strict=config.strict_compile))


def chat_queries(recipe: Recipe, template: ChatTemplate | None) -> bool:
    """Whether a Saxml query is a user's turn. Raises InvalidRequest if it cannot be."""
    if recipe.query_format == "chat" and template is None:
        raise InvalidRequest(
            'QUERY_FORMAT is "chat" but the checkpoint has no chat template',
            param="overrides.QUERY_FORMAT",
        )
    return template is not None and recipe.query_format != "raw"


def _kv_dtype(recipe: Recipe) -> jnp.dtype:
    # On a CPU bf16 products inside the page loop take a slow path; f32 runs at memory speed.
    return jnp.dtype("float32" if jax.default_backend() == "cpu" else recipe.dtype)


def _workspace(recipe: Recipe, slots: int) -> int:
    """Bytes of the largest step's temporaries: logits a few times over, and the token batch."""
    tokens = slots + _PREFILL_BLOCK * max(_PREFILL_BLOCKS)
    logits = 4 * max(slots, 2) * recipe.vocab * 6
    return logits + 4 * tokens * recipe.embed * 32 + 64 * 2**20
