"""The model families whose GGUF files can be read and written, one declaration each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from model_server.checkpoints.gguf.architecture import GgufArchitecture
from model_server.checkpoints.gguf.architectures import experts, glm, laguna, mamba
from model_server.checkpoints.gguf.architectures.bert import BERT, MODERN_BERT
from model_server.checkpoints.gguf.architectures.deepseek2 import (
    DEEPSEEK2,
    DEEPSEEK32,
    DOTS3,
    GLM_DSA,
)
from model_server.checkpoints.gguf.architectures.deepseek4 import DEEPSEEK4, HY_V4
from model_server.checkpoints.gguf.architectures.experts import GPT_OSS
from model_server.checkpoints.gguf.architectures.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3N, GEMMA4
from model_server.checkpoints.gguf.architectures.glm import CHATGLM, GLM4
from model_server.checkpoints.gguf.architectures.kimi_linear import GLM5_NEXT, KIMI_LINEAR
from model_server.checkpoints.gguf.architectures.layer_normed import (
    COHERE2,
    COMMAND_R,
    GPT2,
    GPTJ,
    GPTNEOX,
    PHI2,
    STARCODER2,
)
from model_server.checkpoints.gguf.architectures.lfm2 import LFM2, LFM2MOE
from model_server.checkpoints.gguf.architectures.llama import LLAMA
from model_server.checkpoints.gguf.architectures.llama_kin import (
    APERTUS,
    ARCEE,
    ERNIE4_5,
    EXAONE4,
    GRANITE,
    GRANITE_SWA,
    HUNYUAN_DENSE,
    MISTRAL3,
    OLMO2,
    PHI3,
    SEED_OSS,
    SMOLLM3,
)
from model_server.checkpoints.gguf.architectures.minimax import MINIMAX_M2, MINIMAX_M3
from model_server.checkpoints.gguf.architectures.qwen import (
    MELLUM,
    QWEN2,
    QWEN2VL,
    QWEN3,
    QWEN3MOE,
    QWEN3NEXT,
    QWEN3VL,
    QWEN3VLMOE,
    QWEN35,
    QWEN35MOE,
)
from model_server.checkpoints.gguf.architectures.qwen4 import QWEN4_EXP

_ALL = (
    LLAMA,
    QWEN2,
    QWEN3,
    QWEN3MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    PHI3,
    GPT2,
    GPTJ,
    GPTNEOX,
    OLMO2,
    DEEPSEEK2,
    BERT,
    SMOLLM3,
    GRANITE,
    GRANITE_SWA,
    SEED_OSS,
    ERNIE4_5,
    ARCEE,
    HUNYUAN_DENSE,
    EXAONE4,
    CHATGLM,
    GLM4,
    COMMAND_R,
    COHERE2,
    STARCODER2,
    PHI2,
    GPT_OSS,
    LFM2,
    QWEN2VL,
    QWEN3VL,
    QWEN3VLMOE,
    MISTRAL3,
    DEEPSEEK32,
    GLM_DSA,
    MODERN_BERT,
    APERTUS,
    MELLUM,
    *experts.ALL,
    MINIMAX_M2,
    MINIMAX_M3,
    LFM2MOE,
    *glm.ALL,
    *mamba.ALL,
    QWEN3NEXT,
    QWEN35,
    QWEN35MOE,
    QWEN4_EXP,
    DEEPSEEK4,
    HY_V4,
    DOTS3,
    GLM5_NEXT,
    KIMI_LINEAR,
    *laguna.ALL,
    GEMMA4,
    GEMMA3N,
)
ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType({a.name: a for a in _ALL})
