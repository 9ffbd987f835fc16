"""One request inside the engine: its progress, and what its parts may change about it.

Positions count tokens of prompt and answer together. The device computes position p from token p;
the last computed position of a row yields token p + 1. So the last token of all is never computed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from model_server.engine.hooks import Committing as HookCommitting
from model_server.engine.hooks import SequenceHooks
from model_server.engine.request import Begun, EngineRequest, Finish
from model_server.engine.types import Columns


@dataclass(slots=True)
class PagingState:
    """Pages of one sequence; `prefix_cache` and `window_pages` change it."""

    # The runner gets keys and values for all tokens but the last from elsewhere; False with a slot
    computed: bool = False
    chain: list[bytes] = field(default_factory=list[bytes])  # digests: salt, and 1, 2, ... pages
    cached: int = -1  # tokens of the prompt found at its first admission; -1: not admitted yet
    deferred: bool = False  # it once waited for a step that writes tokens like its own
    # Since the sequence last took a slot:
    reused: int = 0  # positions found in the cache
    source: int = 0  # page to copy with its first chunk, held until then; 0: none
    written: int = 0  # positions in the launched steps whose tokens are known
    kept: int = 0  # full pages that others can find, or that were found
    unseen: int = 0  # pages before the window of all later queries: 0 in `pages`
    # Pages of the layers with a window, if these have their own:
    window_pages: list[int] = field(default_factory=list[int])  # as many as `pages`, or []
    window_known: int = 0  # tokens at the beginning that others had, too
    window_source: int = 0  # page to copy with `source`
    window_unseen: int = 0  # pages at the beginning that were freed


class Sequence:
    """The scheduler's state of one request."""

    __slots__ = (
        "columns",
        "finish_at",
        "goal",
        "group",
        "id",
        "in_flight",
        "launched",
        "lost",
        "pages",
        "paging",
        "parts",
        "priority",
        "prompt",
        "request",
        "sampling",
        "since",
        "slot",
        "started_s",
        "stated",
        "tokens",
    )

    def __init__(self, id: int, request: EngineRequest, context: int) -> None:
        """context: tokens of prompt and answer, at most."""
        self.id = id
        self.request = request
        # Those that it concerns, in their order:
        self.parts: tuple[SequenceHooks[Sequence], ...] = ()
        # Sequences that take and lose slots together, the one that was submitted first; their host
        # chooses each next token. None: it is alone.
        self.group: list[Sequence] | None = None
        self.sampling = request.sampling  # of its next token; a part may change it for a while
        self.prompt = prompt = len(request.prompt)  # tokens of it
        self.finish_at = min(prompt + request.max_tokens, context)  # tokens, at most
        self.tokens = request.tokens  # known and committed
        # While it waits:
        self.priority = request.priority
        self.since = 0  # the number of steps when it began to wait
        self.lost = 0  # positions computed when it was preempted, at most
        # Since it last took a slot:
        self.started_s = 0.0  # when it first took one; 0: not yet
        self.slot = -1  # -1 while waiting
        self.pages: list[int] = []
        self.paging = PagingState(computed=request.computed)
        self.columns = Columns()  # of its rows
        self.launched = 0  # positions computed, in flight or found in the cache
        self.goal = 0  # positions that are prefill; from there on it decodes
        # The slot's last token is another (one that was tried, or is chosen anew), or it samples in
        # another way: the next row carries its own token, and how it samples.
        self.stated = False
        self.in_flight = 0  # rows launched whose token is not committed; kept across preemptions

    @property
    def end(self) -> int:
        """Positions to compute in all."""
        return self.finish_at - 1

    @property
    def limit(self) -> int:
        """First position that it may not compute as it is now."""
        end = self.finish_at - 1
        for part in self.parts:
            end = part.limit(self, end)
        return end

    @property
    def width(self) -> int:
        """Slots that it takes."""
        return 1 if self.group is None else len(self.group)

    @property
    def is_follower(self) -> bool:
        """True if another sequence stands for its group."""
        return self.group is not None and self.group[0] is not self

    @property
    def members(self) -> list[Sequence]:
        """All that take and lose slots with it, itself included."""
        return [self] if self.group is None else self.group

    @property
    def settled(self) -> bool:
        """True if no token is on its way, nor one of a sequence that takes slots with it."""
        return not (self.in_flight if self.group is None else any(s.in_flight for s in self.group))

    @property
    def generates(self) -> bool:
        return self.finish_at > self.prompt

    @property
    def next_is_known(self) -> bool:
        return self.launched < len(self.tokens)

    @property
    def begun(self) -> Begun:
        """Its progress; a group would begin again."""
        answer = () if self.group is not None else tuple(self.tokens[self.prompt :])
        made = Begun(self.id, answer)
        for part in self.parts:
            made = part.begun(self, made)
        return made

    @property
    def reusable(self) -> int:
        """First positions that it need not compute at its next start: its last one yields a token.

        Neither may those be skipped of which a part wants results.
        """
        most = (len(self.tokens) if self.generates else self.end) - 1
        for part in self.parts:
            most = part.reusable(self, most)
        return most

    def append(self, token: int) -> Finish | None:
        """Take in the token of a row in flight."""
        self.in_flight -= 1
        self.tokens.append(token)
        if token in self.request.stop_ids:
            return "stop"
        return "length" if len(self.tokens) == self.finish_at else None

    def empty_copy(self, id: int) -> Sequence:
        """Return a sequence without tokens and pages, of the same request, that has not begun."""
        made = copy.copy(self)
        made.id, made.tokens, made.pages, made.paging = id, [], [], PagingState()
        return made


Committing = HookCommitting[Sequence]


def redone(sequence: Sequence) -> int:
    """Return how many of its last positions may be computed again."""
    return max((part.redone(sequence) for part in sequence.parts), default=0)
