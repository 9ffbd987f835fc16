"""Default ports, environment variables, and address validation."""

from __future__ import annotations

from sax.errors import InvalidRequest
from sax.format import quoted

ADMIN_PORT = 10000
MODEL_PORT = 10001
GATEWAY_PORT = 8888
ADMIN_STATUS_PORT = 10002  # not 10080: browsers block it
MODEL_METRICS_PORT = 10003
PATHWAYS_PORT = 29000  # of a Pathways proxy server, as in Google's images
GROUP_PORT = 10101  # on a multi-host replica's primary, for its other hosts

ADDRESS_VARIABLE = "SAX_ADMIN"
ROOT_VARIABLE = "SAX_ROOT"
STRICT_VARIABLE = "SAX_STRICT_COMPILE"  # any value: model servers start with --strict_compile


def check_address(address: str, param: str) -> str:
    """Return a well-formed host:port unchanged. Raises InvalidRequest naming `param`."""
    host, colon, port = address.rpartition(":")
    if "://" in address or "/" in port:
        bare = address.partition("://")[2].partition("/")[0] or address.partition("/")[0]
        raise InvalidRequest(
            f"{param}={quoted(address)} is a URL: give the address alone, {quoted(bare)}",
            param=param,
        )
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidRequest(
            f"{param}={quoted(address)} is not an address: use host:port, e.g. "
            f"127.0.0.1:{ADMIN_PORT}",
            param=param,
        )
    return address


def check_addresses(addresses: str, param: str) -> str:
    """Return comma-separated host:port (a cell's admins) unchanged. Raises InvalidRequest."""
    for address in addresses.split(","):
        check_address(address, param)
    return addresses
