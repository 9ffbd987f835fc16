"""Asks a model over OpenAI's API and through the SDK, token by token.

pip install openai
python examples/chat.py [MODEL]        # the gateway: $SAX_URL, the admin server: $SAX_ADMIN
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

from sax import Client, GenerateRequest, Message, SamplingParams

URL = os.environ.get("SAX_URL", "http://127.0.0.1:8888")
QUESTION = "What is the capital of France?"


def over_http(model: str) -> None:
    """Any OpenAI client works; without keys the gateway takes any key."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("SAX_TOKEN", "none"))
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


def with_the_sdk(model: str) -> None:
    """The SDK finds the model's replicas by itself: no gateway is between."""
    with Client() as client:
        request = GenerateRequest(
            model_id=f"/sax/test/{model}",
            prompt=(Message("user", QUESTION),),
            sampling=SamplingParams(temperature=0, max_tokens=32),
        )
        for chunk in client.generate(request):
            print(chunk.text, end="", flush=True)
        print()


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    over_http(name)
    with_the_sdk(name)
