"""The commands of `sax` that need what a model server needs.

`plan`, `precompile`, `convert`, `quantize` and `inspect` compute; `pull`, `models` and `rm` fetch.

They import jax only once they run: `sax` loads this module at every start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from model_server.checkpoints.hub.commands import models, pull, rm
from model_server.kernels.cpu.shared_library import instruction_set, load
from model_server.plan.command import plan
from model_server.plan.precompile.command import precompile
from sax.command import (
    CheckpointSource,
    CommandResult,
    Overrides,
    check_installed,
    parse_overrides,
    read_file,
)
from sax.errors import InvalidRequest
from sax.finding import CHECKS, OK, WARNING, Finding
from sax.types import Progress

_WOULD_NOT_LOAD = 1
MaxShardSize = Annotated[
    str, typer.Option(metavar="SIZE", help="Maximum file size in a Hugging Face folder.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line (entry point of `sax.commands`)."""
    for command in (plan, precompile, convert, quantize, inspect, pull, models, rm):
        app.command()(command)


def kernels() -> Finding:
    """Find which kernels compute on this machine's processor. Starts no threads of theirs."""
    found = load()
    if found.library is not None:
        return Finding(OK, "kernels", f"native, for {instruction_set(found.library)}")
    return Finding(
        WARNING,
        "kernels",
        f"XLA's: {found.reason}",
        "models run, but slower; docs/explanation/cpu.md says how the native kernels are built",
    )


CHECKS["kernels"] = kernels


def convert(
    ctx: typer.Context,
    source: CheckpointSource,
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST", help="Output: NAME.gguf writes a GGUF file, other names a folder."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="huggingface, gguf or orbax; default: from the name of DST."
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16 or float16, for GGUF also q8_0 or q4_0; same loses nothing."
        ),
    ] = "same",
    max_shard_size: MaxShardSize = "5GB",
    model_path: Annotated[
        str | None, typer.Option(help="Saxml's class of a Pax checkpoint without a config.json.")
    ] = None,
    override: Overrides = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="LoRA adapter to write into the weights, as PEFT saved it."
        ),
    ] = None,
) -> CommandResult:
    """Convert a checkpoint to another format.

    Hugging Face folders, GGUF files and Orbax checkpoints can each become any other, and Pax
    checkpoints any of these: name the class that Saxml serves them as. A Hugging Face folder holds
    config.json, model.safetensors (or its shards) and tokenizer.json. An Orbax folder holds the
    same files, with the weights as Orbax arrays under the same names.

    \b
    Examples:
      sax convert SmolLM2-135M-Instruct.Q4_1.gguf ./smollm2
      sax convert SmolLM2-135M-Instruct.Q4_1.gguf ./smollm2 --dtype bfloat16
      sax convert ./smollm2 smollm2.gguf
      sax convert ./smollm2 ./mine --adapter ./adapter
      sax convert ./smollm2 ./smollm2-orbax --to orbax
      sax convert gs://bucket/checkpoints/100 ./mine --max-shard-size 2GB
      sax convert ./checkpoint_00000000 ./llama --model-path pax.lm.params.lm_cloud.LLaMA7B
    """
    check_installed(ctx)
    from model_server.plan.checkpoint import convert as converting

    _check_choice("--to", to, converting.FORMATS)
    _check_choice("--dtype", dtype, converting.NUMBER_FORMATS)
    with _bars() as report:
        converting.convert(
            source,
            destination,
            to=to,
            dtype=dtype,
            max_shard=converting.size_of(max_shard_size),
            report=report,
            model_path=model_path,
            overrides=parse_overrides(override or ()),
            adapter=adapter,
        )
    return CommandResult({"source": source, "destination": destination}, lambda: None)


