"""Families whose towers are built like Qwen's, and that see by preparing images in their own way."""

from __future__ import annotations

from dataclasses import replace

from tests.tools.golden.media.case import MediaCase
from tests.tools.golden.media.qwen import QWEN, THREE, VIDEOS, WATCHING

# Positions are those of a text.
LOOKING, FOLLOWING = replace(QWEN, kinds=None), replace(WATCHING, kinds=None)

CASES = [
    MediaCase(
        "exaone4_5",
        LOOKING,
        images=THREE,
        without={
            "windows": {"vision_config.fullatt_block_indexes": [0, 1, 2]},
            "window of text": {"text_config.sliding_window": 64},
        },
    ),
    MediaCase("exaone4_5_video", FOLLOWING, videos=VIDEOS),
]
