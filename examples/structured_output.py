"""Gets an answer as JSON of a given schema: the grammar allows the model nothing else.

pip install openai
python examples/structured_output.py [MODEL]
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from openai import OpenAI

URL = os.environ.get("SAX_URL", "http://127.0.0.1:8888")
TEXT = "The Eiffel Tower in Paris was finished in 1889 and is 330 metres high."
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 40},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "metres": {"type": "integer", "minimum": 1, "maximum": 1000},
    },
    "required": ["name", "city", "year", "metres"],
    "additionalProperties": False,
}


def main(model: str) -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("SAX_TOKEN", "none"))
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Describe the building as JSON: {TEXT}"}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "building", "schema": SCHEMA, "strict": True},
        },
        temperature=0,
        max_tokens=128,
    )
    building = json.loads(reply.choices[0].message.content or "")
    print(json.dumps(building, indent=2))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
