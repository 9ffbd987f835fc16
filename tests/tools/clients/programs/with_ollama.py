"""ollama: Ollama's own client for Python."""

import os

import ollama

PACKAGE = "ollama"
_MODEL = os.environ["SAX_CLIENTS_MODEL"]
_CLIENT = ollama.Client(host=os.environ["SAX_CLIENTS_URL"])
_ASKED = [{"role": "user", "content": "What is the capital of France?"}]
_OPTIONS = {"temperature": 0, "num_predict": 24}


def chat() -> None:
    """`chat`"""
    made = _CLIENT.chat(_MODEL, _ASKED, options=_OPTIONS)
    assert "Paris" in made.message.content
    assert made.done


def stream() -> None:
    """`chat` streamed: the parts add up to the whole"""
    whole = _CLIENT.chat(_MODEL, _ASKED, options=_OPTIONS).message.content
    parts = _CLIENT.chat(_MODEL, _ASKED, options=_OPTIONS, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole


def generate() -> None:
    """`generate`, whole and streamed"""
    whole = _CLIENT.generate(_MODEL, _ASKED[0]["content"], options=_OPTIONS).response
    parts = _CLIENT.generate(_MODEL, _ASKED[0]["content"], options=_OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == whole


def tags() -> None:
    """`list`"""
    names = [str(each.model) for each in _CLIENT.list().models]
    assert any(_MODEL.rpartition("/")[2] in name for name in names), names


def errors() -> None:
    """`ResponseError` for an unknown model"""
    try:
        _CLIENT.chat("none", _ASKED)
    except ollama.ResponseError as error:
        assert error.status_code == 404
    else:
        raise AssertionError("an unknown model was not refused")
