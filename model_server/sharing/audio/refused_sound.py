"""Why a sound is not taken."""

from __future__ import annotations


class RefusedSound(Exception):
    """The text ends a sentence that begins "the sound"."""
