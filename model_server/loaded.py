"""What loading a model yields: everything a servable needs, whoever made it.

The seam between the servables and the weights: the real loader reads a checkpoint and compiles,
the tests' loader is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from model_server.chat_template import ChatTemplate
from model_server.engine.types import Runner
from model_server.tokenizer import Tokenizer
from sax.types import ModelSpec, Progress, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in memory, compiled and ready to run steps."""

    runner: Runner
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    chat_queries: bool = False  # a Saxml query is a user's turn in the chat template
    defaults: SamplingParams  # for what a Saxml request leaves out
    samples: int  # answers per Saxml Generate call
    memory: int  # bytes of weights, KV pages and workspace
    methods: tuple[str, ...]  # lm.generate, lm.generate_stream, lm.score


# Blocking. Raises LoadFailed and its kin, InvalidRequest, ModelPathNotFound.
Loader = Callable[[ModelSpec, Callable[[Progress], None]], Loaded]
