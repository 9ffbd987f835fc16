"""Reads a file of tensors piece by piece.

Uses plain reads, not a memory map: if a mapped file is truncated while a server reads it, SIGBUS
kills the process, and mapped pages count as resident memory on top of the loaded weights.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np

from model_server.checkpoints.files import open_regular
from model_server.kernels.aligned import aligned_empty
from sax.errors import CheckpointError


class TensorFile:
    """An open file. Reading is thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError if the file cannot be opened."""
        self.path = path
        try:
            self._descriptor = open_regular(path)
        except OSError as exc:
            raise CheckpointError(f"{path} cannot be opened: {exc.strerror or exc}") from exc
        # Closes once: in close(), or when this object is garbage-collected.
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        if hasattr(os, "posix_fadvise"):  # not on macOS
            # Weights are loaded in file order, so let the kernel read further ahead.
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read(self, offset: int, nbytes: int, what: str) -> np.ndarray:
        """Read u8[nbytes] at `offset`; `what` names these bytes in errors."""
        if offset + nbytes > self.size:  # check before allocating
            raise self.truncated(offset + nbytes, what)
        return self.fill(aligned_empty((nbytes,), np.uint8), offset, what)

    def fill(self, out: np.ndarray, offset: int, what: str) -> np.ndarray:
        """Like `read`, but into an array of any dtype, which must be contiguous."""
        end = offset + out.nbytes
        if end > self.size:
            raise self.truncated(end, what)
        into = out.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(into):
            count = self._read_some(into[done:], offset + done)
            if count == 0:  # truncated after it was opened
                raise self.truncated(end, what, offset + done)
            done += count
        return out

    def _read_some(self, into: memoryview, offset: int) -> int:
        if not self._close.alive:  # the descriptor may belong to another file by now
            raise CheckpointError(f"{self.path} cannot be read: it is closed")
        try:
            return os.preadv(self._descriptor, [into], offset)
        except OSError as exc:
            raise CheckpointError(f"{self.path} cannot be read at byte {offset}: {exc}") from exc

    def truncated(self, needed: int, what: str, actual: int | None = None) -> CheckpointError:
        size = self.size if actual is None else actual
        return CheckpointError(
            f"{self.path} is truncated: {what} ends at byte {needed}, the file has {size} bytes; "
            "fetch it again"
        )

    def damaged(self, text: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged or of another format: {text}")

    def close(self) -> None:
        self._close()
