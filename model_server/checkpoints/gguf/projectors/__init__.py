"""The kinds of encoders whose files can be read, by llama.cpp's names for their projectors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from model_server.checkpoints.gguf.projectors.audio import GRANITE_SPEECH, QWEN2_AUDIO, VOXTRAL
from model_server.checkpoints.gguf.projectors.gemma import (
    GEMMA3,
    GEMMA3N_AUDIO,
    GEMMA3N_VISION,
    GEMMA4_AUDIO,
    GEMMA4_VISION,
)
from model_server.checkpoints.gguf.projectors.omni import (
    DOTS3_AUDIO,
    DOTS3_VISION,
    QWEN2_5_OMNI_AUDIO,
    QWEN2_5_OMNI_VISION,
    QWEN3_OMNI_AUDIO,
    QWEN3_OMNI_VISION,
)
from model_server.checkpoints.gguf.projectors.projector import GgufProjector
from model_server.checkpoints.gguf.projectors.towers import KIMI_K25, MINIMAX_M3, STEP3P7
from model_server.checkpoints.gguf.projectors.vision import (
    EXAONE4_5,
    GLM5_NEXT,
    LLAMA4,
    MISTRAL3,
    PIXTRAL,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_VL,
)

PROJECTORS: Mapping[str, tuple[GgufProjector, ...]] = MappingProxyType(
    {
        "dots3note_a": (DOTS3_AUDIO,),
        "dots3note_v": (DOTS3_VISION,),
        "exaone4_5": (EXAONE4_5,),
        "gemma3": (GEMMA3,),
        "gemma3na": (GEMMA3N_AUDIO,),
        "gemma3nv": (GEMMA3N_VISION,),
        "gemma4a": (GEMMA4_AUDIO,),
        "gemma4v": (GEMMA4_VISION,),
        "glm5v": (GLM5_NEXT,),
        "granite_speech": (GRANITE_SPEECH,),
        "kimik25": (KIMI_K25,),
        "llama4": (LLAMA4,),
        "minimax_m3": (MINIMAX_M3,),
        "pixtral": (MISTRAL3, PIXTRAL),
        "qwen2.5o": (QWEN2_5_OMNI_VISION, QWEN2_5_OMNI_AUDIO),
        "qwen2.5vl_merger": (QWEN2_5_VL,),
        "qwen2a": (QWEN2_AUDIO,),
        "qwen2vl_merger": (QWEN2_VL,),
        "qwen3a": (QWEN3_OMNI_AUDIO,),
        "qwen3vl_merger": (QWEN3_OMNI_VISION, QWEN3_VL),  # the first that fits
        "step3vl": (STEP3P7,),
        "voxtral": (VOXTRAL,),
    }
)
