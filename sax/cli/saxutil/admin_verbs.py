"""saxutil's commands for operators: publish, update, list and watch models, and their ACLs."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable

from sax.auth.acl import ALL_METHODS, check_method
from sax.cli.publication import parse_publication, warn_of
from sax.cli.saxutil.go_flags import number_flag, switch, text_flag
from sax.cli.saxutil.unsupported import CREATE, DELETE, unsupported
from sax.cli.saxutil.verb import SaxutilCall, SaxutilVerb, show
from sax.client.location import cells_below
from sax.command import printable
from sax.config import ROOT_VARIABLE
from sax.errors import InvalidName, InvalidRequest, UnsupportedParameter
from sax.names import CellId, ModelId
from sax.proto.modelet_pb2 import ExportRequest, SaveRequest
from sax.types import PublishedModel, ReplicaStatus, ServableStatus
from sax.wire.services import EXPORT, SAVE

_ALL = "all"
_SLASHES_OF_A_CELL = 2  # /sax/<cell>; a model has one more
_MODEL_HEADINGS = (
    "Model",
    "Model Path",
    "Checkpoint Path",
    "# of Replicas",
    "(Selected) ReplicaAddress",
    "Methods",
)


def publish(call: SaxutilCall) -> None:
    wanted = parse_publication(call.words)
    with call.client(wanted.model_id) as client:
        client.publish(
            wanted.model_id,
            wanted.model_path,
            wanted.checkpoint,
            wanted.replicas,
            wanted.overrides,
            timeout_s=call.timeout_s,
        )
    warn_of(wanted)


def unpublish(call: SaxutilCall) -> None:
    model_id = _model_id(call)
    with call.client(model_id) as client:
        client.unpublish(model_id, timeout_s=call.timeout_s)


def update(call: SaxutilCall) -> None:
    model_id, replicas = _model_id(call), call.flag("replicas")
    if replicas < 0:
        raise InvalidRequest("say how many: write -replicas=N, 0 or more", param="replicas")
    with call.client(model_id) as client:
        client.update(model_id, replicas=replicas, timeout_s=call.timeout_s)


def update_checkpoint(call: SaxutilCall) -> None:
    model_id, checkpoint = _model_id(call), call.words[1]
    with call.client(model_id) as client:
        client.update(model_id, checkpoint=checkpoint, timeout_s=call.timeout_s)


def ls(call: SaxutilCall) -> None:
    """List cells, the models of a cell, or one model."""
    name = call.words[0].rstrip("/")
    if name == "/sax":
        rows = [(str(number), cell) for number, cell in enumerate(_cells(call))]
        show(("#", "Cell"), rows, as_csv=call.flag("csv"))
        return
    with call.client(name) as client:
        if name.count("/") == _SLASHES_OF_A_CELL:
            cell = str(CellId.parse(name))
            _show_cell(call, client.list_all(cell, timeout_s=call.timeout_s))
        else:
            _show_model(call, client.list(_model_id(call), timeout_s=call.timeout_s))


def _cells(call: SaxutilCall) -> list[str]:
    """Return the cells of the root; without one, the admin server's own, if it has a model."""
    if root := call.root or os.environ.get(ROOT_VARIABLE):
        return [str(CellId(cell)) for cell in cells_below(root)]
    with call.client() as client:
        models = client.list_all(timeout_s=call.timeout_s)
    return sorted({str(ModelId.parse(model.spec.model_id).cell_id) for model in models})


def _show_cell(call: SaxutilCall, models: list[PublishedModel]) -> None:
    detailed = "details" in call.flags.given and call.flag("details")
    rows: list[tuple[str, ...]] = []
    for number, model in enumerate(sorted(models, key=lambda each: each.spec.model_id)):
        name = ModelId.parse(model.spec.model_id).model
        rows.append((str(number), name, *([", ".join(model.methods)] if detailed else [])))
    headings = ("#", "Model ID", *(["Methods"] if detailed else []))
    show(headings, rows, as_csv=call.flag("csv"))


def _show_model(call: SaxutilCall, model: PublishedModel) -> None:
    as_csv = call.flag("csv")
    if not (call.flag("details") or call.flag("acls")):
        raise InvalidRequest("-details=false and -acls=false leave nothing to show: drop one")
    if call.flag("details"):
        show(_MODEL_HEADINGS, [_model_row(model)], as_csv=as_csv)
        _warn(model)
    if call.flag("acls"):
        show(("Method", "ACL"), sorted(_shown_acls(model).items()), as_csv=as_csv)


def _model_row(model: PublishedModel) -> tuple[str, ...]:
    spec = model.spec
    ready = [each.address for each in model.replicas if _is_ready(each)]
    return (
        ModelId.parse(spec.model_id).model,
        spec.model_path,
        spec.checkpoint,
        str(len(ready)),
        random.choice(ready) if ready else "",
        ", ".join(model.methods),
    )


def _warn(model: PublishedModel) -> None:
    """Print warnings beside the table, which programs read."""
    for warning in model.warnings:
        print(printable(f"warning: {warning}"), file=sys.stderr)


def _is_ready(replica: ReplicaStatus) -> bool:
    return replica.status is ServableStatus.LOADED


def getacl(call: SaxutilCall) -> None:
    if len(call.words) == 1 and call.words[0].count("/") == _SLASHES_OF_A_CELL:
        _show_cell_acl(call)
        return
    name = _guarded(call)
    with call.client(name) as client:
        model = client.list(name, timeout_s=call.timeout_s)
    if len(call.words) == 1:
        print(printable(model.spec.admin_acl or "No admin ACLs set for model."))
    elif call.words[1] == _ALL:
        for method, acl in sorted(_shown_acls(model).items()):
            print(printable(f"{method}: {acl}"))
    else:
        print(printable(_shown_acls(model).get(call.words[1], "No ACLs set for method.")))


def _show_cell_acl(call: SaxutilCall) -> None:
    with call.client(str(CellId.parse(call.words[0]))) as client:
        acl = client.cell_acl(timeout_s=call.timeout_s)
    print(printable(acl or "No admin ACLs set for cell."))


def _shown_acls(model: PublishedModel) -> dict[str, str]:
    """Return the ACLs by method; the one of all other methods is called "all"."""
    acls = {method: acl for method, acl in model.spec.acls.items() if acl}
    return {_ALL if method == ALL_METHODS else method: acl for method, acl in acls.items()}


def setacl(call: SaxutilCall) -> None:
    if len(call.words) == 2 and call.words[0].count("/") == _SLASHES_OF_A_CELL:
        with call.client(str(CellId.parse(call.words[0]))) as client:
            client.set_cell_acl(call.words[1], timeout_s=call.timeout_s)
        return
    name, acl = _guarded(call), call.words[-1]
    with call.client(name) as client:
        if len(call.words) == 2:
            client.update(name, admin_acl=acl, timeout_s=call.timeout_s)
            return
        method = call.words[1]
        method = ALL_METHODS if method == _ALL else check_method(method, "method")
        acls = client.list(name, timeout_s=call.timeout_s).spec.acls
        client.update(name, acls={**acls, method: acl}, timeout_s=call.timeout_s)


def watch(call: SaxutilCall) -> None:
    """Print the changes of a model's ready replicas, without a time limit."""
    model_id = _model_id(call)
    with call.client(model_id) as client:
        for event in client.watch(model_id):
            print(event, flush=True)


def _refuse(words: str) -> Callable[[SaxutilCall], None]:
    def run(call: SaxutilCall) -> None:
        raise unsupported(words)

    return run


def _model_id(call: SaxutilCall) -> str:
    return str(ModelId.parse(call.words[0]))


def _guarded(call: SaxutilCall) -> str:
    """Return the model whose ACLs a command names. Raises UnsupportedParameter for a cell."""
    try:
        cell = CellId.parse(call.words[0])
    except InvalidName:
        return _model_id(call)
    raise UnsupportedParameter(
        f"{cell} is a cell, which has a list for operators only: name a model, or no method",
        param="cell",
    )


