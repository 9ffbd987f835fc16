"""Parse host names and small numbers from flags and variables.

`where` is the flag or variable that an error names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from sax.errors import InvalidRequest

MOST_HOSTS = 4096  # more than the largest slice has
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def read_host(text: str, where: str) -> str:
    """Parse a host name or an address, without brackets or port. Raises InvalidRequest."""
    text = text.strip()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _NAME.fullmatch(bare) or _is_address(bare):
        return bare
    raise InvalidRequest(
        f"{where}: {text!r} is not a host: give a host name or an address, without a port (the "
        "hosts meet at --group_port)",
        param=where,
    )


def read_hosts(text: str, where: str) -> tuple[str, ...]:
    """Parse a comma-separated list of hosts. Raises InvalidRequest."""
    return _bounded(tuple(read_host(word, where) for word in text.split(",")), where)


def read_processes(text: str, where: str) -> tuple[str, ...]:
    """Parse a comma-separated list of host:port and return the hosts. Raises InvalidRequest."""
    return _bounded(tuple(read_host(_drop_port(word), where) for word in text.split(",")), where)


def read_number(environ: Mapping[str, str], name: str) -> int | None:
    """Parse a variable as a number; None if unset or empty. Raises InvalidRequest."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(
            f"{name}={text!r} is not a number: set it to one, or unset it", param=name
        )
    return int(text)


def siblings(primary: str, count: int) -> tuple[str, ...]:
    """Derive all host names from the primary's: a-0.b gives a-1.b, any other form "host 1"."""
    label, dot, domain = primary.partition(".")
    stem, dash, last = label.rpartition("-")
    if dash and last == "0":
        return tuple(f"{stem}-{index}{dot}{domain}" for index in range(count))
    return (primary, *(f"host {index}" for index in range(1, count)))


def is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def check_count(count: int, where: str) -> int:
    """Return the count if a replica can have that many hosts. Raises InvalidRequest."""
    if not 1 <= count <= MOST_HOSTS:
        raise InvalidRequest(
            f"{where} is {count}: a replica has 1 to {MOST_HOSTS} hosts", param=where
        )
    return count


def _bounded(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    check_count(len(names), where)
    return names


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _drop_port(word: str) -> str:
    host, colon, port = word.strip().rpartition(":")
    return host if colon and port.isdigit() and (":" not in host or host.endswith("]")) else word
