"""Answers a file of requests while the gateway has nothing else to do.

pip install openai
python examples/batch.py [MODEL]
"""

from __future__ import annotations

import json
import os
import sys
import time

from openai import OpenAI

URL = os.environ.get("SAX_URL", "http://127.0.0.1:8888")
COUNTRIES = ("France", "Italy", "Japan")
ENDED = ("completed", "failed", "expired", "cancelled")


def main(model: str) -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("SAX_TOKEN", "none"))
    lines = (
        {
            "custom_id": country,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "temperature": 0,
                "max_tokens": 16,
                "messages": [{"role": "user", "content": f"What is the capital of {country}?"}],
            },
        }
        for country in COUNTRIES
    )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = client.files.create(file=("requests.jsonl", text.encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ENDED:
        time.sleep(0.5)
        batch = client.batches.retrieve(batch.id)
    if batch.status != "completed" or batch.output_file_id is None:
        sys.exit(f"the batch is {batch.status}: {batch.errors or batch.error_file_id}")
    for line in client.files.content(batch.output_file_id).text.splitlines():
        answer = json.loads(line)
        content = answer["response"]["body"]["choices"][0]["message"]["content"]
        print(f"{answer['custom_id']}: {content}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
