"""What our processes say to the flags and variables that a pod gives them.

Both go the way they go in a container: through the entry point of the images, which makes flags of
variables, and the parser of the process itself. Pure but for what those print.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import admin_server.__main__ as admin_server
import model_server.__main__ as model_server
from http_gateway import config as http_gateway
from model_server.process import slice_check
from sax.container import PATHWAYS, ROLES, command
from sax.errors import InvalidRequest
from tests.k8s.finding import Finding
from tests.k8s.kubelet import Container
from tests.k8s.pods import Pod

_PARSERS: dict[str, Callable[[list[str]], Any]] = {
    "admin_server": admin_server.parse,
    "http_gateway": http_gateway.parse_flags,
    "model_server": model_server.make_config,
    "slice_check": lambda flags: slice_check._parser().parse_args(flags),
}
_OF_PATHWAYS = ("--node_type=", "--resource_manager_address=")
_FINDS_ADMIN = ("SAX_ROOT", "SAX_ADMIN")


def check_flags(pod: Pod) -> Iterator[Finding]:
    """Every refusal, in the words of the process."""
    for container in pod.containers:
        role, args = role_of(container)
        if said := _refusal(role, tuple(args), _given(container)):
            yield Finding(f"{pod.owner} {container.name}", said)


def role_of(container: Container) -> tuple[str, list[str]]:
    """Which of our processes a container starts, and with what flags; "" for others."""
    image = container.image.rpartition("/")[2].partition(":")[0]
    if image == "sax-control":
        return (container.args or ("",))[0], list(container.args[1:])
    if image.startswith("sax-model-"):
        # The image's own entry point starts a model server.
        started = container.command[-1] if container.command else "model_server"
        if any(arg.startswith(_OF_PATHWAYS) for arg in container.args or ()):
            return PATHWAYS, list(container.args)
        return started.removeprefix("model_server."), list(container.args)
    return "", []


def _given(container: Container) -> frozenset[tuple[str, str]]:
    """The variables, with a bucket where the manifests leave its name open."""
    filled = {key: value.replace("BUCKET_NAME", "bucket") for key, value in container.env.items()}
    # Addresses differ in every pod, and say nothing else.
    return frozenset((filled | ({"POD_IP": "10.0.0.1"} if "POD_IP" in filled else {})).items())


@functools.cache
def _refusal(role: str, args: tuple[str, ...], given: frozenset[tuple[str, str]]) -> str:
    """What stands against these arguments; "" for nothing."""
    if role not in _PARSERS:
        return ""
    flags, env = list(args), dict(given)
    if role in ROLES:
        try:
            (_, _, *flags), env = command(role, args, env)
        except InvalidRequest as problem:
            return str(problem)
        if role != "admin_server" and not any(name in env for name in _FINDS_ADMIN):
            return "it finds no admin server: neither a bucket nor SAX_ADMIN is given"
    return _parsed(role, flags)


def _parsed(role: str, flags: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            _PARSERS[role](flags)
        except SystemExit:
            return printed.getvalue().strip().splitlines()[-1]
    return ""
