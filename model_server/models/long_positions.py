"""Marks the positions of sequences that are longer than a model was first trained for.

LongRoPE rotates such sequences by other factors from their first token on. One bit of a token's
position says so: it costs the step's vector no column, and other models never see it. No jax: the
host sets the bit and the model reads it.
"""

from __future__ import annotations

LONG = 1 << 30  # added to the position of every token of a long sequence
