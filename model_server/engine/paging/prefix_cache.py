"""Finds pages that already hold the keys and values of a sequence's first tokens. Pure.

A full page is known by a digest of its tokens and of all before them, which begins with a salt: two
sequences share pages only if their salts are equal and all their tokens up to the page's end are.
The digests are cryptographic, so nobody can make other tokens look alike.

A page may be copied by those whose next tokens are its first ones, full or not. It is found through
the digest of the full pages before it: the `heads` are sequences that still write such a page, the
`tails` are the pages of others, and full ones.

Only tokens count whose keys and values were written by a step that was launched: steps run in
order, so a later step may read them. `Sequence.written` counts them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from hashlib import blake2b
from itertools import islice

from model_server.engine.paging.pool import PagePool
from model_server.engine.paging.prefix import Prefix
from model_server.engine.paging.window_pages import WindowPages
from model_server.engine.sequence import Sequence

_MOST_TAILS = 16  # after the same full pages; as many heads are searched


class PrefixCache:
    """The pages of one pool that others may share or copy, by contents."""

    def __init__(
        self,
        pages: int,
        page_size: int,
        window_pages: WindowPages | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """window_pages: pages that some layers have apart from those of this pool; None: none do.

        whole: no part of a page is of use.
        """
        self._window_pages = window_pages
        self.pool = PagePool(pages, self._forget)
        self._size = page_size
        self._whole = whole
        self._renewals = 0
        self._full: dict[bytes, int] = {}  # pages by digest
        self._digests: dict[int, bytes] = {}  # of full pages, by page
        self._heads: dict[bytes, dict[int, Sequence]] = {}  # by digest of their full pages, by id
        self._tails: dict[bytes, dict[int, tuple[int, ...]]] = {}  # tokens by digest and page
        self._before: dict[int, bytes] = {}  # digest of the pages before a tail

    def find(self, sequence: Sequence, most: int) -> Prefix:
        """Return what is known of the first `most` tokens of a waiting sequence."""
        found = self._find(sequence, most)
        return found if self._window_pages is None else self._window_pages.visible(found)

    def _find(self, sequence: Sequence, most: int) -> Prefix:
        pages: list[int] = []
        for index in range(-(-most // self._size)):
            end = (index + 1) * self._size
            if end > len(sequence.tokens):
                break
            page = self._full.get(self._digest(sequence, index + 1))
            if page is None:
                break
            if end > most and self._whole:
                break
            if end > most:
                return _to_copy(pages, page, most - index * self._size, self._window_page(page))
            pages.append(page)
        if self._whole:
            return Prefix(tuple(pages))
        first = len(pages) * self._size
        wanted = sequence.tokens[first : min(most, first + self._size)]
        return _to_copy(pages, *self._partly(self._digest(sequence, len(pages)), wanted))

    def renew(self) -> None:
        """Find nothing of what is kept now for sequences without digests: it was computed with
        other weights. What is kept is granted anew as its turn comes."""
        self._renewals += 1

    def follow(self, sequence: Sequence) -> None:
        """Take a sequence that holds its pages into the index, from `paging.kept` pages on."""
        self._heads.setdefault(self._digest(sequence, sequence.paging.kept), {})[sequence.id] = (
            sequence
        )

    def note(self, sequence: Sequence) -> None:
        """Offer the full pages of a followed sequence up to `sequence.paging.written`."""
        full = sequence.paging.written // self._size
        if full <= sequence.paging.kept:
            return
        self._leave(sequence)
        for index in range(sequence.paging.kept, full):
            self._offer(sequence, index)
        sequence.paging.kept = full
        self.follow(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Offer the last page of a sequence that releases its pages, and follow it no longer."""
        if sequence.paging.chain and self._leave(sequence) and not self._whole:
            self._offer_tail(sequence)

    def alike(self, one: Sequence, other: Sequence, most: int) -> int:
        """Return how many of their first `most` tokens two sequences could share."""
        if _salt(one) != _salt(other):
            return 0
        for first in range(0, most, self._size):
            page = slice(first, min(first + self._size, most))
            if (ours := one.tokens[page]) != (theirs := other.tokens[page]):
                return first + (0 if self._whole else _common(ours, theirs))
        return most - most % self._size if self._whole else most

    def _digest(self, sequence: Sequence, pages: int) -> bytes:
        """Return the digest of the first full pages, extending the sequence's chain up to there."""
        chain = sequence.paging.chain
        if not chain:
            renewed = f"{self._renewals}:" if self._renewals else ""
            salt = f"{renewed}{_salt(sequence)}".encode(errors="surrogatepass")
            chain.append(blake2b(salt, digest_size=16, person=b"salt").digest())
        while len(chain) <= pages:
            first = (len(chain) - 1) * self._size
            tokens = array("q", sequence.tokens[first : first + self._size])
            chain.append(blake2b(chain[-1] + tokens.tobytes(), digest_size=16).digest())
        return chain[pages]

    def _offer(self, sequence: Sequence, index: int) -> None:
        """Keep a full page, unless another with the same contents is kept already."""
        page, digest = sequence.pages[index], self._digest(sequence, index + 1)
        if digest in self._full or page in self._digests:
            self._pair(self._full.get(digest, 0), sequence, index)
            return
        self._full[digest] = page
        self._digests[page] = digest
        self._pair(page, sequence, index)
        first = index * self._size
        tokens = tuple(sequence.tokens[first : first + self._size])
        self._offer_part(page, self._digest(sequence, index), tokens)

    def _leave(self, sequence: Sequence) -> bool:
        """Remove a head; return False if it was none."""
        digest = self._digest(sequence, sequence.paging.kept)
        heads = self._heads.get(digest)
        if heads is None or heads.pop(sequence.id, None) is None:
            return False
        if not heads:
            del self._heads[digest]
        return True

    def _offer_tail(self, sequence: Sequence) -> None:
        """Keep the partly filled page of a sequence that leaves."""
        first = sequence.paging.kept * self._size
        tokens = tuple(sequence.tokens[first : sequence.paging.written])
        if not tokens:
            return
        digest = self._digest(sequence, sequence.paging.kept)
        equal = (page for page, known in self._tails.get(digest, {}).items() if known == tokens)
        page = next(equal, 0)
        if not page:
            page = sequence.pages[sequence.paging.kept]
            self._offer_part(page, digest, tokens)
        self._pair(page, sequence, sequence.paging.kept)

    def _offer_part(self, page: int, digest: bytes, tokens: tuple[int, ...]) -> None:
        """Keep a page to be copied by those whose next tokens it begins with."""
        self.pool.keep(page)
        tails = self._tails.setdefault(digest, {})
        if len(tails) == _MOST_TAILS:
            self._drop_part(next(iter(tails)))
        self._tails.setdefault(digest, {})[page] = tokens
        self._before[page] = digest

    def _drop_part(self, page: int) -> None:
        """Let a page be copied no longer; a full one can still be shared."""
        digest = self._before.pop(page)
        tails = self._tails[digest]
        del tails[page]
        if not tails:
            del self._tails[digest]
        if page not in self._digests:
            self.pool.drop(page)
            self._part(page)

    def _partly(self, digest: bytes, wanted: list[int]) -> tuple[int, int, int]:
        """Return the page with most of the wanted tokens at its beginning, their number, and its
        window page."""
        source, copied, its_window = 0, 0, 0
        if wanted:
            for page, tokens, window_page in self._parts(digest):
                if (common := _common(wanted, tokens)) > copied:
                    source, copied, its_window = page, common, window_page
        return source, copied, its_window

    def _parts(self, digest: bytes) -> Iterator[tuple[int, Tokens[int], int]]:
        """Yield pages that follow these full pages, their known tokens, and their window pages."""
        for sequence in islice(self._heads.get(digest, {}).values(), _MOST_TAILS):
            first = sequence.paging.kept * self._size
            if sequence.paging.written > first:
                window_pages = sequence.paging.window_pages
                window_page = window_pages[sequence.paging.kept] if window_pages else 0
                tokens = sequence.tokens[first : sequence.paging.written]
                yield sequence.pages[sequence.paging.kept], tokens, window_page
        for page, tokens in self._tails.get(digest, {}).items():
            yield page, tokens, self._window_page(page)

    def _forget(self, page: int) -> None:
        """Stop offering a page."""
        if page in self._before:
            self._drop_part(page)
        if digest := self._digests.pop(page, None):
            del self._full[digest]
        self._part(page)

    def _window_page(self, page: int) -> int:
        return 0 if self._window_pages is None else self._window_pages.twin(page)

    def _pair(self, page: int, sequence: Sequence, index: int) -> None:
        if self._window_pages is not None and page:
            self._window_pages.pair(page, sequence.paging.window_pages[index])

    def _part(self, page: int) -> None:
        if self._window_pages is not None:
            self._window_pages.part(page)


def _salt(sequence: Sequence) -> str:
    """Return what, beside tokens, decides keys and values and who may share them."""
    own = "".join(part.salt(sequence) for part in sequence.parts)
    return f"{own}{sequence.request.salt}"


def _to_copy(pages: list[int], source: int, copied: int, window_page: int) -> Prefix:
    return Prefix(tuple(pages), source, copied, window_source=window_page)


def _common(one: Tokens[int], other: Tokens[int]) -> int:
    """Return how many tokens both begin with."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
