"""Lets a model call a function of this program, and answers with its result.

    pip install openai
    python examples/tools.py [MODEL]

`tool_choice="required"` forces the first call, so that a model of any size makes one: its arguments
match the schema, since a grammar allows nothing else. Leave it out with a model that knows tools.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from openai import OpenAI

URL = os.environ.get("SAX_URL", "http://127.0.0.1:8888")
CITIES = {"Oslo": -4, "Paris": 8, "Rome": 14}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_temperature",
            "description": "Return the temperature in a city, in degrees Celsius.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": list(CITIES)}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def get_temperature(city: str) -> str:
    return f"{CITIES[city]} degrees"


def main(model: str) -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("SAX_TOKEN", "none"))
    messages: list[Any] = [{"role": "user", "content": "How warm is it in Oslo?"}]
    asked = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    answer = asked.choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    for call in answer.tool_calls or []:
        if call.type != "function":
            continue
        arguments = json.loads(call.function.arguments)
        result = get_temperature(**arguments)
        print(f"{call.function.name}({arguments}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    told = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=TOOLS,
        tool_choice="none",
        temperature=0,
        max_tokens=48,
    )
    print(told.choices[0].message.content)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
