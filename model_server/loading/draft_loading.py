"""Loads what drafts a model's tokens beside it: a draft model, or a head over its hidden states.

It lies on the same devices, under the same memory plan, and its pages have the numbers of the
model's own pages. A head is the draft layers of the model's own checkpoint, or an EAGLE-3 head.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.engine.buckets import Bucket
from model_server.engine.running.draft_model import DraftModel
from model_server.engine.running.draft_program import DraftProgram, HeadProgram, Lower, program_name
from model_server.loading.deployment import Deployment
from model_server.models.custom import CustomModel
from model_server.models.draft_heads import own_head_recipe
from model_server.models.eagle import eagle_recipe, is_eagle
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.media.media_recipe import text_only
from model_server.models.recipe import AUTO, DraftRecipe, ModelClass, Recipe
from model_server.models.registry import find, make_recipe
from model_server.models.weights.weight import with_borrowed
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer, Tokenizer
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound
from sax.format import human_bytes as human

_INHERITED = ("DTYPE", "KV_CACHE_DTYPE")
Open = Callable[[str], AbstractContextManager[Checkpoint]]
Read = Callable[[str, Checkpoint], HfTokenizer]
Weights = Callable[[Deployment, Checkpoint | None], list[Any]]  # those of a deployment


@contextmanager
def with_draft(
    recipe: Recipe, overrides: Mapping[str, str], checkpoint: Checkpoint | None, open: Open
) -> Iterator[Recipe]:
    """Yield the recipe with that of its draft model, whose checkpoint is open meanwhile.

    overrides, checkpoint: of the model. Raises InvalidRequest naming DRAFT_MODEL or SPECULATION,
    CheckpointError.
    """
    if recipe.speculation.own:
        yield with_own_head(recipe, checkpoint)
        return
    wanted = recipe.speculation.draft
    if wanted is None:
        yield recipe
        return
    with named(wanted):
        opened = nullcontext(None) if own_path(wanted) else open(wanted)
    with opened as draft:
        yield drafted(recipe, overrides, draft.config if draft else None, draft)


def with_own_head(recipe: Recipe, checkpoint: Checkpoint | None) -> Recipe:
    """Return the recipe with that of the draft layers in its own checkpoint.

    checkpoint: None: their weights are random. Raises InvalidRequest naming SPECULATION.
    """
    head = recipe.own_head
    if head is None:
        raise InvalidRequest(
            'SPECULATION is "mtp", and this model has no draft layers of its own that are read '
            'here (docs/explanation/speculation.md): leave it out, or set it to "draft" and '
            "DRAFT_MODEL to a draft model or an EAGLE-3 head",
            param="overrides.SPECULATION",
        )
    if checkpoint is not None:
        own = {name: name for name in checkpoint.names() if name.startswith(head.prefix)}
        checkpoint = view_of(checkpoint, own)
    made = own_head_recipe(recipe, head)
    return _with_head(recipe, DraftRecipe(made, checkpoint, is_head=True), ())


def _with_head(recipe: Recipe, head: DraftRecipe, shows: tuple[int, ...]) -> Recipe:
    _check_plain(recipe)
    if recipe.stages > 1:
        raise InvalidRequest(
            "draft layers and EAGLE-3 heads see hidden states of all stages, which a pipeline does "
            "not pass back: leave out NUM_STAGES, or draft with a draft model",
            param="overrides.SPECULATION",
        )
    return replace(recipe, draft=head, shows=shows)


def drafted(
    recipe: Recipe,
    overrides: Mapping[str, str],
    config: Mapping[str, Any] | None,
    checkpoint: Checkpoint | None,
) -> Recipe:
    """Return the recipe with that of its draft model.

    overrides: of the model. config: config.json of the draft model; None: its path defines the
    sizes. Raises InvalidRequest naming DRAFT_MODEL.
    """
    wanted = recipe.speculation.draft or ""
    if config is not None and is_eagle(config):
        with named(wanted):
            names = checkpoint.names() if checkpoint else ()
            head, shows = eagle_recipe(recipe, config, names)
        return _with_head(recipe, DraftRecipe(head, checkpoint, is_head=True), shows)
    made = _recipe_of(own_path(wanted) or AUTO, config, _overrides_of(recipe, overrides))
    if not isinstance(made, Recipe) or not made.causal:
        raise _refused(f"{wanted} makes no tokens: name a language model")
    _check_plain(recipe)
    if made.short_context is not None:
        raise _refused(_LONG_ROPE)
    made = replace(
        made, speculation=replace(recipe.speculation, draft=None), media=(), media_rows=None
    )
    return replace(recipe, draft=DraftRecipe(made, checkpoint))


_LONG_ROPE = "models with two lists of rotary factors (LongRoPE) have no draft model"


def _check_plain(recipe: Recipe) -> None:
    """Raise InvalidRequest for a model beside which nothing drafts."""
    if recipe.media:
        raise _refused(
            f"a model with images or sounds has no draft model yet: publish it with "
            f"{text_only(recipe.media)}, for text only, or without DRAFT_MODEL"
        )
    if recipe.short_context is not None:
        raise _refused(_LONG_ROPE)


@contextmanager
def named(wanted: str) -> Iterator[None]:
    """Say of a CheckpointError that it is the draft model's."""
    try:
        yield
    except CheckpointError as exc:
        text = exc.text if wanted in exc.text else f"{wanted}: {exc.text}"
        raise CheckpointError(f"DRAFT_MODEL {text}", param="overrides.DRAFT_MODEL") from exc


def check_context(deployment: Deployment) -> None:
    """Raise InvalidRequest if the draft model holds shorter sequences than the model."""
    draft, context = deployment.draft, deployment.limits.max_context
    if draft is not None and draft.recipe.max_context < context:
        raise InvalidRequest(
            f"DRAFT_MODEL holds {draft.recipe.max_context} tokens and the model is to serve "
            f"{context}: set MAX_CONTEXT to {draft.recipe.max_context}, or name another one",
            param="overrides.MAX_CONTEXT",
        )


def check_vocabulary(tokenizer: Tokenizer, recipe: Recipe, read: Read) -> None:
    """Raise InvalidRequest if the draft model has other tokens than the model.

    read: opens the tokenizer of its checkpoint.
    """
    if recipe.draft is None or recipe.draft.is_head:
        return
    checkpoint, wanted = recipe.draft.checkpoint, recipe.speculation.draft
    if checkpoint is None or wanted is None:
        other = ByteTokenizer(recipe.draft.recipe.vocab)
    else:
        with named(wanted):
            other = read(wanted, checkpoint)
    own, theirs = tokenizer.vocab_size, other.vocab_size
    if own != theirs:
        raise _refused(
            f"it has {theirs} tokens and the model {own}: name a model of the same family"
        )
    for id in range(own):
        if tokenizer.token_bytes(id) != other.token_bytes(id):
            raise _refused(
                f"its token {id} is {other.token_text(id)!r} and the model's "
                f"{tokenizer.token_text(id)!r}: name one of its family"
            )


def deployed(deployment: Deployment) -> Deployment | None:
    """Return the deployment of the draft model, if there is one, with pages of the same numbers."""
    draft = deployment.draft
    if draft is None:
        return None
    limits, memory, borrowed = deployment.limits, deployment.memory, draft.borrowed
    parts = draft.recipe, draft.blueprint, draft.layout
    return Deployment(*parts, limits, memory, borrowed=borrowed)


def program_of(deployment: Deployment, draft: Deployment) -> DraftProgram:
    """Return the programs of a model's draft model or head."""
    most, known = deployment.limits.draft_tokens, min(deployment.recipe.vocab, draft.recipe.vocab)
    shows = deployment.recipe.shows
    if shows is None:
        return draft.program_of(partial(DraftProgram, most=most, known=known))
    width = deployment.recipe.embed * max(1, len(shows))
    return draft.program_of(partial(HeadProgram, most=most, known=known, width=width))


def draft_programs(deployment: Deployment) -> dict[str, Lower]:
    """Return what traces each program of a model's draft model, by name; {}: it has none."""
    draft = deployed(deployment)
    if draft is None:
        return {}
    programs = program_of(deployment, draft).programs(deployment.buckets)
    return {program_name(name): lower for name, lower in programs.items()}


def read_draft(
    deployment: Deployment,
    weights: Weights,
    held: Sequence[jax.Array],
    buckets: Sequence[Bucket],
) -> DraftModel | None:
    """Read the weights of a model's draft model, if it has one here, and allocate its pages.

    held: the leaves of the model. buckets: of the steps. Raises CheckpointError.
    """
    draft, opened = deployed(deployment), deployment.recipe.draft
    if draft is None or opened is None:
        return None
    with _named_drafter(deployment.recipe):
        own = weights(draft, opened.checkpoint)
    modules = draft.blueprint, deployment.blueprint
    leaves, borrowed = with_borrowed(modules[0], draft.borrowed, own, modules[1], held)
    program = program_of(deployment, draft)
    return DraftModel(program, leaves, draft.allocate_pages(), buckets, borrowed)


def _named_drafter(recipe: Recipe) -> AbstractContextManager[None]:
    """Say of a CheckpointError that it is the draft model's; the model's own is named already."""
    wanted = recipe.speculation.draft
    return nullcontext() if wanted is None else named(wanted)


def told_draft(deployment: Deployment) -> str:
    """Describe the draft model and its part of the plan, for the log; "": there is none."""
    draft, limits = deployment.draft, deployment.limits
    if draft is None:
        return ""
    pages = (limits.pages + 1) * draft.page_bytes(limits.page_size)
    return (
        f", by {deployment.recipe.speculation.drafter}, whose weights take "
        f"{human(draft.weight_bytes)} of that and its pages {human(pages)}"
    )


def own_path(wanted: str) -> str | None:
    """Return the path of a model class that needs no checkpoint; None: it names a checkpoint.

    Raises InvalidRequest for any other path.
    """
    try:
        entry = find(wanted)
    except ModelPathNotFound:
        return None
    if isinstance(entry, CustomModel) or not isinstance(entry, ModelClass):
        raise _refused(f"{wanted} is not a language model")
    if entry.needs_checkpoint:
        raise _refused(f"{wanted} takes its sizes from a checkpoint: name that")
    return entry.path


def _recipe_of(
    path: str, config: Mapping[str, Any] | None, overrides: Mapping[str, str]
) -> Recipe | EmbedRecipe:
    try:
        return make_recipe(path, config, overrides)
    except InvalidRequest as exc:
        raise _refused(exc.text) from exc


def _overrides_of(recipe: Recipe, overrides: Mapping[str, str]) -> dict[str, str]:
    made = {key: overrides[key] for key in _INHERITED if key in overrides}
    if (scheme := recipe.speculation.draft_quantize) is not None:
        made["QUANTIZE"] = json.dumps(scheme)
    return made


def _refused(text: str) -> InvalidRequest:
    return InvalidRequest(f"DRAFT_MODEL: {text}", param="overrides.DRAFT_MODEL")
