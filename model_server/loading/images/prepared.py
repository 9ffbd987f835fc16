"""Prepared images: cut into an encoder's pieces, named by a digest, and counted while they live."""

from __future__ import annotations

import hashlib
import threading
import weakref
from dataclasses import dataclass

import numpy as np

from model_server.models.media.media_recipe import PreparedMedia
from sax.errors import QueueFull

DIGEST_BYTES = 32
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PreparedImage:
    """An image, a window of a sound or a frame of a video: what is encoded by itself."""

    digest: bytes  # of the pieces and of whose image it is
    count: int  # p: its pieces
    pieces: bytes  # f32[p, C], little-endian
    places: bytes  # i32[p, K], little-endian
    grid: tuple[int, int, int] | None  # as of PreparedMedia
    rows: int  # vectors that it becomes
    text: str  # that stands for it in a prompt
    frame: int | None = None  # as of PreparedMedia
    lasts: int | None = None  # as of PreparedMedia
    encoder: int = 0  # among those of the model
    turns: np.ndarray | None = None  # as of PreparedMedia
    twins: bool = False  # as of PreparedMedia

    @property
    def size(self) -> int:
        """Bytes of its pieces."""
        return len(self.pieces) + len(self.places)


class LivingImages:
    """Counts the bytes of all images that a request or a cache still holds. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.RLock()  # a collection may end an image while it is held
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    @property
    def full(self) -> bool:
        return self._held >= self._most

    def add(self, image: PreparedImage) -> None:
        with self._lock:
            self._held += image.size
        weakref.finalize(image, self._end, image.size)

    def check(self) -> None:
        """Raise QueueFull if no more images may be prepared."""
        if self.full:
            raise QueueFull(
                f"{self._held >> 20} MiB of images wait for this model, which is all that it "
                f"holds; retry in {_RETRY_S:.0f} s",
                retry_after_s=_RETRY_S,
            )

    def _end(self, size: int) -> None:
        with self._lock:
            self._held -= size


def key_of(data: bytes, owner: str) -> bytes:
    """Return a digest of an image file and of whose it is."""
    return _digest(owner, data)


def with_digest(media: PreparedMedia, owner: str, encoder: int = 0) -> PreparedImage:
    """Return a prepared image with its digest. encoder: its number among those of the model.

    The images of two owners never share one: the time to an answer would tell each of them which
    images the other has sent.
    """
    pieces, places = (
        each.astype(kind, copy=False).tobytes()
        for each, kind in ((media.pieces, "<f4"), (media.places, "<i4"))
    )
    # The keys of its tokens are rotated by their positions, so these are part of what is shared.
    shape = (encoder, media.pieces.shape, media.places.shape, media.grid, media.frame)
    return PreparedImage(
        digest=_digest(owner, repr(shape).encode(), pieces, places),
        count=len(media.pieces),
        pieces=pieces,
        places=places,
        grid=media.grid,
        rows=media.rows,
        text=media.text,
        frame=media.frame,
        lasts=media.lasts,
        encoder=encoder,
        turns=media.turns,
        twins=media.twins,
    )


def _digest(owner: str, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    whose = owner.encode(errors="surrogatepass")
    digest.update(b"%d:" % len(whose))
    digest.update(whose)
    for part in parts:
        digest.update(part)
    return digest.digest()
