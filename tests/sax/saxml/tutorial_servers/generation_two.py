"""The later HTTP server of Saxml's tutorials as it behaves, on FastAPI.

Four extra inputs are sent with every query that names none, unless extra_inputs is null; every
exception is 500 with its text. Imports by Saxml's own path.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Response
from pydantic import BaseModel
from saxml.client.python import sax  # type: ignore[import-not-found]

Value = TypeVar("Value")


class ExtraInputs(BaseModel):
    temperature: float = 0.5
    per_example_max_decode_steps: int = 128
    per_example_top_k: int = 200
    per_example_top_p: float = 0.95


class Query(BaseModel):
    model: str
    query: str
    extra_inputs: ExtraInputs | None = ExtraInputs()


class Publication(BaseModel):
    model: str
    model_path: str
    checkpoint: str
    replicas: int
    overrides: str = ""


class Indented(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, indent=4).encode()


app = FastAPI(default_response_class=Indented)
pool = ThreadPoolExecutor(1000)


async def guarded(call: Callable[[], Value]) -> Value:
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, call)
    except Exception as error:
        raise HTTPException(500, str(error)) from error


@app.get("/")
async def root() -> Any:
    return {"message": "HTTP Server for SAX Client"}


@app.get("/listcell")
async def list_cell(model: Annotated[str, Body(embed=True)]) -> Any:
    detail = await guarded(lambda: sax.ListDetail(model))
    return {
        "model": model,
        "model_path": detail.model,
        "checkpoint": detail.ckpt,
        "max_replicas": detail.max_replicas,
        "active_replicas": detail.active_replicas,
    }


@app.get("/listall")
async def list_all(sax_cell: Annotated[str, Body(embed=True)]) -> Any:
    return await guarded(lambda: sax.ListAll(sax_cell))


@app.post("/publish")
async def publish(asked: Publication) -> Any:
    overrides = dict(pair.split("=", 1) for pair in asked.overrides.split())
    words = (asked.model, asked.model_path, asked.checkpoint, asked.replicas)
    await guarded(lambda: sax.Publish(*words, overrides=overrides))
    return asked.model_dump(exclude={"overrides"}) | ({"overrides": overrides} if overrides else {})


@app.put("/update")
async def update(asked: Publication) -> Any:
    words = (asked.model, asked.model_path, asked.checkpoint, asked.replicas)
    await guarded(lambda: sax.Update(*words))
    return asked.model_dump(exclude={"overrides"})


@app.post("/unpublish")
async def unpublish(model: Annotated[str, Body(embed=True)]) -> Any:
    await guarded(lambda: sax.Unpublish(model))
    return {"model": model}


@app.post("/generate")
async def generate(asked: Query) -> Any:
    options = sax.ModelOptions()
    if asked.extra_inputs is not None:
        for key, value in asked.extra_inputs.model_dump().items():
            options.SetExtraInput(key, value)

    def ask() -> Any:
        sax.ListDetail(asked.model)
        return sax.Model(asked.model).LM().Generate(asked.query, options)

    return await guarded(ask)


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])


main()
