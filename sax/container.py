"""Entry point of the images: builds a role's flags from environment variables.

    python -m sax.container ROLE [FLAGS]

Execs `python -m ROLE ...`, so that the server itself is process 1 and receives the SIGTERM that
tells it to drain. FLAGS come last and override. The variables are those of Saxml's images. Imports
only the standard library and errors.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
from collections.abc import Mapping, Sequence

from sax.errors import InvalidRequest

ADMIN, MODEL, GATEWAY = ROLES = ("admin_server", "model_server", "http_gateway")
PATHWAYS = "pathways"  # the programs of a Pathways cluster, told apart by --node_type

USAGE = """\
usage: python -m sax.container ROLE [FLAGS]

Starts a sax server with flags built from environment variables; FLAGS come last and override them.
`python -m sax.container ROLE --help` shows all flags of a role.

roles: admin_server, model_server, http_gateway, pathways

With --node_type or --resource_manager_address among its FLAGS, model_server is pathways: a
PathwaysJob gives its components flags, but starts the image as it is. That role has all it needs in
FLAGS and its own variables; those below are the others'.

variables:
  SAX_CELL          the cell (default /sax/test)
  PORT              the port to serve on (default: the role's own)
  GSBUCKET          the cell's storage: a Google bucket, or any URL such as s3://bucket/folder
  SAX_GCS_BUCKET    another name for GSBUCKET
  SAX_DIR           the cell's storage, if it is a folder
  SAX_REPLICA_NAME  a folder within the storage, for cells that share one
  SAX_ROOT          where the admin's address is found (default STORAGE/sax-root)
  FS_ROOT           where the admin keeps its state (default STORAGE/sax-fs-root)
  SAX_FILES         where a gateway keeps files, batches and responses (default STORAGE/sax-files;
                    empty: nowhere)
  SAX_ADMIN         the admin's host:port, in place of SAX_ROOT
  POD_IP            the address at which others reach this server

examples:
  GSBUCKET=my-bucket python -m sax.container admin_server
  SAX_DIR=/data python -m sax.container admin_server --status_port 10002
  SAX_ADMIN=admin:10000 PORT=8888 python -m sax.container http_gateway
  python -m sax.container pathways --node_type=resource_manager --server_port=29001
"""

_CELL = "/sax/test"
# Each program of a Pathways cluster has one of these, and no model server has.
_PATHWAYS_FLAGS = ("--node_type", "--resource_manager_address")
_PATHWAYS_MODULE = "model_server.pathways"
# In the manifests, ours and Google's.
_PLACEHOLDERS = {"BUCKET_NAME", "ADMIN_BUCKET_NAME"}
_WRONG = 2


def command(
    role: str, flags: Sequence[str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return Python's arguments and the environment for a role. Raises InvalidRequest."""
    if role not in (*ROLES, PATHWAYS):
        known = ", ".join((*ROLES, PATHWAYS))
        raise InvalidRequest(f"{role!r} is not a role: use one of {known}")
    if role == PATHWAYS or (role == MODEL and any(_has(name, flags) for name in _PATHWAYS_FLAGS)):
        return ["-m", _PATHWAYS_MODULE, *flags], dict(environ)
    given = {name: value for name, value in environ.items() if value}
    roots = _roots(given)
    made = ["--host=0.0.0.0", *_port(given)]
    if role != GATEWAY:  # a gateway serves every cell its admin knows
        made.append(f"--sax_cell={given.get('SAX_CELL', _CELL)}")
        made += [f"--advertise={address}" for address in _only(given, "POD_IP").values()]
    if role == ADMIN:
        made += _admin_roots(roots, flags)
        return ["-m", role, *made, *flags], dict(environ)
    if role == GATEWAY:
        made += _files(environ, flags)
    found = {} if "SAX_ADMIN" in given else _named(_only(roots, "SAX_ROOT"))
    return ["-m", role, *made, *flags], {**environ, **found}


def _has(name: str, flags: Sequence[str]) -> bool:
    """Saxml's spelling with one dash counts, too."""
    return any(f"--{flag.lstrip('-').partition('=')[0]}" == name for flag in flags)


def _port(given: Mapping[str, str]) -> list[str]:
    ports = _only(given, "PORT").values()
    for text in ports:
        if not (text.isascii() and text.isdigit() and int(text) < 65536):
            raise InvalidRequest(f"PORT={text!r} is not a port: use a number up to 65535")
    return [f"--port={text}" for text in ports]


def _roots(given: Mapping[str, str]) -> dict[str, str]:
    """Return SAX_ROOT and FS_ROOT, given or derived from the cell's storage location."""
    place = _place(given)
    below = {"SAX_ROOT": "sax-root", "FS_ROOT": "sax-fs-root"}
    found = {} if place is None else {name: f"{place}/{each}" for name, each in below.items()}
    return found | _only(given, *below)


def _only(values: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: values[name] for name in names if name in values}


def _place(given: Mapping[str, str]) -> str | None:
    named = _only(given, "GSBUCKET", "SAX_GCS_BUCKET", "SAX_DIR")
    places = {_spelled(name, value) for name, value in named.items()}
    if len(places) > 1:
        roots = " and ".join(f"{name}={value!r}" for name, value in named.items())
        raise InvalidRequest(f"{roots} name several places for one cell: set only one of them")
    within = given.get("SAX_REPLICA_NAME", "").strip("/")
    return next((f"{place}/{within}" if within else place for place in places), None)


def _spelled(name: str, value: str) -> str:
    place = value.rstrip("/")
    return place if name == "SAX_DIR" or "://" in place else f"gs://{place}"


def _named(roots: dict[str, str]) -> dict[str, str]:
    """Return the roots, refusing the manifests' placeholder. Raises InvalidRequest."""
    for root in roots.values():
        if held := _PLACEHOLDERS.intersection(root.split("/")):
            raise InvalidRequest(
                f"{root!r} holds a placeholder: replace {held.pop()} with your bucket name"
            )
    return roots


def _files(environ: Mapping[str, str], flags: Sequence[str]) -> list[str]:
    """Return where a gateway keeps the files and batches of its clients, if it has a place."""
    place = _place({name: value for name, value in environ.items() if value})
    named = place is not None and _PLACEHOLDERS.isdisjoint(place.split("/"))
    files = environ.get("SAX_FILES", f"{place}/sax-files" if named else "")
    return [f"--files={files}"] if files and not _has("--files", flags) else []


def _admin_roots(roots: Mapping[str, str], flags: Sequence[str]) -> list[str]:
    if "FS_ROOT" not in roots and not _has("--fs_root", flags):
        raise InvalidRequest(
            "this admin server has nowhere to keep its state, so published models would be lost "
            "with its container: set GSBUCKET, SAX_DIR (a volume) or FS_ROOT, or pass --fs_root"
        )
    named = {"SAX_ROOT": "--sax_root", "FS_ROOT": "--fs_root"}
    found = _named(_only(roots, *named))
    return [f"{flag}={found[name]}" for name, flag in named.items() if name in found]


def raise_memory_lock() -> str | None:
    """Raise RLIMIT_MEMLOCK as far as allowed; return a warning unless it is unlimited.

    libtpu locks the memory that v6e and newer chips read from, more than Linux allows by default.
    """
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    for limit in (resource.RLIM_INFINITY, hard):
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        except (ValueError, OSError):
            continue
        if limit == resource.RLIM_INFINITY:
            return None
    return (
        f"at most {hard >> 10} KiB of memory can be locked here; TPU v6e and newer need more: run "
        "with CAP_SYS_RESOURCE, or with ulimit -l unlimited"
    )


def main(arguments: Sequence[str]) -> int:
    """Become the server; returns an exit status only if that fails."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else _WRONG
    try:
        argv, environ = command(arguments[0], arguments[1:], os.environ)
    except InvalidRequest as error:
        _say(error.text)
        return _WRONG
    warning = raise_memory_lock() if arguments[0] in (MODEL, PATHWAYS) else None
    if warning and importlib.util.find_spec("libtpu"):  # only TPU servers need it
        _say(warning)
    os.execve(sys.executable, [sys.executable, *argv], environ)


def _say(text: str) -> None:
    print(f"sax.container: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
