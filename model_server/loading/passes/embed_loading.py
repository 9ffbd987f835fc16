"""Loads a model that makes no tokens: settings, compiled buckets, memory plan, then weights.

It embeds texts or their tokens, or gives them scores for labels. Compiling needs no weights and
shows how much memory a batch takes, so nothing is placed before the plan is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.huggingface.dense_modules import DenseModule, DenseTensors, open_dense
from model_server.checkpoints.huggingface.sentence_transformers import SentenceSettings, TokenScore
from model_server.config import ModelServerConfig
from model_server.loading.batch_plan import BatchPlan
from model_server.loading.images.image_reader import image_reader
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.media.encoder_plan import limits_of
from model_server.loading.media.encoder_weights import check_image_tokens, encoder_weights
from model_server.loading.passes.embed_programs import (
    EmbedPrograms,
    Encode,
    TokenPrograms,
    activation_of,
    classifying,
    embedding_as,
    embedding_tokens,
    tagging,
    whole_recipe,
)
from model_server.loading.passes.image_passes import ImageBatches, ImageEncoders, ImagePrograms
from model_server.loading.passes.loaded_passes import (
    WAIT_S,
    ImageReading,
    LoadedEmbedder,
    LoadedTokens,
)
from model_server.loading.passes.pass_programs import PassBatches
from model_server.loading.passes.text_settings import context_of, encoding_as, pairs_of, settings_of
from model_server.loading.weights import mismatches, place, read_weights
from model_server.models.labels import labels_of
from model_server.models.layers.embedder import DENSE, EmbedRecipe
from model_server.models.media.media_recipe import Encoders, MediaRecipe, encoder_form, written_for
from model_server.models.recipe import Recipe
from model_server.models.tasks import CLASSIFY, EMBED, RERANK, Tasks, classifies_tokens, sizes_of
from model_server.models.weights.quantization import quantization_of
from model_server.models.weights.sharding import Layout, layout_of, own_device
from model_server.models.weights.weight import Blueprint, Declaration, Leaf, blueprint, leaf_shapes
from model_server.text.chat_template import ChatTemplate
from model_server.text.late_tokenizer import LateTokenizer
from model_server.text.sentence_tokenizer import SentenceTokenizer
from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabulary_fit import check_fit
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts

# As the cards of such models have it. The buffer of images grows with it.
_SEEN_CONTEXT = 8192
_INSTRUCTION = "Represent the user's input."  # Qwen3-VL-Embedding's, where nobody says one


def score_of(tasks: Tasks, settings: SentenceSettings, tokenizer: HfTokenizer) -> TokenScore:
    """Return the tokens that score a pair: as published, else the checkpoint's.

    Raises InvalidRequest for a text that is not one token, CheckpointError for an unknown token.
    """
    if tasks.rerank_tokens is not None:
        return TokenScore(*(_token(text, tokenizer) for text in tasks.rerank_tokens))
    assert settings.score is not None, "the task follows from it"
    score = settings.score
    if max(score.true_id, score.false_id or 0) >= tokenizer.vocab_size:
        raise CheckpointError(
            f"LogitScore names tokens {score.true_id} and {score.false_id}, but the vocabulary has "
            f"{tokenizer.vocab_size}"
        )
    return score


def _token(text: str, tokenizer: HfTokenizer) -> int:
    ids = tokenizer.encode_chat(text)
    if len(ids) != 1:
        raise InvalidRequest(
            f"RERANK_TOKENS has {text!r}, which is {len(ids)} tokens of this vocabulary: give a "
            "text of one token",
            param="overrides.RERANK_TOKENS",
        )
    return ids[0]


def is_dense(weight: Declaration) -> bool:
    """True for a weight of a dense module that has a file of its own."""
    return weight.path.startswith(f"{DENSE}.") and "/" in weight.source.names[0]


def check_dense(
    folder: Path | None, modules: Sequence[DenseModule], declared: Sequence[Declaration], embed: int
) -> None:
    """Raise CheckpointError if the modules do not fit each other, their files or the encoder.

    embed: size of the encoder's hidden states.
    """
    size = embed
    for module in modules:
        if module.inputs != size:
            raise CheckpointError(
                f"{module.folder} takes vectors of {module.inputs} numbers, but what comes before "
                f"it gives {size}"
            )
        size = module.outputs
    modules = [module for module in modules if module.folder]
    if folder is None or not modules:
        return
    with open_dense(folder, modules) as tensors:
        for weight in filter(is_dense, declared):
            if (shape := weight.source.shape(tensors)) != weight.shape:
                raise CheckpointError(
                    f"{', '.join(weight.source.names)} is {list(shape)}; its config.json says "
                    f"{list(weight.shape)}"
                )


def read_dense(
    folder: Path | None,
    modules: Sequence[DenseModule],
    declared: Sequence[Declaration],
    layout: Layout,
) -> dict[str, list[jax.Array]]:
    """Return the leaves of the modules' weights, by path. Raises CheckpointError."""
    wanted = [weight for weight in declared if is_dense(weight)]
    if folder is None or not wanted:
        return {}
    with open_dense(folder, [module for module in modules if module.folder]) as tensors:
        return {weight.path: _placed(weight, tensors, layout) for weight in wanted}


