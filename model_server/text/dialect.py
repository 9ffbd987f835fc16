"""The form in which a model writes calls of tools and reasoning, told from its chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sax.chat import ReasoningParser, ToolParser

# Control tokens that divide an answer; where one is an ordinary token it has text anyway.
_CALL_MARKS: dict[str, tuple[str, ...]] = {
    ToolParser.HERMES: ("<tool_call>", "</tool_call>"),
    ToolParser.LLAMA3: ("<|python_tag|>",),
    ToolParser.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ToolParser.DEEPSEEK: (
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581call\u2581begin\uff5c>",
        "<\uff5ctool\u2581sep\uff5c>",
        "<\uff5ctool\u2581call\u2581end\uff5c>",
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
    ),
}
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>")
_REASONING_MARKS: dict[str, tuple[str, ...]] = {
    ReasoningParser.THINK: ("<think>", "</think>"),
    ReasoningParser.GPT_OSS: _HARMONY,
}
_CALL_MARKS[ToolParser.GPT_OSS] = _HARMONY


def _hermes(source: str) -> bool:
    # Qwen3-Coder and GLM write XML between the same tags.
    return "<tool_call>" in source and "<function=" not in source and "<arg_key>" not in source


def _llama3(source: str) -> bool:
    return "<|python_tag|>" in source or (
        "<|start_header_id|>" in source and '"parameters": dictionary' in source
    )


def _gemma(source: str) -> bool:
    return "<start_of_turn>" in source and "tools" in source


_CALLS: tuple[tuple[ToolParser, Callable[[str], bool]], ...] = (
    (ToolParser.GPT_OSS, lambda source: "<|channel|>" in source and "<|start|>" in source),
    (ToolParser.DEEPSEEK, lambda source: "<\uff5ctool\u2581calls\u2581begin\uff5c>" in source),
    (ToolParser.MISTRAL, lambda source: "[TOOL_CALLS]" in source),
    (ToolParser.HERMES, _hermes),
    (ToolParser.LLAMA3, _llama3),
    (ToolParser.GEMMA, _gemma),
)


@dataclass(frozen=True, slots=True)
class AnswerDialect:
    """Form of one model's calls and reasoning."""

    tools: ToolParser = ToolParser.NONE
    reasoning: ReasoningParser = ReasoningParser.NONE
    older: bool = False  # the first of two forms that Mistral and DeepSeek have had

    def marks(self, calls: bool) -> frozenset[str]:
        """Return the control tokens that divide an answer; calls: also those of calls."""
        found = _REASONING_MARKS.get(self.reasoning, ())
        return frozenset((*found, *(_CALL_MARKS.get(self.tools, ()) if calls else ())))


def dialect_of(
    source: str, tools: str | None = None, reasoning: str | None = None
) -> AnswerDialect:
    """Return the dialect of a template's model; tools, reasoning: known otherwise."""
    calls = tools or next((each for each, fits in _CALLS if fits(source)), ToolParser.NONE)
    if reasoning is None:
        reasoning = ReasoningParser.THINK if "<think>" in source else ReasoningParser.NONE
        if calls == ToolParser.GPT_OSS:
            reasoning = ReasoningParser.GPT_OSS
    older = (calls == ToolParser.DEEPSEEK and "```json" in source) or (
        calls == ToolParser.MISTRAL and "[ARGS]" not in source
    )
    return AnswerDialect(ToolParser(calls), ReasoningParser(reasoning), older)
