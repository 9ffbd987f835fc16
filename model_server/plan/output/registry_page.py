"""Writes docs/reference/plans.md (`make plans`): large models on slices, each actually planned.

    python -m model_server.plan.output.registry_page > docs/reference/plans.md

Takes some minutes per model; reports progress on stderr. The text around the tables is
registry_page.md. Compile times are left out and figures rounded, so that the page changes only when
a program does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax

from model_server.config import ModelServerConfig
from model_server.plan.model_plan import BucketPlan, Decoding, ModelPlan
from model_server.plan.output.views import progress_on
from model_server.plan.planner import PlanRequest, make_plan
from model_server.plan.slices import CHIPS, Chip
from sax.errors import SaxError
from sax.format import human_bytes as human


@dataclass(frozen=True, slots=True)
class Case:
    """A line of the page."""

    model: str
    topology: str
    overrides: dict[str, str] = field(default_factory=dict)


_INT8 = {"QUANTIZE": '"int8"'}


def _eights(context: int, **more: str) -> dict[str, str]:
    return {**_INT8, "MAX_CONTEXT": str(context), **more}


TUTORIAL = Case("lm_cloud.LmCloudSpmd175B32Test", "v5e:4x8")
CASES = (
    TUTORIAL,
    Case("lm_cloud.LmCloudSpmd2BTest", "v5e:1x1"),
    Case("meta-llama/Llama-3-8B", "v5e:2x2"),
    Case("meta-llama/Llama-3-8B", "v5e:2x4"),
    Case("meta-llama/Llama-3-8B", "v6e:1x1"),
    Case("meta-llama/Llama-3-70B", "v5e:2x4"),
    Case("meta-llama/Llama-3-70B", "v5e:2x4", _INT8),
    Case("meta-llama/Llama-3-70B", "v5e:4x4"),
    Case("meta-llama/Llama-3-70B", "v6e:2x4"),
    Case("meta-llama/Llama-3-70B", "v5p:2x2x1"),
    Case("meta-llama/Llama-3-70B", "v7x:2x2x1"),
    Case("meta-llama/Llama-3.1-405B", "v5p:2x2x4", {"MAX_CONTEXT": "8192"}),
    Case("saxml.server.pax.lm.params.lm_cloud.LLaMA7BFP16TPUv5e", "v5e:2x2"),
    Case("saxml.server.pax.lm.params.lm_cloud.LLaMA70BInt8TPUv5e8", "v5e:2x4"),
    Case("saxml.server.pax.lm.params.gptj.GPTJ", "v5e:2x2", {"ICI_MESH_SHAPE": "[1,1,4]"}),
    Case("google/gemma-2-9b", "v5e:2x2"),
    Case("google/gemma-2-27b", "v5e:2x4"),
    Case("google/gemma-2-27b", "v6e:2x2"),
    Case("google/gemma-3-12b", "v5e:2x2", {"MAX_CONTEXT": "32768"}),
    Case("google/gemma-3-27b", "v5e:2x4", {"MAX_CONTEXT": "32768"}),
    Case("mistralai/Mistral-7B", "v5e:2x2"),
    Case("mistralai/Mixtral-8x7B", "v5e:2x4"),
    Case("mistralai/Mixtral-8x7B", "v6e:2x4"),
    Case("mistralai/Mixtral-8x22B", "v5p:2x2x1"),
    Case("Qwen/Qwen2.5-72B", "v6e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("Qwen/Qwen3-32B", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("Qwen/Qwen3-30B-A3B", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("Qwen/Qwen3-235B-A22B", "v5p:2x2x2", {"MAX_CONTEXT": "8192"}),
    Case("zai-org/GLM-4-32B-0414", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("mistralai/Mistral-Small-3.1-24B", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("allenai/Olmo-3-32B", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("LGAI-EXAONE/EXAONE-4.0-32B", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("ByteDance-Seed/Seed-OSS-36B", "v6e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("CohereLabs/c4ai-command-r-plus", "v5p:2x2x1"),
    Case("CohereLabs/c4ai-command-a-03-2025", "v5p:2x2x2", {"MAX_CONTEXT": "8192"}),
    Case("mistralai/Devstral-2-123B", "v5p:2x2x2", {"MAX_CONTEXT": "8192"}),
    Case("zai-org/GLM-4.5-Air", "v5e:4x4", _eights(8192)),
    Case("zai-org/GLM-4.5", "v5p:2x2x4", _eights(8192)),
    Case("openai/gpt-oss-20b", "v5e:2x2", {"MAX_CONTEXT": "32768"}),
    Case("openai/gpt-oss-120b", "v5e:2x4", {"MAX_CONTEXT": "32768"}),
    Case("meta-llama/Llama-4-Scout-17B-16E", "v6e:2x4", _eights(8192)),
    Case("meta-llama/Llama-4-Maverick-17B-128E", "v5p:2x2x2", _eights(8192)),
    Case("moonshotai/Kimi-K2", "v5p:2x2x8", _eights(4096)),
    Case("Qwen/Qwen3-Next-80B-A3B", "v5e:4x4", _eights(8192)),
    Case("tencent/Hunyuan-A13B", "v5e:4x4", _eights(8192)),
    Case("tiiuae/Falcon-H1-34B", "v5p:2x2x1", {"MAX_CONTEXT": "8192"}),
    Case("MiniMaxAI/MiniMax-Text-01", "v5p:2x2x4", _eights(8192)),
    Case("Qwen/Qwen3.5-35B-A3B", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("Qwen/Qwen3.5-397B-A17B", "v5p:2x2x2", _eights(8192)),
    Case("ibm-granite/granite-4.0-h-small", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("nvidia/Nemotron-3-Nano-30B-A3B", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("LiquidAI/LFM2-8B-A1B", "v5e:2x2", {"MAX_CONTEXT": "8192"}),
    Case("rednote-hilab/dots.llm1", "v5e:4x4", _eights(8192)),
    Case("upstage/Solar-Open-100B", "v5e:4x4", _eights(8192)),
    Case("microsoft/Phi-3.5-MoE", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("swiss-ai/Apertus-70B", "v5p:2x2x1", {"MAX_CONTEXT": "8192"}),
    Case("deepseek-ai/DeepSeek-V2", "v5p:2x2x2", _eights(4096)),
    Case("deepseek-ai/DeepSeek-V3", "v5e:8x16", _eights(4096)),
    Case("deepseek-ai/DeepSeek-V3", "v5p:2x2x4", _eights(4096)),
    Case("deepseek-ai/DeepSeek-V3", "v7x:2x2x2", _eights(4096)),
    Case("deepseek-ai/DeepSeek-V3.2", "v5p:2x2x4", _eights(4096)),
    Case("zai-org/GLM-5", "v5p:2x2x4", _eights(4096)),
    Case("zai-org/GLM-4.7-Flash", "v5e:2x4", {"MAX_CONTEXT": "8192"}),
    Case("XiaomiMiMo/MiMo-V2-Flash", "v5p:2x2x2", _eights(8192)),
    Case("moonshotai/Kimi-Linear-48B-A3B", "v5e:4x4", {"MAX_CONTEXT": "8192"}),
    Case("deepseek-ai/DeepSeek-V4-Flash", "v5p:2x2x2", _eights(4096)),
    Case("inclusionAI/Ling-3.0-Flash", "v5e:4x4", _eights(8192)),
)


def page(cases: Iterable[Case] = CASES) -> str:
    plans = [(case, _planned(case)) for case in cases]
    made = [(case, found) for case, found in plans if isinstance(found, ModelPlan)]
    filled = {
        "tutorial": "\n".join(_room(found) for case, found in made if case == TUTORIAL),
        "plans": _table(
            (
                "model",
                "slice",
                "overrides",
                "fits",
                "weights per device",
                "KV per device",
                "KV tokens",
                "tokens/s, predicted",
                "per chip",
                "first token, predicted",
                "bound by",
            ),
            (_row(case, found) for case, found in plans),
        ),
        "efficiency": _table(
            ("model", "slice", "decodes", "unavoidable", "moved", "moved / unavoidable", "sent"),
            (_efficiency(case, found) for case, found in made if found.buckets),
        ),
        "chips": _table(
            ("chip", "HBM", "HBM/s", "bf16", "links, one way", "a program may fill", "source"),
            map(_chip, CHIPS.values()),
        ),
    }
    text = Path(__file__).with_suffix(".md").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], text)


def _planned(case: Case) -> ModelPlan | str:
    sys.stderr.write(f"{case.model} on {case.topology}\n")
    try:
        with progress_on(sys.stderr) as report:
            return make_plan(
                PlanRequest(
                    model=case.model,
                    topology=case.topology,
                    config=ModelServerConfig(),
                    overrides=case.overrides,
                ),
                report,
            )
    except SaxError as exc:
        return exc.text
    finally:
        jax.clear_caches()  # frees the traced programs of a finished model


def _room(found: ModelPlan) -> str:
    """Describe the memory of a chip of the tutorial's slice."""
    memory = found.memory
    if memory is None:
        return f"{found.model} does not fit {found.slice.topology}: {_first(found)}"
    name, where = found.model.rpartition(".")[2], found.slice.topology
    programs = _rounded(memory.temporaries + memory.outputs + memory.code)
    pool = _rounded(memory.kv)
    free = memory.kv_pages_free * memory.page_size
    return (
        f"The tutorial's {name} fits {where}: each chip has "
        f"{human(found.slice.hbm_per_chip)}, of which\nprograms may fill {human(memory.limit)}. "
        f"Weights take {_rounded(memory.weights)}, temporaries and code {programs}, and keys and\n"
        f"values of {memory.kv_tokens:,} tokens {pool}; {found.slots} slots of "
        f"{found.max_context:,} tokens need {found.slots * found.max_context:,},\n"
        f"and {free:,} would fit."
    )


