"""The text of a language model: its tokenizer, its chat template, and how its answers are read."""

from __future__ import annotations

from contextlib import suppress

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.loading.opening.checkpoint_opener import CheckpointOpener
from model_server.models.recipe import Recipe
from model_server.text.chat_template import ChatTemplate
from model_server.text.dialect import AnswerDialect, dialect_of
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from model_server.text.vocabulary_fit import check_fit
from sax.chat import ToolParser
from sax.errors import CheckpointError, InvalidRequest


def read_text(
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
    return tokenizer, template and _tried(template)


def answer_dialect(recipe: Recipe, template: ChatTemplate | None) -> AnswerDialect:
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
