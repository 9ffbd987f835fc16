"""Topologies other than TPU slices: CPUs of one host.

Imports no jax, so that jax can still be configured.
"""

from __future__ import annotations

import re

from sax.errors import InvalidRequest

_CPU = re.compile(r"cpu(?::([1-9]\d{0,2}))?")


def cpu_devices(topology: str) -> int | None:
    """Parse cpu or cpu:2 to a number of devices; None if it is something else.

    Raises InvalidRequest.
    """
    word = topology.strip().lower()
    found = _CPU.fullmatch(word)
    if found is None and re.fullmatch(r"cpu\W.*", word):
        raise InvalidRequest(
            f"topology {topology!r}: write cpu, or cpu:N for N devices of one host",
            param="topology",
        )
    return None if found is None else int(found[1] or 1)
