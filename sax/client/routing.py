"""Chooses the replica for one request: the least loaded, unless one that has its prefix is about as
good. Pure.

Affinity: a key is a digest of a prompt's first bytes, as the client sends them: no tokenizer is
needed, and every gateway makes the same keys. Prompts that begin alike share the keys of their
common cuts.

Gateways that know nothing of each other agree: a prefix that a client has not seen lately is placed
by rendezvous hashing, which moves only a lost replica's own prefixes to others.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import OrderedDict
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple, cast

from sax.errors import InvalidRequest
from sax.fields.table import LABEL_BYTES
from sax.types import CanaryShare, GenerateRequest, Image, Message

_FIRST_CUT = 256  # bytes, about 64 tokens: recomputing less costs less than an uneven load
_LAST_CUT = 32 << 10
_GROWTH = 4  # a cut is at most a quarter longer than the one before
_DIGEST_BYTES = 8
_IMAGE_BYTES = 16 << 10  # of each image that are read
_IMAGE_SIZE = 1024  # characters that an image counts for, about 256 tokens
_NEW_PREFIX = 0.5  # worth of the place that all clients give a prefix, before any of them used it

Prompt = str | Sequence[int] | Sequence[Message]


class PrefixKey(NamedTuple):
    """Digest of a prefix, and the share of the prompt that the prefix is."""

    digest: bytes
    share: float  # 0 to 1


@dataclass(frozen=True, slots=True)
class Affinity:
    """Keys of one request, the longest prefix first; none: any replica is as good as another."""

    keys: tuple[PrefixKey, ...] = ()
    home_share: float = _NEW_PREFIX  # what it is worth to go where other clients would send it
    session: bytes = b""  # digest of the session's name; empty: none


ANYWHERE = Affinity()


def affinity_of(request: GenerateRequest) -> Affinity:
    """Return the keys of a request: one for each cut of its prompt.

    Requests that share no cache (another model, salt or set of tools) share no key.
    """
    tools = "\x1f".join(tool.name for tool in request.chat.tools)
    own = request.cache_salt or tools  # else the cache is shared with calls that have neither
    scope = f"{request.cache_salt}\x1f{tools}" if own else ""
    return prefix_affinity(request.model_id, request.prompt, scope)


def prefix_affinity(model_id: str, prompt: Prompt, scope: str = "") -> Affinity:
    """Return the keys of a prompt's prefixes among those of one model and scope."""
    text, size = _first_bytes(prompt)
    if len(text) < _FIRST_CUT:
        return ANYWHERE
    digest = hashlib.blake2b(
        f"{model_id}\x1f{scope}\x1e".encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES
    )
    keys: list[PrefixKey] = []
    for start, end in pairwise(_CUTS):
        if end > len(text):
            break
        digest.update(text[start:end])
        keys.append(PrefixKey(digest.digest(), end / min(_LAST_CUT, max(size, end))))
    return Affinity(tuple(reversed(keys)))


