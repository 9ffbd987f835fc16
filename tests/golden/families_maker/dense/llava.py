"""Golden cases of LLaVA without images: the text models beside its tower."""

from __future__ import annotations

from tests.golden.families_maker.case import Case
from tests.golden.families_maker.decoders import mistral
from tests.golden.media_maker.llava import SETTINGS, clip
from tests.golden.media_maker.pixtral import llava

CASES = [
    Case(
        name="llava_with_mistral",
        config=llava(mistral(head_dim=12, sliding_window=8), clip(), **SETTINGS),
        tokens=21,
    ),
]
