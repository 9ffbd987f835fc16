"""Greedy text of a real model in a GGUF file, which transformers reads and dequantises."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def opened(path: Path, **options: Any) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer."""
    import torch
    import transformers

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    auto = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(**where, dtype=torch.float32, **options).eval()
    return model, transformers.AutoTokenizer.from_pretrained(**where)


def answer(model: Any, ids: Sequence[int], new_tokens: int, **options: Any) -> tuple[Any, Any, Any]:
    """The ids that follow, the logits of each, and how far the best lay above the next."""
    import torch

    output = model.generate(
        torch.tensor([ids]),
        do_sample=False,
        max_new_tokens=new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    logits = torch.stack([row[0] for row in output.logits])
    best = logits.topk(2).values
    return output.sequences[0, len(ids) :].tolist(), logits, best[:, 0] - best[:, 1]


def write(path: Path, **value: Any) -> None:
    """Write JSON with lists of numbers on one line: the files are read by people too."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    text = re.sub(r"\[\s+(-?[\d.e-]+(?:,\s+-?[\d.e-]+)*)\s+\]", _one_line, text)
    path.write_text(text + "\n", encoding="utf-8")


def _one_line(match: re.Match[str]) -> str:
    return "[" + ", ".join(match[1].replace(",", " ").split()) + "]"
