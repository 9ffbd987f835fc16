"""The `plan` command: shows whether a model fits a TPU slice and how fast it would be.

Runs `model_server.plan` in its own process: the SDK does not import jax.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sax.cli.computing import compute

_MODULE = "model_server.plan"

# Shared with `sax k8s render`, which plans too.
Chip = Annotated[str | None, typer.Option(help="Chip for --topology auto (default: v5e).")]
ModelPath = Annotated[
    str | None, typer.Option(help="Model path to use instead of the one in config.json.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "--override", metavar="KEY=JSON", help="Override as for `sax publish`; repeatable."
    ),
]


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A registered model path, a checkpoint (GGUF, Hugging Face folder, Orbax, also at "
            "gs:// or s3://), a config.json, or a well-known name such as meta-llama/Llama-3-70B.",
        ),
    ],
    topology: Annotated[
        str,
        typer.Option(
            metavar="SLICE", help='TPU slice, e.g. v5e:4x8; "auto" picks the smallest that fits.'
        ),
    ],
    chip: Chip = None,
    model_path: ModelPath = None,
    override: Overrides = None,
    slots: Annotated[int | None, typer.Option(help="The server's --slots.")] = None,
    page_size: Annotated[
        int | None, typer.Option("--page-size", "--page_size", help="The server's --page_size.")
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option("--max-context", "--max_context", help="The server's --max_context."),
    ] = None,
    kv_cache_bytes: Annotated[
        int | None,
        typer.Option("--kv-cache-bytes", "--kv_cache_bytes", help="The server's --kv_cache_bytes."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Cached tokens per sequence to predict speeds for.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Compile all layers instead of extrapolating from a few."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE.svg", help="Write a plot of the roofline.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the values for Kubernetes manifests.")
    ] = None,
    emit: Annotated[
        str | None,
        typer.Option(metavar="kubernetes", help="Print the values instead of the table."),
    ] = None,
) -> None:
    """Plan a model for a TPU slice.

    Compiles the model for real, without a TPU, weights or a server. Shows what each chip holds and
    moves, how many KV pages fit, and predicted tokens per second and time to first token. Needs the
    TPU compiler: pip install libtpu. If the model does not fit, the report names the flag or
    override to change. Exit status: 0 fits, 1 does not fit, 2 bad arguments.

    \b
    Examples:
      sax plan lm_cloud.LmCloudSpmd175B32Test --topology v5e:4x8
      sax plan meta-llama/Llama-3-70B --topology auto --chip v6e
      sax plan meta-llama/Llama-3-70B --topology v5e:4x4 --set QUANTIZE='"int8"' --slots 64
      sax plan ./my-finetune --topology v5e:2x2 --json
      sax plan google/gemma-2-27b --topology v6e:2x4 --plot roof.svg --values values.yaml
    """
    options = {
        "--topology": topology,
        "--chip": chip,
        "--model-path": model_path,
        "--slots": slots,
        "--page_size": page_size,
        "--max_context": max_context,
        "--kv_cache_bytes": kv_cache_bytes,
        "--context": context,
        "--plot": plot,
        "--values": values,
        "--emit": emit,
    }
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    given += [f"--set={pair}" for pair in override or ()]
    given += [name for name, asked in (("--full", full), ("--json", as_json)) if asked]
    # Keep jax from looking for accelerators: a plan needs none.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    raise compute("plan", _MODULE, [*given, "--", model], environment)
