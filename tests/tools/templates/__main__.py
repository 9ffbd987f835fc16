"""Records the golden conversations with calls, as public chat templates render them.

    make templates && python -m tests.tools.templates

Writes tests/golden/calls.json: by family, the turn of calls that its template writes and the forms
that were learnt from it. The templates themselves are their authors' and stay in the cache. A
family whose template is not among those that were fetched keeps its record, and is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from tests.model_server.text.public_templates import FOLDER, PublicTemplate

GOLDEN = Path("tests/golden/calls.json")
FAMILIES = {
    "hermes": "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "qwen3-coder": "Qwen3-Coder",
    "qwen3.5": "Qwen3.5-4B",
    "llama3": "meta-llama-Llama-3.1-8B-Instruct",
    "llama4": "trl-internal-testing-tiny-Llama4ForCausalLM",
    "mistral-7b-v0.3": "mistralai-Mistral-7B-Instruct-v0.3",
    "mistral-nemo": "mistralai-Mistral-Nemo-Instruct-2407",
    "mistral-small-3.2": "Mistral-Small-3.2-24B-Instruct-2506",
    "ministral-3": "mistralai-Ministral-3-14B-Reasoning-2512",
    "functiongemma": "unsloth-functiongemma-270m-it",
    "gemma4": "google-gemma-4-31B-it",
    "deepseek-r1-0528": "trl-internal-testing-tiny-DeepseekV3ForCausalLM-0528",
    "deepseek-v3.1": "deepseek-ai-DeepSeek-V3.1",
    "deepseek-v3.2": "deepseek-ai-DeepSeek-V3.2",
    "deepseek-v4": "deepseek-ai-DeepSeek-V4",
    "glm-4.5": "zai-org-GLM-4.5-Air",
    "glm-4.7": "GLM-4.7-Flash",
    "glm-5": "zai-org-GLM-5",
    "glm-5.2": "zai-org-GLM-5.2",
    "kimi-k2": "moonshotai-Kimi-K2-Instruct-0905",
    "kimi-k2-thinking": "moonshotai-Kimi-K2-Thinking",
    "kimi-k3": "Kimi-K3",
    "minimax-m2": "MiniMax-M2",
    "minimax-m3": "MiniMaxAI-MiniMax-M3-MXFP8",
    "seed-oss": "ByteDance-Seed-OSS",
    "nemotron-super": "nvidia-Llama-3_3-Nemotron-Super-49B-v1_5",
    "nemotron-3": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "command-r7b": "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "command-a": "CohereLabs-command-a-plus-05-2026-w4a4",
    "granite-3": "ibm-granite-granite-3.3-2B-Instruct",
    "granite-4": "ibm-granite-granite-4.0",
    "phi-4-mini": "microsoft-Phi-4-mini-reasoning",
    "hunyuan": "tencent-Hunyuan-7B-Pretrain",
    "hy3": "tencent-Hy3",
    "ling-3": "inclusionai-ling-3.0-flash",
    "longcat": "meituan-longcat-LongCat-2.0",
    "step-3.5": "StepFun3.5-Flash",
    "step3": "stepfun-ai-step3",
    "lfm2": "LFM2-8B-A1B",
    "gpt-oss": "openai-gpt-oss-120b",
    "smollm3": "HuggingFaceTB-SmolLM3-3B@3e0e27",
    "olmo-3": "allenai-Olmo-3-7B-Instruct",
    "apertus": "Apertus-8B-Instruct",
    "exaone-4": "LGAI-EXAONE-EXAONE-4.0-32B",
    "mimo": "XiaomiMiMo-MiMo-V2-Flash",
    "minicpm5": "openbmb-MiniCPM5-1B",
    "solar-open": "upstage-Solar-Open-100B",
    "jamba": "ai21labs-Jamba-tiny-dev",
}
# Family that serves the model of a template; the others are served by none.
SERVED_BY = {
    **dict.fromkeys(("hermes", "llama3"), "llama"),
    "qwen2.5": "qwen2",
    "qwen3": "qwen3",
    "qwen3-coder": "qwen3_moe",
    "qwen3.5": "qwen3_5",
    "llama4": "llama4",
    **dict.fromkeys(("mistral-7b-v0.3", "mistral-nemo", "mistral-small-3.2"), "mistral"),
    "ministral-3": "ministral3",
    "functiongemma": "gemma3",
    "gemma4": "gemma4",
    **dict.fromkeys(("deepseek-r1-0528", "deepseek-v3.1"), "deepseek_v3"),
    "deepseek-v3.2": "deepseek_v32",
    "deepseek-v4": "deepseek_v4",
    "glm-4.5": "glm4_moe",
    "glm-4.7": "glm4_moe_lite",
    **dict.fromkeys(("glm-5", "glm-5.2"), "glm_moe_dsa"),
    **dict.fromkeys(("kimi-k2", "kimi-k2-thinking"), "deepseek_v3"),
    "minimax-m2": "minimax_m2",
    "minimax-m3": "minimax_m3",
    "seed-oss": "seed_oss",
    "nemotron-3": "nemotron_h",
    "command-r7b": "cohere2",
    "command-a": "cohere2_moe",
    "granite-3": "granite",
    "granite-4": "granitemoehybrid",
    "phi-4-mini": "phi3",
    "hunyuan": "hunyuan",
    "hy3": "hy_v3",
    "ling-3": "bailing_hybrid",
    "step-3.5": "step3p5",
    "lfm2": "lfm2_moe",
    "gpt-oss": "gpt_oss",
    "smollm3": "smollm3",
    "olmo-3": "olmo3",
    "apertus": "apertus",
    "exaone-4": "exaone4",
    "mimo": "mimo_v2",
    "solar-open": "solar_open",
}

# Of vocabularies, where no template has them.
CONTROL_TOKENS = {"lfm2": ("<|tool_call_start|>",), "phi-4-mini": ("<|tool_call|>",)}


def recorded(folder: Path, before: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the record of every family, and the families that keep theirs: the folder has no
    template of them. Raises FileNotFoundError for one without either."""
    told: dict[str, Any] = {}
    kept: list[str] = []
    for family, name in FAMILIES.items():
        path = folder / f"{name}.jinja"
        if family in before and not path.exists():
            told[family] = before[family]
            kept.append(family)
        else:
            told[family] = _record(path.read_text(), CONTROL_TOKENS.get(family, ()))
    return told, kept


def _record(source: str, control_tokens: tuple[str, ...]) -> dict[str, Any]:
    template = PublicTemplate(source, control_tokens)
    dialect = {**asdict(template.dialect), "calls": template.dialect.calls}
    made = {"turn": template.turn(), "calls": template.calls, "dialect": dialect}
    return json.loads(msgspec.json.encode(made))


def main() -> None:
    if not FOLDER.is_dir():
        sys.exit(f"{FOLDER} does not exist: run 'make templates' first")
    told, kept = recorded(FOLDER, json.loads(GOLDEN.read_text()))
    for family in kept:
        sys.stderr.write(f"{family} keeps its record: {FOLDER} has no {FAMILIES[family]}.jinja\n")
    GOLDEN.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
