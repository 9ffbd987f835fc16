"""Finds the passage that answers a question by its vector, and asks a model with it.

pip install openai numpy
sax publish minilm auto sentence-transformers/all-MiniLM-L6-v2 --wait
python examples/retrieval.py [MODEL] [EMBEDDER]
"""

from __future__ import annotations

import os
import sys

import numpy as np
from openai import OpenAI

URL = os.environ.get("SAX_URL", "http://127.0.0.1:8888")
PASSAGES = (
    "A cell has one admin server that leads, model servers, and any number of gateways.",
    "The office is closed between Christmas and New Year.",
    "Visitors get a badge at the desk in the lobby and return it when they leave.",
    "The cafeteria serves lunch from half past eleven to two o'clock.",
)
QUESTION = "When can I eat lunch?"


def main(model: str, embedder: str) -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("SAX_TOKEN", "none"))
    reply = client.embeddings.create(model=embedder, input=[*PASSAGES, QUESTION])
    vectors = np.array([each.embedding for each in reply.data])  # [passages + 1, width], length 1
    nearest = PASSAGES[int(np.argmax(vectors[:-1] @ vectors[-1]))]
    print(f"found: {nearest}")
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"{nearest}\n\n{QUESTION} Answer briefly."}],
        temperature=0,
        max_tokens=48,
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main(*(sys.argv[1:] + ["smollm2", "minilm"][len(sys.argv) - 1 :]))
