"""Plans a model for a TPU slice that need not be present.

    python -m model_server.plan MODEL --topology v5e:4x8 [flags]

Compiles with libtpu on the CPU; reads headers and configurations but no weights. Exit status: 0
fits, 1 does not fit, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from model_server.config import ModelServerConfig
from model_server.plan.model_plan import ModelPlan
from model_server.plan.output.kubernetes import kubernetes_values
from model_server.plan.output.plot import roofline_svg
from model_server.plan.output.terminal import progress_on, show
from model_server.plan.planner import AUTO, PlanRequest, make_plan
from model_server.plan.slices import parse_chip, parse_slice
from sax.cli.publication import parse_overrides
from sax.errors import InvalidRequest, SaxError
from sax.slices import slice_of

_FITS, _DOES_NOT_FIT, _BAD_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # planning must not occupy an accelerator
    try:
        request = _request(options)
        _check_outputs(options)
        with progress_on(sys.stderr) as report:
            made = make_plan(request, report)
        _write(made, options)
    except (OSError, SaxError) as exc:
        sys.stderr.write(f"{exc}\n")
        return _BAD_INPUT
    return _FITS if made.fits else _DOES_NOT_FIT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model_server.plan", description="Plans a model for a TPU slice."
    )
    parser.add_argument("model", help="model path, checkpoint, config.json or well-known name")
    parser.add_argument(
        "--topology", required=True, help="slice, e.g. v5e:4x8; auto picks the smallest that fits"
    )
    parser.add_argument("--chip", help="chip whose slices --topology auto tries (v5e)")
    parser.add_argument("--model-path", help="of a checkpoint, if not as in its config.json")
    parser.add_argument("--set", "--override", action="append", default=[], metavar="KEY=JSON")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--page_size", "--page-size", type=int)
    parser.add_argument("--max_context", "--max-context", type=int)
    parser.add_argument("--kv_cache_bytes", "--kv-cache-bytes", type=int)
    parser.add_argument("--memory_limit_bytes", "--memory-limit-bytes", type=int)
    parser.add_argument("--context", type=int, help="cached tokens per sequence, for speeds")
    parser.add_argument("--full", action="store_true", help="compile all layers of every bucket")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE.svg", help="write the roofline as a picture")
    parser.add_argument("--values", metavar="FILE", help="write the Kubernetes values")
    parser.add_argument(
        "--emit", choices=["kubernetes"], help="print the values instead of the table"
    )
    return parser


def _request(options: argparse.Namespace) -> PlanRequest:
    if options.chip is not None and options.topology != AUTO:
        raise InvalidRequest("--chip goes with --topology auto", param="chip")
    if options.context is not None and options.context < 1:
        raise InvalidRequest(f"--context is {options.context}: give a number above 0")
    return PlanRequest(
        model=options.model,
        topology=options.topology,
        config=_config(options),
        overrides=parse_overrides(options.set),
        path=options.model_path,
        chips=(parse_chip(options.chip or "v5e").name,),
        context=options.context,
        is_full=options.full,
    )


def _config(options: argparse.Namespace) -> ModelServerConfig:
    names = ("slots", "page_size", "max_context", "kv_cache_bytes", "memory_limit_bytes")
    given: dict[str, Any] = {name: getattr(options, name) for name in names}
    try:
        return ModelServerConfig(**{name: v for name, v in given.items() if v is not None})
    except ValueError as exc:
        raise InvalidRequest(str(exc)) from exc


def _check_outputs(options: argparse.Namespace) -> None:
    """Fail on outputs that cannot be written before minutes are spent on compiling."""
    if options.plot and Path(options.plot).suffix.lower() != ".svg":
        raise InvalidRequest(f"--plot {options.plot}: the picture is an SVG; name it FILE.svg")
    if options.json and options.emit:
        raise InvalidRequest("--json and --emit exclude each other: leave one out")
    if (options.values or options.emit) and options.topology != AUTO:
        slice_of(str(parse_slice(options.topology)))  # Kubernetes Engine must offer the slice
    for path in filter(None, (options.plot, options.values)):
        folder = Path(path).resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InvalidRequest(f"{path} cannot be written: {folder} is not a writable folder")


def _write(made: ModelPlan, options: argparse.Namespace) -> None:
    if options.plot and made.buckets:
        Path(options.plot).write_text(roofline_svg(made))
    if options.values and made.fits:
        Path(options.values).write_text(kubernetes_values(made.slice, made.model))
    if options.json:
        sys.stdout.write(made.as_json() + "\n")
    elif options.emit and made.fits:
        sys.stdout.write(kubernetes_values(made.slice, made.model))
    else:
        show(made)


if __name__ == "__main__":
    sys.exit(main())
