"""Resources of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def machine_memory(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the bytes of memory of this machine, or its container's limit if lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = cgroup.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical
