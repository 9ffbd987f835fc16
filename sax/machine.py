"""What this machine has, as far as more than one room must know it."""

from __future__ import annotations

import os
from pathlib import Path


def machine_memory(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory of this machine, or of its container where that has less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = cgroup.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical
