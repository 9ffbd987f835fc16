"""Settings by which texts are read: those of the checkpoint, changed by the publish."""

from __future__ import annotations

from dataclasses import replace

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.dense_modules import DenseModule
from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from model_server.config import AUTO, ModelServerConfig
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.tasks import Tasks
from model_server.text.chat_template import ChatTemplate
from model_server.text.late_tokenizer import LateInteraction
from model_server.text.sentence_tokenizer import PairTexts, SentenceTokenizer, pair_texts
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.errors import CheckpointError, InvalidRequest


def settings_of(recipe: EmbedRecipe, checkpoint: Checkpoint) -> SentenceSettings:
    """Return the settings of the checkpoint, with those of the publish. Raises CheckpointError."""
    return with_tasks(read_sentence_settings(checkpoint.folder), checkpoint, recipe.tasks)


def with_tasks(
    settings: SentenceSettings, checkpoint: Checkpoint | None, tasks: Tasks
) -> SentenceSettings:
    """Return the settings with those of a GGUF file, which are in its config, and of a publish."""
    if checkpoint is not None and (pooling := checkpoint.config.get("pooling")):
        settings = replace(settings, pooling=pooling)
    if tasks.pooling is not None:
        settings = replace(settings, pooling=tasks.pooling)
    if tasks.normalise is not None:
        settings = replace(settings, normalise=tasks.normalise)
    if checkpoint is not None and (settings.late is not None or settings.frames):
        settings = _with_late(settings, settings.late, checkpoint, tasks)
    return settings


def _with_late(
    settings: SentenceSettings, late: LateInteraction | None, checkpoint: Checkpoint, tasks: Tasks
) -> SentenceSettings:
    """Return the settings of a late-interaction model; colbert-ir has its projection among the
    model's tensors. Raises InvalidRequest, CheckpointError.
    """
    if tasks.pooling is not None:
        raise InvalidRequest(
            "POOLING is for models with one vector per text, and this one has a vector per token: "
            "leave it out",
            param="overrides.POOLING",
        )
    if tasks.matryoshka is not None:
        raise InvalidRequest(
            "MATRYOSHKA is for models with one vector per text, and this one has a vector per "
            "token: leave it out",
            param="overrides.MATRYOSHKA",
        )
    if late is not None:
        settings = replace(settings, max_length=max(late.document_length, late.query_length))
    if settings.dense:
        return settings
    shape = checkpoint.shape("linear.weight")
    if len(shape) != 2:
        raise CheckpointError(f"linear.weight is {list(shape)}; a projection is a matrix")
    outputs, inputs = shape
    projection = DenseModule(
        folder="",
        inputs=inputs,
        outputs=outputs,
        biased="linear.bias" in checkpoint.names(),
        activation="identity",
    )
    return replace(settings, dense=(projection,))


def encoding_as(
    settings: SentenceSettings,
    tokenizer: HfTokenizer | ByteTokenizer,
    pairs: PairTexts | None = None,
) -> SentenceTokenizer:
    """Return the function from texts to tokens; `pairs`: as SentenceTokenizer has them."""
    return SentenceTokenizer(
        tokenizer,
        settings.prefix,
        settings.prompts,
        lower_case=settings.lower_case,
        pairs=pairs,
    )


def pairs_of(source: str | None, checkpoint: Checkpoint, instruction: str) -> PairTexts:
    """Return the texts around pairs by the template `source`, else by the checkpoint's own.

    Raises CheckpointError as `pair_texts` does, and for a template that does not compile.
    """
    template = checkpoint.chat_template()
    if source is not None and template is not None:
        template = template.replaced(source)
    elif source is not None:
        controls = checkpoint.tokenizer().control_tokens.texts
        template = ChatTemplate(source, special_tokens=controls)
    return pair_texts(template, instruction, str(checkpoint.config.get("model_type")))


def context_of(
    recipe: EmbedRecipe,
    settings: SentenceSettings,
    config: ModelServerConfig,
    usual: int | None = None,
) -> int:
    """Return the tokens per input: the recipe's, else the checkpoint's; capped by positions.

    usual: if neither says it; None: all positions.
    """
    wanted = recipe.max_context or settings.max_length or usual or recipe.own_context
    most = config.max_context or wanted
    context = min(wanted, recipe.own_context, wanted if most == AUTO else most)
    if context < 3:  # a start, one token, an end
        raise InvalidRequest(
            f"a context of {context} tokens holds no text: raise MAX_CONTEXT or --max_context",
            param="overrides.MAX_CONTEXT",
        )
    return context
