"""What building and running images needs of this machine, and how pip reaches packages here.

An image is built by buildah in a chroot and run by crun: no daemon, but root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

BASE_VARIABLE = "SAX_IMAGE_BASE"  # an image to build on, in place of a Debian made here
_PROGRAMS = ("buildah", "crun", "unshare")
# Of pip's settings those that lead to an index. Never folders of wheels: an image holds what its
# lock names, from wherever its hashes allow.
_PIP = ("cert", "index-url", "proxy", "timeout", "trusted-host")


def missing() -> str | None:
    """Why no image can be built or run here; None where it can."""
    if os.geteuid() != 0:
        return "images are built and run as root only"
    needed = (*_PROGRAMS, *(() if BASE_VARIABLE in os.environ else ("debootstrap",)))
    absent = [name for name in needed if shutil.which(name) is None]
    if absent:
        return f"not installed here: {', '.join(absent)} (apt-get install buildah crun debootstrap)"
    if BASE_VARIABLE not in os.environ and not debian_mirror():
        return (
            f"this machine's apt names no mirror of Debian bookworm, nor {BASE_VARIABLE} an image"
        )
    return None


def debian_mirror() -> str:
    """Where this machine's apt gets bookworm from; "" where it does not."""
    if shutil.which("apt-get") is None:
        return ""
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)")
    places = [line.split()[0] for line in targets.splitlines() if line.endswith(" bookworm")]
    return places[0] if places else ""


def pip_settings() -> dict[str, str]:
    """How pip reaches its index on this machine; later settings win, as for pip."""
    listed = run(sys.executable, "-m", "pip", "config", "list")
    pairs = (line.partition("=") for line in listed.splitlines())
    named = ((key.rpartition(".")[2], shlex.split(value)[0]) for key, _, value in pairs)
    return {key: value for key, value in named if key in _PIP}


def write_pip_settings(path: Path) -> list[Path]:
    """A pip.conf for a build; the other files that it speaks of."""
    settings = pip_settings()
    lines = (f"{key} = {value}\n" for key, value in settings.items())
    path.write_text("[global]\n" + "".join(lines))
    return [Path(settings["cert"])] if "cert" in settings else []


def run(*command: str | Path) -> str:
    """What a command prints. An AssertionError with all it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()