def _placed(weight: Declaration, tensors: DenseTensors, layout: Layout) -> list[jax.Array]:
    def placed(leaf: Leaf) -> jax.Array:
        return place(leaf, layout, lambda region: weight.source.read(tensors, region, leaf.dtype))

    return [placed(leaf) for leaf in weight.leaves]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model that is known to match its checkpoint, before it is compiled."""

    recipe: EmbedRecipe
    settings: SentenceSettings
    tokenizer: SentenceTokenizer
    labels: tuple[str, ...]  # empty: it embeds
    tokens: bool  # the vectors are of tokens
    module: Blueprint
    needed: Checkpoint
    encode: Encode
    methods: tuple[str, ...]
    layout: Layout


def plan(
    asked: AskedModel, context: LoadContext, report: Report
) -> BatchPlan[LoadedEmbedder | LoadedTokens]:
    """Compile the programs of a model that embeds, classifies or ranks.

    Raises CheckpointError, InvalidRequest.
    """
    recipe, checkpoint, media = asked.recipe, asked.checkpoint, ()
    if isinstance(recipe, Recipe):
        recipe, media = whole_recipe(recipe), seen_media(recipe)
    assert checkpoint is not None, "every embedder needs a checkpoint"
    plan = _planned(recipe, checkpoint, asked.spec.checkpoint, sees=bool(media))
    if media:
        return _plan_with_images(plan, media, asked, context, report)
    max_context = context_of(recipe, plan.settings, context.config)
    programs: Any = (TokenPrograms if plan.tokens else EmbedPrograms)(
        plan.module,
        plan.encode,
        context=max_context,
        batch=recipe.batch,
        leaves=leaf_shapes(plan.module, plan.layout),
    )
    programs.compile(report)
    return BatchPlan(
        context=context,
        spec=asked.spec,
        layout=plan.layout,
        parts=MemoryParts(weights=plan.module.bytes_on(plan.layout), workspace=programs.workspace),
        runner=lambda report: PassBatches(programs, _read(plan, report)),
        loaded=_loaded(plan, checkpoint, max_context, context.config),
    )


def _loaded(
    plan: _Plan, checkpoint: Checkpoint, max_context: int, config: ModelServerConfig
) -> Callable[..., LoadedEmbedder | LoadedTokens]:
    recipe = plan.recipe
    return partial(
        _loaded_tokens(plan, checkpoint) if plan.tokens else _loaded_embedder(plan, checkpoint),
        tokenizer=plan.tokenizer,
        vocab=recipe.vocab,
        max_context=max_context,
        labels=plan.labels,
        batching={ONLY: Batching(recipe.batch, WAIT_S, config.queue)},
        methods=plan.methods,
    )


def _plan_with_images(
    plan: _Plan,
    media: Sequence[MediaRecipe],
    asked: AskedModel,
    context: LoadContext,
    report: Report,
) -> BatchPlan[LoadedEmbedder | LoadedTokens]:
    """Compile the programs of a decoder that reads images, and those of their encoder."""
    recipe, checkpoint = plan.recipe, asked.checkpoint
    assert checkpoint is not None, "it has a plan"
    max_context = context_of(recipe, plan.settings, context.config, _SEEN_CONTEXT)
    check_image_tokens(media, checkpoint.tokenizer())
    image_reading = _image_reading(plan, media, checkpoint)
    programs = ImagePrograms(
        plan.module,
        plan.encode,
        context=max_context,
        batch=recipe.batch,
        leaves=leaf_shapes(plan.module, plan.layout),
        width=media[0].width,
        levels=media[0].levels,
        triples=image_reading.triples,
        by_token=plan.tokens,
    )
    form = encoder_form(recipe.dtype, plan.layout)
    encoder = blueprint(lambda: Encoders(media, form))
    encoders = ImageEncoders(encoder, limits_of(media, programs.buffer.shape[0]), plan.layout)
    programs.compile(report)
    encoders.compile(report)

    def runner(report: Report) -> ImageBatches[Any]:
        encoders.open(encoder_weights(encoder, plan.layout, checkpoint, 0, report, media))
        return ImageBatches(programs, _read(plan, report), encoders)

    weights = plan.module.bytes_on(plan.layout) + encoder.bytes_on(plan.layout)
    return BatchPlan(
        context=context,
        spec=asked.spec,
        layout=plan.layout,
        parts=MemoryParts(weights=weights, workspace=programs.workspace + encoders.workspace),
        runner=runner,
        loaded=partial(
            _loaded(plan, checkpoint, max_context, context.config), image_reading=image_reading
        ),
    )


def seen_media(recipe: Recipe) -> tuple[MediaRecipe, ...]:
    """Return the encoder of images of a model that embeds, classifies or ranks; (): it has none
    whose images are read in any part of an input.
    """
    images = (each for each in recipe.media if each.kind == "image" and not each.bidirectional)
    return tuple(replace(each, video=None) for each in images)[:1]


def _image_reading(
    plan: _Plan, media: Sequence[MediaRecipe], checkpoint: Checkpoint
) -> ImageReading:
    """Return how inputs with images are read. Raises CheckpointError, LoadFailed."""
    reader, [image] = image_reader(media), media
    assert reader is not None, "there is an encoder"
    template, source = checkpoint.chat_template(), plan.recipe.chat_template
    if source is not None:
        controls = checkpoint.tokenizer().control_tokens.texts
        template = ChatTemplate(source, special_tokens=controls)
    kind = str(checkpoint.config.get("model_type"))
    return ImageReading(
        images=reader,
        template=None if template is None else template.with_media(**written_for(media)),
        instruction=_INSTRUCTION if kind.startswith("qwen3_vl") else "",
        marked=image.marked or image.placeholder,
        # transformers' late-interaction models place images as texts
        triples=image.triples and not plan.settings.frames,
        frames=plan.settings.frames,
    )


def _loaded_embedder(plan: _Plan, checkpoint: Checkpoint) -> Callable[..., LoadedEmbedder]:
    own = plan.recipe.tasks.matryoshka
    return partial(
        LoadedEmbedder,
        dimensions=dimensions_of(plan.recipe, plan.settings),
        sizes=sizes_of(checkpoint.config) if own is None else own,
        normalised=plan.settings.normalise,
    )


def _loaded_tokens(plan: _Plan, checkpoint: Checkpoint) -> Callable[..., LoadedTokens]:
    late = plan.settings.late
    if late is None or plan.labels:
        return partial(LoadedTokens, dimensions=len(plan.labels))
    return partial(
        LoadedTokens,
        dimensions=dimensions_of(plan.recipe, plan.settings),
        late=LateTokenizer(late, checkpoint.tokenizer(), plan.tokenizer),
    )


def dimensions_of(recipe: EmbedRecipe, settings: SentenceSettings) -> int:
    """Return the size of a vector: of the last dense layer if there are any."""
    return settings.dense[-1].outputs if settings.dense else recipe.embed


def _read(plan: _Plan, report: Report) -> list[jax.Array]:
    """Read the weights of the encoder, and those over its vectors from files of their own."""
    declared, layout = plan.module.declarations, plan.layout
    own = [weight for weight in declared if not is_dense(weight)]
    leaves = iter(read_weights(own, plan.needed, report, layout))
    over = read_dense(plan.needed.folder, plan.settings.dense, declared, layout)
    return [
        leaf
        for weight in declared
        for leaf in over.get(weight.path) or islice(leaves, len(weight.leaves))
    ]


def methods_of(labels: tuple[str, ...], *, tags: bool = False) -> tuple[str, ...]:
    """Return the methods of a model with these labels; none: it embeds. tags: each token."""
    if not labels:
        return ("lm.embed", "lm.rerank")
    return ("lm.classify", "lm.rerank") if len(labels) == 1 and not tags else ("lm.classify",)


def _planned(recipe: EmbedRecipe, checkpoint: Checkpoint, path: str, *, sees: bool) -> _Plan:
    settings = settings_of(recipe, checkpoint)
    tasks = recipe.tasks.of(
        checkpoint.config,
        embeds=settings.embeds,
        generates=not recipe.embeds_only,
        reranks=settings.score is not None,
    )
    tokenizer = checkpoint.tokenizer()
    check_fit(tokenizer, recipe.vocab, path)
    labels = labels_of(checkpoint.config) if CLASSIFY in tasks else ()
    tags = CLASSIFY in tasks and classifies_tokens(checkpoint.config)
    score = score_of(recipe.tasks, settings, tokenizer) if RERANK in tasks else None
    dense = settings.dense if EMBED in tasks else ()
    quantization = quantization_of(recipe.quantize, checkpoint.packing)
    layout = layout_of_recipe(recipe)
    module = recipe.blueprint(quantization, len(labels), dense, score, layout, tags=tags)
    needed = without_prefixes(checkpoint, _unused(recipe, tasks))
    own = [weight for weight in module.declarations if not is_dense(weight)]
    if found := next(mismatches(own, needed), None):
        raise CheckpointError(found)
    check_dense(checkpoint.folder, dense, module.declarations, recipe.embed)
    pairs = None
    if score is not None:
        labels = (tokenizer.token_text(score.true_id),)
        pairs = pairs_of(recipe.chat_template, checkpoint, settings.prefix)
    late = EMBED in tasks and (settings.late is not None or bool(settings.frames))
    encode = embedding_tokens(settings) if late else embedding_as(settings, recipe.pooling)
    if tags:
        encode = tagging(recipe.tasks.activation or "softmax")
    elif labels:
        separator = None if sees else tokenizer.separator
        encode = classifying(_activation(recipe, checkpoint, settings, labels), separator)
    return _Plan(
        recipe,
        settings,
        encoding_as(settings, tokenizer, pairs),
        labels,
        late or tags,
        module,
        needed,
        encode,
        methods=("lm.rerank",) if score is not None else methods_of(labels, tags=tags),
        layout=layout,
    )


def layout_of_recipe(recipe: EmbedRecipe) -> Layout:
    """Return the layout over this process's devices. Raises InvalidRequest, MemoryPlanError."""
    if recipe.mesh_shape is None:
        return own_device()
    return layout_of(recipe.mesh_shape, recipe.rules).placed(jax.local_devices())


def _unused(recipe: EmbedRecipe, tasks: frozenset[str]) -> tuple[str, ...]:
    """Return the prefixes of tensors that the tasks do not need."""
    if RERANK in tasks:
        return recipe.unused_in_scores
    return recipe.unused_in_classes if CLASSIFY in tasks else recipe.unused


def _activation(
    recipe: EmbedRecipe, checkpoint: Checkpoint, settings: SentenceSettings, labels: Sequence[str]
) -> str:
    """Return which function makes scores: as published, else as sentence-transformers says."""
    config = checkpoint.config
    if settings.activation is not None:
        config = {**config, "sentence_transformers": {"activation_fn": settings.activation}}
    return recipe.tasks.activation or activation_of(config, len(labels))
