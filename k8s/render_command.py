"""The `k8s render` command: plans a model and renders its Kubernetes manifests.

Runs `model_server.plan` in its own process, as `sax plan` does, and renders with `k8s.render`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from k8s.pathways_flags import (
    ComponentFlags,
    Components,
    ComponentVariables,
    DeploymentMode,
    Directory,
    ElasticSlices,
    MaxRestarts,
    MaxSliceRestarts,
    MetricsCollection,
    OurComponents,
    Slices,
    TrustNetwork,
    Version,
    WorkerGraceSeconds,
    WorkerNodeSelector,
    WorkerPriorityClass,
    pathways_options,
)
from sax.command import (
    WRONG,
    Chip,
    CommandResult,
    MaxContext,
    ModelPath,
    Overrides,
    Slots,
    fail,
    parse_overrides,
    say,
    tokens_of,
)
from sax.errors import InvalidRequest, MemoryPlanError
from sax.names import CellId, ModelId

if TYPE_CHECKING:
    from k8s.render.order import Order, Planned, SlicePlacement
    from k8s.render.rendering import Rendered

_MODULE = "model_server.plan"
_AUTO = "auto"
_DOES_NOT_FIT = 1
_OURS = "# Made by sax "


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="As for `sax plan`: a registered model path, a checkpoint, a config.json, or "
        "a well-known name such as meta-llama/Llama-3-70B.",
    ),
]
SliceName = Annotated[
    str,
    typer.Option(
        metavar="SLICE",
        help='TPU slice per replica, e.g. v5e:4x8; "auto" picks the smallest that fits.',
    ),
]
StateBucket = Annotated[
    str, typer.Option(metavar="gs://BUCKET", help="Bucket for the state of the cell.")
]
Replicas = Annotated[int, typer.Option(help="Number of replicas, each on its own slice.")]
Kind = Annotated[
    str,
    typer.Option(
        metavar="jobset|one-jobset|leaderworkerset|pathways|pathways-jobset",
        help="One JobSet per replica (recommended: a lost host restarts only its replica), "
        "one JobSet for all replicas as in Google's tutorial, a LeaderWorkerSet, or a "
        "PathwaysJob per replica: one model server for several slices. pathways-jobset is "
        "the JobSet that a PathwaysJob becomes, for clusters without its controller.",
    ),
]
Part = Annotated[
    str, typer.Option(metavar="control|servers|all", help="Part of the cell to render.")
]
SetName = Annotated[
    str, typer.Option(help="Name of the set; with one object per replica, -0, -1, ... follow.")
]
CellName = Annotated[str, typer.Option(metavar="/sax/CELL", help="Name of the cell.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; default: kubectl's.")
]
PublishAs = Annotated[
    str | None,
    typer.Option(metavar="/sax/CELL/NAME", help="Published name; default: derived from MODEL."),
]
Reserve = Annotated[bool, typer.Option("--reserve", help="Reserve these servers for this model.")]
ImageRegistry = Annotated[
    str | None,
    typer.Option(metavar="REGION-docker.pkg.dev/PROJECT/REPO", help="Registry of the sax images."),
]
Tag = Annotated[str | None, typer.Option(help="Tag of the sax images; default: this version.")]
ServiceAccountEmail = Annotated[
    str | None,
    typer.Option(
        metavar="NAME@PROJECT.iam.gserviceaccount.com",
        help="Google service account that the pods use for the bucket; default: their own "
        "identity.",
    ),
]
MachineType = Annotated[
    str | None, typer.Option(help="Machine type; default: the one the slice is planned with.")
]
FlexStart = Annotated[
    bool,
    typer.Option("--flex-start", help="Use flex-start nodes, created once capacity is free."),
]
Spot = Annotated[bool, typer.Option("--spot", help="Use spot nodes, which may go away.")]
NoPlan = Annotated[
    bool,
    typer.Option("--no-plan", help="Skip the check that the model fits; no TPU compiler needed."),
]
OutputDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write a folder for `kubectl apply -k` instead."),
]


def render(
    ctx: typer.Context,
    model: ModelName,
    topology: SliceName,
    bucket: StateBucket,
    replicas: Replicas = 1,
    chip: Chip = None,
    kind: Kind = "jobset",
    only: Part = "all",
    name: SetName = "sax-model-server-set",
    cell: CellName = "/sax/test",
    namespace: Namespace = None,
    publish_as: PublishAs = None,
    reserve: Reserve = False,
    image_registry: ImageRegistry = None,
    tag: Tag = None,
    service_account_email: ServiceAccountEmail = None,
    machine_type: MachineType = None,
    model_path: ModelPath = None,
    override: Overrides = None,
    slots: Slots = None,
    max_context: MaxContext = None,
    flex_start: FlexStart = False,
    spot: Spot = False,
    no_plan: NoPlan = False,
    slices: Slices = 1,
    elastic_slices: ElasticSlices = 0,
    max_slice_restarts: MaxSliceRestarts = None,
    max_restarts: MaxRestarts = 1_000_000,
    deployment_mode: DeploymentMode = "default",
    pathways_dir: Directory = None,
    pathways_version: Version = None,
    our_components: OurComponents = False,
    trust_network: TrustNetwork = False,
    component: Components = None,
    component_flag: ComponentFlags = None,
    component_env: ComponentVariables = None,
    worker_node_selector: WorkerNodeSelector = None,
    worker_grace_seconds: WorkerGraceSeconds = None,
    worker_priority_class: WorkerPriorityClass = None,
    enable_metrics_collection: MetricsCollection = False,
    output_dir: OutputDir = None,
) -> CommandResult:
    """Print Kubernetes manifests that serve a model on TPU slices of Kubernetes Engine.

    Plans the model first (`sax plan`) to derive hosts, chips, node labels and memory; if it does
    not fit, says what to change. The first lines of the output say what the cluster needs and how
    to publish the model afterwards. The same arguments give the same bytes. Exit status: 0 done,
    1 does not fit, 2 bad arguments.

    \b
    Examples:
      sax k8s render lm_cloud.LmCloudSpmd175B32Test --topology v5e:4x8 --replicas 2 --bucket gs://B
      sax k8s render meta-llama/Llama-3-70B --topology auto --chip v6e --bucket gs://B -n prod
      sax k8s render gs://B/gemma --topology v5e:2x4 --bucket gs://B --set QUANTIZE='"int8"'
      sax k8s render llama --topology v5e:2x2 --bucket gs://B --no-plan --output-dir deploy
      sax k8s render llama --topology v5e:2x2 --bucket gs://B --no-plan --only control
      sax k8s render llama --topology v5e:4x8 --bucket gs://B --kind pathways --slices 2 \\
        --elastic-slices 1 --max-slice-restarts 4 --our-components --trust-network
    """
    try:
        order = _order(ctx, overrides=parse_overrides(override or ()))
        if chip is not None and topology != _AUTO:
            raise InvalidRequest("--chip goes with --topology auto", param="chip")
        placed = _place(order, topology, chip, machine_type, no_plan)
        return _written(_made(order, placed, _command(ctx)), output_dir)
    except MemoryPlanError as error:
        fail(error, _DOES_NOT_FIT)
    except InvalidRequest as error:
        fail(error, WRONG)


def _order(ctx: typer.Context, overrides: Mapping[str, str]) -> Order:
    from k8s.render.bucket import StorageBucket
    from k8s.render.image import ImageSource
    from k8s.render.order import Order

    given = ctx.params
    text = given["publish_as"]
    same = ("model", "replicas", "kind", "name", "namespace", "service_account_email")
    same += ("model_path", "slots", "flex_start", "spot")
    return Order(
        bucket=StorageBucket.parse(given["bucket"]),
        part=given["only"],
        cell=_cell(given["cell"]),
        model_id=None if text is None else ModelId.parse(text),
        is_reserved=given["reserve"],
        max_context=tokens_of(given["max_context"]),
        images=ImageSource(given["image_registry"], given["tag"]),
        overrides=overrides,
        pathways=pathways_options(given),
        **{name: given[name] for name in same},
    )


def _cell(text: str) -> CellId:
    return CellId.parse(text if text.startswith("/") else f"/sax/{text}")


def _command(ctx: typer.Context) -> str:
    """Rebuild the command line: options in their declared order, without defaults.

    Leaves out --output-dir too, so that the same manifests always name the same command.
    """
    options: list[str] = []
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.param_type_name == "argument" or param.name == "output_dir":
            continue
        if value in (None, False, [], ()) or value == param.default:
            continue
        flag = param.opts[0]
        several = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
        options += [flag if each is True else f"{flag}={each}" for each in several]
    model = ctx.params["model"]
    return shlex.join(["sax", "k8s", "render", *options, *["--"] * model.startswith("-"), model])


def _place(
    order: Order, topology: str, chip: str | None, machine_type: str | None, no_plan: bool
) -> SlicePlacement:
    """Choose the slice, by planning if asked to. Raises InvalidRequest, MemoryPlanError."""
    from k8s.render.order import SlicePlacement
    from sax.slices import slice_of

    if topology != _AUTO:  # report bad names before spending minutes on the plan
        order.check_slice(slice_of(topology, machine_type))
    elif no_plan:
        raise InvalidRequest(
            "--topology auto needs a plan: name a slice, e.g. v5e:4x8, or drop --no-plan",
            param="topology",
        )
    if no_plan and order.part != "control":
        _check_model(order)
    if no_plan or order.part == "control":
        return SlicePlacement(slice_of(topology, machine_type))
    planned = _planned(order, topology, chip)
    return SlicePlacement(slice_of(planned.topology, machine_type), planned)


def _check_model(order: Order) -> None:
    """Check what a plan would, without jax. Raises InvalidRequest naming an override."""
    from k8s.render.publication import publication_of
    from sax.overrides.known_paths import check_names, unknown_path

    published = publication_of(order, None)
    check_names(published.model_path, published.overrides)
    if note := unknown_path(published.model_path):
        say(f"sax: {note}")


def _planned(order: Order, topology: str, chip: str | None) -> Planned:
    """Run the planner, whose progress goes to stderr. Raises InvalidRequest."""
    from k8s.render.order import read_plan

    options = {
        "--topology": topology,
        "--chip": chip,
        "--model-path": order.model_path,
        "--slots": order.slots,
        "--max_context": order.max_context,
    }
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    given += [f"--set={key}={value}" for key, value in order.overrides.items()]
    command = [sys.executable, "-m", _MODULE, *given, "--json", "--", order.model]
    # Keep jax from looking for accelerators: a plan needs none.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode == WRONG:
        why = json.loads(done.stdout)["error"]["text"]
        raise InvalidRequest(f"{why}; --no-plan renders without a plan")
    return read_plan(done.stdout)


def _made(order: Order, placed: SlicePlacement, command: str) -> Rendered:
    from k8s.render.rendering import render

    return render(order, placed, command)


def _written(made: Rendered, folder: Path | None) -> CommandResult:
    """Return the manifests, or write them into a folder. Raises InvalidRequest."""
    files = made.as_files()
    if folder is None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(made.objects)}
        return CommandResult(listed, lambda: sys.stdout.write(made.as_text()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if strange := _not_ours(folder, files):
            raise InvalidRequest(
                f"{strange} exists and was not written by this command: choose another "
                "--output-dir",
                param="output_dir",
            )
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"--output-dir {folder}: {exc.strerror}", param="output_dir") from exc
    apply = f"kubectl apply --server-side -k {folder}"
    told = f"wrote {', '.join(files)} to {folder}; apply: {apply}"
    return CommandResult({"folder": str(folder), "wrote": [*files]}, lambda: say(told))


def _not_ours(folder: Path, names: Iterable[str]) -> Path | None:
    """Return a file that would be overwritten but was not written by this command."""
    there = (folder / name for name in names if (folder / name).exists())
    return next((file for file in there if not _is_ours(file)), None)


def _is_ours(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as text:
        return text.read(len(_OURS)) == _OURS