def _cuts() -> tuple[int, ...]:
    cuts = [0, _FIRST_CUT]
    while cuts[-1] < _LAST_CUT:
        cuts.append(min(_LAST_CUT, cuts[-1] + max(_FIRST_CUT, cuts[-1] // _GROWTH)))
    return tuple(cuts)


_CUTS = _cuts()


def _first_bytes(prompt: Prompt) -> tuple[bytes, int]:
    """Return the bytes that are cut, at most as many as the last cut takes, and how many there
    are about in all."""
    if isinstance(prompt, str):
        return prompt[:_LAST_CUT].encode(errors="surrogatepass")[:_LAST_CUT], len(prompt)
    if prompt and isinstance(prompt[0], Message):
        messages = cast("Sequence[Message]", prompt)
        return _first_of_chat(messages), sum(map(_size_of, messages))
    ids = cast("Sequence[int]", prompt)
    return _first_of_tokens(ids), 8 * len(ids)


def _first_of_chat(messages: Sequence[Message]) -> bytes:
    parts: list[bytes] = []
    size = 0
    for each in messages:
        if size >= _LAST_CUT:
            break
        text = f"{each.role}\x1f{_beginning(each)}\x1e"
        parts.append(text.encode(errors="surrogatepass"))
        size += len(parts[-1])
    return b"".join(parts)[:_LAST_CUT]


def _beginning(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content[:_LAST_CUT]
    pieces = (
        part[:_LAST_CUT] if isinstance(part, str) else _mark_of(part) for part in message.content
    )
    return "\x1d".join(pieces)[:_LAST_CUT]


def _size_of(message: Message) -> int:
    return message.characters + _IMAGE_SIZE * len(message.images)


def _mark_of(image: Image) -> str:
    """Return what stands for an image: digests of its beginning, where files of one kind differ,
    and of its size, as long as a text of as many tokens as images have."""
    digest = hashlib.blake2b(image.data[:_IMAGE_BYTES], digest_size=_DIGEST_BYTES)
    digest.update(len(image.data).to_bytes(8, "big"))
    mark = digest.hexdigest()
    return mark * (_IMAGE_SIZE // len(mark))


def _first_of_tokens(ids: Sequence[int]) -> bytes:
    try:
        return array("q", ids[: _LAST_CUT // 8]).tobytes()
    except OverflowError:
        return b""  # the server refuses such an id by name


# Session: a name that keeps the requests of one conversation together.
#
# They go to one replica while it is not clearly busier than others, and to one version of a model
# that has a canary, without a look at their prompts. A name is compared, never sent on.

_current: ContextVar[str] = ContextVar("session", default="")


def current_session() -> str:
    """Return the session of the requests that this task makes; "" for none."""
    return _current.get()


@contextmanager
def in_session(session: str) -> Generator[None]:
    """Give this session to all requests made inside that name none themselves."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)


def check_session(session: str, param: str) -> str:
    """Return the name of a session. Raises InvalidRequest naming `param`."""
    size = len(session.encode(errors="surrogatepass"))
    if not 0 < size <= LABEL_BYTES:
        raise InvalidRequest(
            f"{param} has {size} bytes: name a session with 1 to {LABEL_BYTES} of them", param=param
        )
    return session


def within_session(model_id: str, affinity: Affinity, session: str = "") -> Affinity:
    """Return the affinity of a request in a session, which counts more than its prompt."""
    name = session or current_session()
    if not name:
        return affinity
    text = f"{model_id}\x1f{name}".encode(errors="surrogatepass")
    digest = blake2b(text, digest_size=8, person=b"session").digest()
    return Affinity((PrefixKey(digest, 1.0),), home_share=1.0, session=digest)


_WHOLE = 100.0

# By how many requests a replica may be ahead of the least loaded one before it is clearly busier,
# for a prompt all of which it has: 4, and a quarter of what the least loaded one has. Measured by
# `python -m tests.tools.bench routing`.
_SPARE = 4.0
_RATIO = 0.25


class ServerLoad(NamedTuple):
    """Load of a server as this client sees it; smaller is better."""

    suspect: bool  # connection broke recently
    outstanding: int


class PrefixMatch(NamedTuple):
    """A replica that had a prefix of the prompt, and the share of the prompt that the prefix is."""

    address: str
    share: float


@dataclass(frozen=True, slots=True)
class Wish:
    """Replicas that a request would rather have, unless they are clearly busier."""

    known: Sequence[PrefixMatch] = ()  # the longest match first
    home: bytes = b""  # key that places it among all replicas; empty: none
    home_share: float = 0.0  # what that is worth, as if so much of the prompt were there


NO_WISH = Wish()


def choose(
    loads: Mapping[str, ServerLoad],
    tried: Collection[str],
    preferred: str = "",
    wish: Wish = NO_WISH,
) -> str | None:
    """Return the address for a request among those not tried, or None.

    The preferred one wins unless its connection broke recently, whatever its load. Then the first
    known one that is not clearly busier than the least loaded, then the home among such, then the
    least loaded, at random among equals.
    """
    fresh = {address: load for address, load in loads.items() if address not in tried}
    if not fresh:
        return None
    if preferred in fresh and not fresh[preferred].suspect:
        return preferred
    least = min(fresh.values())
    for address, share in wish.known:
        if address in fresh and not clearly_busier(fresh[address], least, share):
            return address
    if wish.home:
        able = [a for a, load in fresh.items() if not clearly_busier(load, least, wish.home_share)]
        return max(able, key=lambda address: weight(wish.home, address))
    return random.choice([address for address, load in fresh.items() if load == least])


def clearly_busier(load: ServerLoad, least: ServerLoad, share: float) -> bool:
    """Return True if a replica has so much more work that this share of a prompt is not worth the
    wait."""
    ahead = load.outstanding - least.outstanding
    worth = share * (_SPARE + _RATIO * least.outstanding)
    return load.suspect > least.suspect or ahead > worth


def weight(key: bytes, address: str) -> bytes:
    """Rank of an address for a key (rendezvous hashing); the highest is the key's home."""
    return blake2b(address.encode(), digest_size=8, key=key).digest()


_MOST = 1 << 15  # keys; about 7 MB, the last 1,800 prompts of 32 KiB
_KEPT_S = 600.0  # by then other prompts have taken the pages of a busy replica


class _LastUse(NamedTuple):
    address: str
    at_s: float


class RecentReplicas:
    """Memory of one client; the caller passes the time. The keys used longest ago go first."""

    def __init__(self, most: int = _MOST, kept_s: float = _KEPT_S) -> None:
        self._most = most
        self._kept_s = kept_s
        self._places: OrderedDict[bytes, _LastUse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def wish(self, affinity: Affinity, among: Collection[str], now: float) -> Wish:
        """Return where a request would rather go, among these replicas: to one that has a prefix of
        its prompt, else where every client sends prompts that part from the known ones as this one
        does."""
        known: dict[str, float] = {}
        home = b""
        for key in affinity.keys:
            place = self._places.get(key.digest)
            fresh = place is not None and now - place.at_s <= self._kept_s
            if place is not None and fresh and place.address in among:
                known.setdefault(place.address, key.share)
            elif not known:
                home = key.digest  # in the end, the shortest one that is not known
        return Wish([PrefixMatch(*pair) for pair in known.items()], home, affinity.home_share)

    def remember(self, affinity: Affinity, address: str, now: float) -> None:
        place = _LastUse(address, now)
        for key in affinity.keys:
            self._places[key.digest] = place
            self._places.move_to_end(key.digest)
        while len(self._places) > self._most:
            self._places.popitem(last=False)


# Division of a model's requests between its own version and its canary's. Pure.
#
# All requests of a session get one version, and while a canary's share grows, sessions only come
# to it: none goes back and forth.


def point_of(session: bytes, version: str) -> float:
    """Return where a session falls between 0 and 100; below its share the canary serves it."""
    digest = blake2b(session, digest_size=8, key=version.encode()).digest()
    return _WHOLE * int.from_bytes(digest, "big") / 2**64


def sides(
    addresses: Collection[str], share: CanaryShare | None, session: bytes, drawn: float
) -> tuple[frozenset[str], ...]:
    """Return the replicas of the version that a request falls to, then the others, which take it
    if those cannot; empty sides are left out.

    drawn: from 0 to 100, for a request without a session; the same for all its attempts.
    """
    ready = frozenset(addresses)
    if share is None:
        return (ready,) if ready else ()
    point = point_of(session, share.version) if session else drawn
    canary, own = ready & share.addresses, ready - share.addresses
    ordered = (canary, own) if point < share.percent else (own, canary)
    return tuple(side for side in ordered if side)