def quantize(
    ctx: typer.Context,
    source: CheckpointSource,
    destination: Annotated[str, typer.Argument(metavar="DST", help="Output: a new folder.")],
    text: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Text like that which the model is to work on; - reads stdin."
        ),
    ] = None,
    bits: Annotated[int, typer.Option(help="4 or 8.")] = 4,
    group: Annotated[
        int, typer.Option(metavar="COLUMNS", help="Columns that share a scale; 0: the whole row.")
    ] = 0,
    method: Annotated[
        str,
        typer.Option(
            help="gptq: later columns make up for earlier ones; importance: scales of least error "
            "for the text; nearest: no text."
        ),
    ] = "gptq",
    tokens: Annotated[int, typer.Option(help="Tokens of the text to read, at most.")] = 65536,
    dtype: Annotated[
        str, typer.Option(help="Of scales and of what stays unquantised: bfloat16 or float16.")
    ] = "bfloat16",
    max_shard_size: MaxShardSize = "5GB",
) -> CommandResult:
    """Write a checkpoint with weights of 4 or 8 bits, rounded for a text of yours.

    Every matrix but embeddings, heads and routers is rounded so that what the model makes of the
    text changes little, layer by layer: the largest layer is in memory, in float32. DST is a
    Hugging Face folder in the format pack-quantized of compressed-tensors, which transformers
    opens, too; publish it with QUANTIZE='"stored"'. The end of the text is held out: at last
    the command prints how far the result is from the source there. It computes on the processor.

    \b
    Examples:
      sax quantize ./smollm2 ./smollm2-int4 --text notes.txt
      sax quantize ./smollm2 ./smollm2-int4 --text notes.txt --group 64
      sax quantize SmolLM2-135M-Instruct.Q4_1.gguf ./int8 --bits 8 --method nearest
    """
    check_installed(ctx)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before jax
    from model_server.checkpoints.huggingface.packed_writer import PackedForm
    from model_server.plan.checkpoint.convert import size_of
    from model_server.plan.quantize.quantize import QuantizeRequest
    from model_server.plan.quantize.quantize import quantize as quantized

    asked = QuantizeRequest(
        source=source,
        destination=destination,
        text=None if text is None else _text_of(text),
        form=PackedForm(bits, group or None, dtype),
        method=method,
        tokens=tokens,
        max_shard=size_of(max_shard_size),
    )
    with _bars() as report:
        outcome = quantized(asked, report)
    return CommandResult(asdict(outcome), outcome.as_text())


def _text_of(file: str) -> str:
    """Read a text file. Raises InvalidRequest if it is not UTF-8."""
    try:
        return read_file(file).decode()
    except UnicodeDecodeError as exc:
        raise InvalidRequest(
            f"--text {file} is not UTF-8 ({exc.reason} at byte {exc.start}): convert it, for "
            "example with iconv"
        ) from exc


@contextmanager
def _bars() -> Iterator[Callable[[Progress], None]]:
    """Show the progress that is reported, on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        task = bars.add_task("reading", total=None)

        def report(progress: Progress) -> None:
            text = f"{progress.phase} {progress.unit}"
            bars.update(task, description=text, completed=progress.done, total=progress.total)

        yield report


def _check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise typer.BadParameter(f"{option} {value}: choose from {', '.join(choices)}")


def inspect(ctx: typer.Context, path: CheckpointSource) -> CommandResult:
    """Show what a checkpoint holds.

    Prints the model, parameters, number formats, tokenizer, chat template, the memory that the
    weights need, and everything that would prevent loading it. Reads no weights and needs no cell.
    Exit status: 0 it would load, 1 it would not.

    \b
    Examples:
      sax inspect SmolLM2-135M-Instruct.Q4_1.gguf
      sax inspect ./my-finetune
      sax inspect gs://bucket/checkpoints/100 --json
    """
    check_installed(ctx)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before jax: reading a file must not claim an accelerator
    from model_server.plan.checkpoint.inspect import inspect

    report = inspect(path)
    status = 0 if report.loads else _WOULD_NOT_LOAD
    return CommandResult(report.as_value(), report.as_text(), status)
