"""The command `sax plan`, also run as `python -m model_server.plan`.

Imports jax only once it runs: `sax` loads this module at every start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_server.plan.model_plan import Slice
from sax.command import (
    WRONG,
    Chip,
    CommandResult,
    MaxContext,
    ModelPath,
    Overrides,
    Slots,
    check_installed,
    fail,
    parse_overrides,
    tokens_of,
    wants_json,
)
from sax.errors import InvalidRequest, SaxError
from sax.format import on_one_line
from sax.slices import GENERATIONS, Machine, slice_of

if TYPE_CHECKING:
    from model_server.config import ModelServerConfig
    from model_server.plan.model_plan import ModelPlan

_DOES_NOT_FIT = 1
_SERVER_FLAGS = ("slots", "page_size", "max_context", "kv_cache_bytes", "memory_limit_bytes")


class Emit(StrEnum):
    """Output printed in place of the table."""

    KUBERNETES = "kubernetes"


def _server_flag(name: str) -> Any:
    spelled = (f"--{name.replace('_', '-')}", f"--{name}")
    return typer.Option(*spelled, help=f"--{name} of the model servers.")


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A registered model path, a checkpoint (GGUF, Hugging Face folder, Orbax, also at "
        "gs:// or s3://), a config.json, or a well-known name such as meta-llama/Llama-3-70B.",
    ),
]
SliceName = Annotated[
    str,
    typer.Option(
        metavar="SLICE", help='TPU slice, e.g. v5e:4x8; "auto" picks the smallest that fits.'
    ),
]
PageSize = Annotated[int | None, _server_flag("page_size")]
CacheBytes = Annotated[int | None, _server_flag("kv_cache_bytes")]
MemoryBytes = Annotated[int | None, _server_flag("memory_limit_bytes")]
CachedTokens = Annotated[
    int | None, typer.Option(help="Cached tokens per sequence to predict speeds for.")
]
Full = Annotated[
    bool, typer.Option("--full", help="Compile all layers instead of extrapolating from a few.")
]
PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE.svg", help="Write a plot of the roofline.")
]
ValuesFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the values for Kubernetes manifests.")
]
Emitted = Annotated[Emit | None, typer.Option(help="Print the values instead of the table.")]


def plan(
    ctx: typer.Context,
    model: ModelName,
    topology: SliceName,
    chip: Chip = None,
    model_path: ModelPath = None,
    override: Overrides = None,
    slots: Slots = None,
    page_size: PageSize = None,
    max_context: MaxContext = None,
    kv_cache_bytes: CacheBytes = None,
    memory_limit_bytes: MemoryBytes = None,
    context: CachedTokens = None,
    full: Full = False,
    plot: PlotFile = None,
    values: ValuesFile = None,
    emit: Emitted = None,
) -> CommandResult:
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
    check_installed(ctx)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before jax: a plan must not occupy an accelerator
    from model_server.plan import planner
    from model_server.plan.output.views import progress_on
    from model_server.plan.slices import parse_chip

    try:
        if chip is not None and topology != planner.AUTO:
            raise InvalidRequest("--chip goes with --topology auto", param="chip")
        if context is not None and context < 1:
            raise InvalidRequest(f"--context is {context}: give a number above 0")
        request = planner.PlanRequest(
            model=model,
            topology=topology,
            config=_config(ctx.params),
            overrides=parse_overrides(override or ()),
            path=model_path,
            chips=(parse_chip(chip or "v5e").name,),
            context=context,
            is_full=full,
        )
        outputs = PlanOutputs(emit, plot, values)
        outputs.check(None if topology == planner.AUTO else topology)
        with progress_on(sys.stderr) as report:
            made = planner.make_plan(request, report)
        return outputs.result(made)
    except (OSError, SaxError) as error:
        fail(error, WRONG)


def _config(options: Mapping[str, Any]) -> ModelServerConfig:
    from model_server.config import ModelServerConfig

    options = {**options, "max_context": tokens_of(options["max_context"])}
    given = {name: options[name] for name in _SERVER_FLAGS if options[name] is not None}
    try:
        return ModelServerConfig(**given)
    except ValueError as exc:
        raise InvalidRequest(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class PlanOutputs:
    """Destinations of a plan: stdout as a table, JSON or Kubernetes values, and files."""

    emit: Emit | None
    plot: Path | None
    values: Path | None

    def check(self, topology: str | None) -> None:
        """Fail early on outputs that cannot be written: compiling takes minutes.

        topology: None if the plan chooses the slice.
        """
        from model_server.plan.slices import parse_slice
        from sax.slices import slice_of

        if self.plot and self.plot.suffix.lower() != ".svg":
            raise InvalidRequest(f"--plot {self.plot}: the picture is an SVG; name it FILE.svg")
        if wants_json() and self.emit:
            raise InvalidRequest("--json and --emit exclude each other: leave one out")
        if (self.values or self.emit) and topology is not None:
            slice_of(str(parse_slice(topology)))  # Kubernetes Engine must offer the slice
        for path in filter(None, (self.plot, self.values)):
            _check_writable(path)

    def result(self, made: ModelPlan) -> CommandResult:
        """Write the files, and return the rest."""
        from model_server.plan.output.views import roofline_svg, show

        if self.plot and made.buckets:
            self.plot.write_text(roofline_svg(made))
        if self.values and made.fits:
            self.values.write_text(kubernetes_values(made.slice, made.model))
        text: str | Callable[[], object] = partial(show, made)
        if self.emit and made.fits:
            text = kubernetes_values(made.slice, made.model).removesuffix("\n")
        status = 0 if made.fits else _DOES_NOT_FIT
        return CommandResult(made.as_value(), text, status)


def _check_writable(path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidRequest(f"{path} cannot be written: {folder} is not a writable folder")


# Kubernetes values that give one replica its slice on Google Kubernetes Engine.
#
# `sax.slices` knows the machine types of each slice.


def kubernetes_values(where: Slice, model: str) -> str:
    """Return YAML with node selector, resources and counts.

    Raises InvalidRequest for chips that GKE lacks.
    """
    if where.chip not in GENERATIONS:
        raise InvalidRequest(
            f"Kubernetes Engine has no {where.chip}: plan for one of {', '.join(GENERATIONS)}",
            param="emit",
        )
    there = slice_of(where.topology, _machine_of(where).name)
    return "\n".join(
        [
            f"# One replica of {on_one_line(model)} on {where.topology}, by sax plan.",
            f"hosts: {there.hosts}",
            f"chipsPerHost: {there.chips_per_host}",
            f"machineType: {there.machine.name}",
            f"platformChip: {there.platform_chip}",
            f"platformTopology: {there.size}",
            "nodeSelector:",
            *(f"  {label}: {value}" for label, value in there.node_selector.items()),
            "resources:",
            "  limits:",
            f"    google.com/tpu: {there.chips_per_host}",
            "  requests:",
            f"    google.com/tpu: {there.chips_per_host}",
            "",
        ]
    )


def _machine_of(where: Slice) -> Machine:
    """Return the machine type with as many chips as the plan's hosts have."""
    machines = GENERATIONS[where.chip].machines
    found = [machine for machine in machines if machine.chips == where.chips_per_host]
    if not found:
        raise InvalidRequest(
            f"Kubernetes Engine has no machine with {where.chips_per_host} {where.chip} chips: "
            f"there are {', '.join(machine.name for machine in machines)}",
            param="emit",
        )
    return found[0]
