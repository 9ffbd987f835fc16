"""langchain-openai: chat models of LangChain."""

import asyncio
import os

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

PACKAGE = "langchain-openai"
_URL = os.environ["SAX_CLIENTS_URL"] + "/v1"
_QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=16)
    millions: int = Field(ge=0, le=99)


@tool
def _get_weather(city: str, days: int) -> str:
    """Forecast the weather of a city."""
    return f"{city}: sunny for {days} days"


def _chat(model: str = "SAX_CLIENTS_MODEL", **fields: object) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=_URL,
        api_key="any",
        model=os.environ[model],
        temperature=0,
        max_tokens=100,
        max_retries=0,
        **fields,
    )


def chat() -> None:
    """`ChatOpenAI.invoke`, `stream`, `ainvoke`, `batch`"""
    model = _chat()
    whole = model.invoke(_QUESTION)
    assert "Paris" in whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(part.content for part in model.stream(_QUESTION)) == whole.content
    assert asyncio.run(model.ainvoke(_QUESTION)).content == whole.content
    assert all("Paris" in each.content for each in model.batch([_QUESTION] * 3))


def completion() -> None:
    """`OpenAI.invoke`"""
    model = OpenAI(
        base_url=_URL, api_key="any", model=os.environ["SAX_CLIENTS_MODEL"], temperature=0,
        max_tokens=8,
    )  # fmt: skip
    assert "Paris" in model.invoke("The capital of France is")


def tools() -> None:
    """`bind_tools`, a forced call, and the answer to its result"""
    model = _chat("SAX_CLIENTS_TOOLS_MODEL")
    asked = HumanMessage("What is the weather in Oslo in the next 3 days?")
    forced = model.bind_tools([_get_weather], tool_choice="_get_weather", strict=True)
    called = forced.invoke([asked])
    (call,) = called.tool_calls
    assert set(call["args"]) == {"city", "days"}, call
    told = ToolMessage(_get_weather.invoke(call["args"]), tool_call_id=call["id"])
    answer = model.bind_tools([_get_weather], tool_choice="none").invoke([asked, called, told])
    assert isinstance(answer, AIMessage)
    assert answer.content


def streamed_tools() -> None:
    """`bind_tools` with a required call, streamed"""
    model = _chat("SAX_CLIENTS_TOOLS_MODEL").bind_tools([_get_weather], tool_choice="required")
    whole = None
    for part in model.stream("What is the weather in Oslo in the next 3 days?"):
        whole = part if whole is None else whole + part
    assert [call["name"] for call in whole.tool_calls] == ["_get_weather"]


def structured() -> None:
    """`with_structured_output` of a pydantic model by `json_schema`"""
    made = _chat().with_structured_output(City, method="json_schema").invoke(_QUESTION)
    assert isinstance(made, City)


def structured_by_call() -> None:
    """`with_structured_output` of a pydantic model by `function_calling`"""
    model = _chat("SAX_CLIENTS_TOOLS_MODEL")
    made = model.with_structured_output(City, method="function_calling").invoke(_QUESTION)
    assert isinstance(made, City)


def json_mode() -> None:
    """`with_structured_output` by `json_mode`"""
    asked = "Answer in JSON with the key name, and the capital of France as its value."
    made = _chat().with_structured_output(None, method="json_mode").invoke(asked)
    assert isinstance(made, dict)
