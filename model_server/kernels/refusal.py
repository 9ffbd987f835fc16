"""What a kernel says to shapes that it does not take."""

from __future__ import annotations


class KernelRefusal(ValueError):
    """A trace cannot go on with these shapes; the text says what to change."""
