"""A container of an image, by crun: as Kubernetes would run it at its strictest.

The root file system is read-only, there are no capabilities and no new privileges, process 1 is the
image's entry point, and the user is any at all. Only the network is the machine's own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.images.store import Image

USER = 20001  # in no image's passwd, and not the image's own
_KEPT_S = 120.0
# crun wants to know the cgroups although it is to make none, and not all machines have the new
# ones where it looks: in a mount namespace of its own they are.
_CRUN = 'mount -t cgroup2 none /sys/fs/cgroup && exec crun --cgroup-manager=disabled "$@"'
_NAMESPACES = ("pid", "ipc", "uts", "mount")


class Container:
    """One container, started at once."""

    def __init__(
        self,
        image: Image,
        folder: Path,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        volumes: Mapping[Path, str] | None = None,
        entry_point: Sequence[str] | None = None,
        user: int = USER,
    ) -> None:
        folder.mkdir(parents=True)
        entry = image.config.get("Entrypoint", []) if entry_point is None else entry_point
        process = _process(image, [*entry, *arguments], environ or {}, user)
        spec = _spec(image, process, volumes or {})
        (folder / "config.json").write_text(json.dumps(spec))
        self.log = folder / "log"
        name = f"sax-test-{os.getpid()}-{folder.name}"
        crun = ["--root", folder / "state", "run", "--bundle", folder, name]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", _CRUN, "crun", *crun], stdout=log, stderr=log
            )

    def wait(self) -> int:
        """The exit status of process 1."""
        return self._process.wait(_KEPT_S)

    def terminate(self) -> int:
        """SIGTERM to process 1, as a node does; its exit status."""
        self._process.send_signal(signal.SIGTERM)  # crun hands it on
        return self.wait()

    def kill(self) -> None:
        """For the end of a test that failed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()

    @property
    def running(self) -> bool:
        """Whether process 1 still lives."""
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """All it wrote so far."""
        return self.log.read_text(errors="replace")


def _process(
    image: Image, arguments: list[str], environ: Mapping[str, str], user: int
) -> dict[str, Any]:
    nothing: list[str] = []
    kinds = ("bounding", "effective", "permitted", "inheritable", "ambient")
    return {
        "terminal": False,
        "user": {"uid": user, "gid": user},
        "args": arguments,
        "env": [*image.config["Env"], *(f"{name}={value}" for name, value in environ.items())],
        "cwd": image.config["WorkingDir"],
        "capabilities": dict.fromkeys(kinds, nothing),
        "noNewPrivileges": True,
    }


def _spec(image: Image, process: dict[str, Any], volumes: Mapping[Path, str]) -> dict[str, Any]:
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        _bind("/sys", "/sys", "ro"),
        _memory("/dev", "mode=755"),
        _memory("/dev/shm", "mode=1777"),
        _memory("/tmp", "mode=1777"),
        *(_bind(str(here), there, "rw") for here, there in volumes.items()),
    ]
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": str(image.root), "readonly": True},
        "hostname": "sax",
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in _NAMESPACES]},
    }


def _bind(source: str, destination: str, access: str) -> dict[str, Any]:
    options = ["rbind", access]
    return {"destination": destination, "type": "bind", "source": source, "options": options}


def _memory(destination: str, mode: str) -> dict[str, Any]:
    options = ["nosuid", mode]
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": options}
