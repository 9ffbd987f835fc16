"""The error for shapes a kernel does not support."""

from __future__ import annotations


class KernelRefusal(ValueError):
    """Raised when a kernel does not support the given shapes; the text says what to change."""
