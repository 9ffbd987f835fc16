"""Calls of functions, the workers' own or their clients', in place of a program.

jaxlib's client compiles such a call, of a name, a text, devices, arguments and results, as it
compiles a program. Its Python API makes one kind of them, for `jax.experimental.colocated_python`,
and looks neither at the name nor at the text.

Source: `xla/python/ifrt/custom_call_program.proto` of the jaxlib in use.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from model_server.loading.beside_devices.weight_reading import READ_WEIGHTS
from model_server.pathways.protocol import CustomCallProgramProto
from model_server.pathways.scheduling.handles import UNIMPLEMENTED, Fault
from sax.errors import InvalidRequest

_TYPE = "xla::ifrt::CustomCallProgram"
_KIND = "jax_colocated_python_v0.0.1"
NO_FUNCTIONS = Fault(
    UNIMPLEMENTED,
    "functions of clients are not run beside the devices: start the proxy server with "
    "--sidecar_name=external, a sidecar beside each worker with --colocated_python, and the "
    "workers with --sidecar_address",
)


def is_call(request: Any) -> bool:
    """Tell whether a CompileRequest is for a call and not for a program."""
    return request.program.type_name == _TYPE


def call_of(request: Any) -> Any:
    """Return the CustomCallProgramProto of a CompileRequest. Raises InvalidRequest."""
    try:
        call = CustomCallProgramProto.FromString(request.program.data)
    except DecodeError as exc:
        raise InvalidRequest(f"a malformed call: {exc}") from exc
    if call.type != _KIND:
        raise InvalidRequest(f"a call of the kind {call.type!r}: {_KIND} is known here")
    return call


def brings_code(request: Any) -> bool:
    """Tell whether an IfrtRequest is to compile a function of its client. Raises InvalidRequest."""
    asked = request.compile_request
    return is_call(asked) and is_python(call_of(asked))


def is_python(call: Any) -> bool:
    """Tell whether a call brings its function along, as pickled code."""
    return call.name != READ_WEIGHTS