def _row(case: Case, found: ModelPlan | str) -> Sequence[str]:
    if isinstance(found, str):
        return (*_names(case), f"no: {found}", *[""] * 7)
    if not found.fits or found.memory is None or not found.decoding:
        return (*_names(case), f"no: {_first(found)}", *[""] * 7)
    memory, best = found.memory, _fullest(found.decoding)
    first = max(found.first_token, key=lambda each: each.prompt)
    return (
        *_names(case),
        "yes",
        _rounded(memory.weights),
        _rounded(memory.kv),
        f"{memory.kv_tokens:,}",
        f"{_two(best.tokens_per_second)} ({best.batch} x {best.context:,})",
        _two(best.per_chip),
        f"{_two(first.seconds * 1e3)} ms ({first.prompt:,})",
        best.bound,
    )


def _names(case: Case) -> tuple[str, str, str]:
    overrides = " ".join(f"`{key}={value}`" for key, value in case.overrides.items())
    return f"`{case.model.rpartition('params.')[2]}`", f"`{case.topology}`", overrides


def _first(found: ModelPlan) -> str:
    problem = (found.problem or "").rpartition(": ")[2] or "it does not fit"
    return f"{problem}; {found.advice[0]}" if found.advice else problem


def _fullest(decoding: Sequence[Decoding]) -> Decoding:
    return max(decoding, key=lambda each: each.batch)


def _efficiency(case: Case, found: ModelPlan) -> Sequence[str]:
    bucket: BucketPlan = max(
        (each for each in found.buckets if not each.blocks), key=lambda each: each.decodes
    )
    model, where, _ = _names(case)
    return (
        model,
        where,
        str(bucket.decodes),
        _rounded(bucket.bytes),
        _rounded(bucket.bytes_compiled),
        f"{bucket.efficiency:.2f}",
        _rounded(sum(bucket.sent.values())),
    )


def _chip(chip: Chip) -> Sequence[str]:
    fills = human(chip.usable)
    return (
        chip.name,
        human(chip.hbm),
        f"{chip.hbm_rate / 1e9:,.0f} GB/s",
        f"{chip.bf16_rate / 1e12:,.0f} TFLOP/s",
        f"{chip.link_rate / 1e9:,.0f} GB/s",
        f"{fills} of each of {chip.devices}" if chip.devices > 1 else fills,
        chip.source,
    )


def _rounded(count: float) -> str:
    return human(int(float(f"{count:.3g}")))


def _two(value: float) -> str:
    """Format with two significant figures: a prediction is no more precise."""
    return f"{float(f'{value:.2g}'):,.{0 if value >= 10 else 1}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.stdout.write(page())