_LS_FLAGS = (
    switch("csv", "Print lines of values with commas between them."),
    switch("details", "Show details of a model; of a cell's models only if given.", default=True),
    switch("acls", "Show the ACLs of a model's methods.", default=True),
)
_PUBLICATION = "MODEL MODEL_PATH CHECKPOINT REPLICAS [KEY=JSON ...]"
_REPLICAS = (number_flag("replicas", "Number of replicas.", -1),)


# saxutil's commands that make a model's server write it to a folder there: save and export.

# Saxml's flags have values of its SavedModels; those mean that nothing was asked for.
_SEED, _SEVERAL_GPUS = "stateful", True
_SEEDS = {
    _SEED: ExportRequest.RNG_SEED_MODE_UNSPECIFIED,
    "stateless": ExportRequest.STATELESS,
    "fixed": ExportRequest.FIXED,
}


def save(call: SaxutilCall) -> None:
    """Write the model's checkpoint on the machine of one of its servers."""
    model_id, path = str(ModelId.parse(call.words[0])), call.words[1]
    request = SaveRequest(model_key=model_id, checkpoint_path=path)
    with call.client(model_id) as client:
        client.ask_service(model_id, SAVE, request, call.timeout_s)


def export(call: SaxutilCall) -> None:
    """Write programs of `jax.export` and the model's weights, likewise."""
    model_id, methods, path = str(ModelId.parse(call.words[0])), *call.words[1:]
    seed, signatures = call.flag("rng_seed_mode"), call.flag("signatures")
    if seed not in _SEEDS:
        raise InvalidRequest(
            f"-rng_seed_mode={seed}: write one of {', '.join(_SEEDS)}", param="rng_seed_mode"
        )
    request = ExportRequest(
        model_key=model_id,
        method_names=methods.split(","),
        signatures=signatures.split(",") if signatures else (),
        export_path=path,
        serialized_model_format=ExportRequest.JAX_EXPORT,
        rng_seed_mode=_SEEDS[seed],
    )
    with call.client(model_id) as client:
        client.ask_service(model_id, EXPORT, request, call.timeout_s)


_EXPORT_FLAGS = (
    text_flag("rng_seed_mode", "Seeds of a SavedModel; a program here has none.", _SEED),
    text_flag("signatures", "Signatures with commas between them, one a method."),
    switch("enable_gpu_multi_device_execution", "Has no meaning here.", default=_SEVERAL_GPUS),
)
VERBS = (
    SaxutilVerb("create", "Create a cell.", "CELL FS_ROOT ADMIN_ACL", _refuse(CREATE), 3, 3),
    SaxutilVerb("delete", "Delete a cell.", "CELL", _refuse(DELETE), 1, 1),
    SaxutilVerb(
        "ls", "List models.", "[FLAGS] /sax | /sax/CELL | /sax/CELL/MODEL", ls, 1, 1, _LS_FLAGS
    ),
    SaxutilVerb("publish", "Publish a model.", _PUBLICATION, publish, 4, None),
    SaxutilVerb(
        "update", "Change a model's replicas.", "-replicas=N MODEL", update, 1, 1, _REPLICAS
    ),
    SaxutilVerb(
        "update_checkpoint", "Change a model's checkpoint.", "MODEL CKPT", update_checkpoint, 2, 2
    ),
    SaxutilVerb("unpublish", "Unpublish a model.", "MODEL", unpublish, 1, 1),
    SaxutilVerb("getacl", "Show access lists.", "CELL | MODEL [all | METHOD]", getacl, 1, 2),
    SaxutilVerb("setacl", "Set an access list.", "CELL | MODEL [METHOD] ACL", setacl, 2, 3),
    SaxutilVerb("watch", "Watch a model's replicas.", "MODEL", watch, 1, 1),
    SaxutilVerb(
        "export", "Export a model.", "[FLAGS] MODEL METHOD,... PATH", export, 3, 3, _EXPORT_FLAGS
    ),
    SaxutilVerb("save", "Save a model.", "MODEL PATH", save, 2, 2),
)
