"""The parts of an engine, in the order in which their hooks are called. One line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from model_server.engine.limits import EngineLimits
from model_server.engine.live_sequences import LiveSequences
from model_server.engine.part import EnginePart, EngineParts
from model_server.engine.parts.adapters import AdapterColumns
from model_server.engine.parts.beams import BeamSearches
from model_server.engine.parts.bidirectional_prompts import BidirectionalPrompts
from model_server.engine.parts.draft_states import DraftStates
from model_server.engine.parts.encodes import Encodes
from model_server.engine.parts.grammar import Grammars
from model_server.engine.parts.long_positions import LongPositions
from model_server.engine.parts.routed_experts import RoutedExperts
from model_server.engine.parts.scores import ScoredPrompts
from model_server.engine.parts.thinking import BoundedThinking
from model_server.engine.parts.tracing import Tracing
from model_server.engine.request import EngineRequest, Finish, check
from model_server.engine.sequence import Sequence
from model_server.engine.step_times import StepTimes

PARTS: tuple[type[EnginePart[Any]], ...] = (
    DraftStates,
    Tracing,
    RoutedExperts,
    ScoredPrompts,
    BeamSearches,
    LongPositions,
    Encodes,
    BidirectionalPrompts,
    BoundedThinking,
    Grammars,
    AdapterColumns,
)


def parts_of(
    live: LiveSequences, times: StepTimes | None = None, first: Iterable[EnginePart[Any]] = ()
) -> EngineParts:
    """Return the parts of a scheduler. first: further ones, before all others."""
    parts = [*first, *(kind() for kind in PARTS if kind.is_wanted(live.limits))]
    for part in parts:
        part.join(live, times)
    return EngineParts(parts)


def new_sequence(id: int, request: EngineRequest, limits: EngineLimits) -> Sequence:
    """Return the sequence of a request. Raises InvalidRequest if it can never be served."""
    context = context_of(request, limits)
    check(request, context)
    for part in PARTS:
        part.check(request, limits, context)
    return Sequence(id, request, context)


def context_of(request: EngineRequest, limits: EngineLimits) -> int:
    """Return the tokens of prompt and answer that can be held at most."""
    context = min(limits.max_context, limits.pages * limits.page_size)
    for part in PARTS:
        context = part.context(request, limits, context)
    return context


def finish_of(request: EngineRequest, limits: EngineLimits) -> Finish | None:
    """Return the finish reason if the answer begun elsewhere is already complete."""
    if request.answer and request.answer[-1] in request.stop_ids:
        return "stop"
    most = min(request.max_tokens, context_of(request, limits) - len(request.prompt))
    return "length" if len(request.answer) >= most else None
