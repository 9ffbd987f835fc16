"""The demo model answers as the reference implementation does, by every road."""

from __future__ import annotations

import signal
import subprocess
import sys

import openai

from tests.demo_model import ROOT
from tests.end_to_end.cell import SMOLLM2, Cell

FRANCE = "What is the capital of France?"


def client(cell: Cell) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cell.url}/v1", api_key="none", max_retries=0)


def test_the_openai_client_streams_a_chat_piece_by_piece(served: Cell) -> None:
    with client(served) as sdk:
        stream = sdk.chat.completions.create(
            model=SMOLLM2,
            messages=[{"role": "user", "content": FRANCE}],
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    usage = chunks[-1].usage
    assert "Paris" in "".join(pieces)
    assert usage is not None
    assert usage.completion_tokens > 1
    assert sum(bool(piece) for piece in pieces) > 1  # the first token does not wait for others
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] in ("stop", "length")


def test_a_chat_without_streaming_gives_the_same_text(served: Cell) -> None:
    with client(served) as sdk:
        arguments = {"model": SMOLLM2, "temperature": 0, "max_tokens": 24}
        messages = [{"role": "user", "content": FRANCE}]
        whole = sdk.chat.completions.create(**arguments, messages=messages)  # type: ignore[call-overload]
        stream = sdk.chat.completions.create(**arguments, messages=messages, stream=True)  # type: ignore[call-overload]
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == whole.choices[0].message.content


def test_a_model_may_be_named_by_its_last_part(served: Cell) -> None:
    with client(served) as sdk:
        names = [model.id for model in sdk.models.list()]
        short = sdk.completions.create(model="smollm2", prompt="The sky is", max_tokens=4)
    assert SMOLLM2 in names
    assert short.choices[0].text


def test_the_same_seed_gives_the_same_text(served: Cell) -> None:
    fields = {"temperature": 1.0, "seed": 11, "max_tokens": 12}
    first = served.complete("Once upon a time", **fields).json()["choices"][0]["text"]
    again = served.complete("Once upon a time", **fields).json()["choices"][0]["text"]
    assert first == again


def test_an_answer_ends_before_a_stop_text(served: Cell) -> None:
    whole = served.text("Count: one, two, three, four,", max_tokens=16)
    stop = whole.split()[2]
    cut = served.text("Count: one, two, three, four,", max_tokens=16, stop=[stop])
    assert cut == whole[: whole.index(stop)]


def test_the_command_line_generates_and_chats(served: Cell) -> None:
    generated = served.sax("generate", SMOLLM2, "The capital of France is", "--max-tokens", "8")
    assert generated.returncode == 0, generated.stderr
    assert generated.stdout == served.text("The capital of France is") + "\n"
    from_stdin = served.sax(
        "generate", SMOLLM2, "-", "--max-tokens", "8", stdin="The capital of France is"
    )
    assert from_stdin.stdout == generated.stdout
    asked = served.sax("chat", SMOLLM2, FRANCE, "--no-stream")
    assert "Paris" in asked.stdout
    conversation = served.sax("chat", SMOLLM2, stdin=f"{FRANCE}\nAnd of Italy?\n")
    assert conversation.returncode == 0, conversation.stderr
    assert "Paris" in conversation.stdout
    assert "Rome" in conversation.stdout


def test_watch_prints_the_ready_replicas_until_ctrl_c(served: Cell) -> None:
    admin = f"--admin={served.plan.admin_address}"
    words = [sys.executable, "-m", "sax.cli", admin, "watch", SMOLLM2]
    watch = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert watch.stdout is not None
    try:
        assert watch.stdout.readline() == "Reset\n"
        assert watch.stdout.readline() == f"+ 127.0.0.1:{served.plan.model_port}\n"
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 130
    finally:
        watch.kill()
        watch.wait()
        watch.stdout.close()
