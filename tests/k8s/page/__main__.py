"""`python -m tests.k8s.page`: ask gcloud, docker and curl for their flags, and write the table.

They are asked about the commands that our pages use; nothing is run but their help. What is not
installed keeps what the table has.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.k8s.page.programs import BOOL, FILE, VALUE, Flags, Kind

GCLOUD = (
    *(f"compute tpus tpu-vm {verb}" for verb in ("create", "describe", "scp", "ssh")),
    "artifacts repositories create",
    "artifacts repositories delete",
    "auth configure-docker",
    "config set",
    "container clusters create",
    "container clusters delete",
    "container clusters get-credentials",
    "container clusters list",
    "container node-pools create",
    "container node-pools delete",
    "container node-pools describe",
    "iam service-accounts add-iam-policy-binding",
    "iam service-accounts create",
    "iam service-accounts delete",
    "projects describe",
    "services enable",
    "storage buckets add-iam-policy-binding",
    "storage buckets create",
    "storage managed-folders add-iam-policy-binding",
    "storage managed-folders create",
    "storage rm",
)
DOCKER = ("build", "network create", "push", "run")
_DOCKER_FLAG = re.compile(r"^ +(?:(-\w), )? *(--[\w-]+)(?: ([\w-]+))? {2,}", re.MULTILINE)
_CURL_FLAG = re.compile(r"^ *(?:(-\S), )?(?:    )?(--[\w.-]+)(?: (<[^>]+>))?", re.MULTILINE)


def gcloud(sdk: Path) -> dict[str, Any]:
    """Read the tree that gcloud completes words from: every command and flag of this version."""
    place = sdk / "data" / "cli" / "gcloud_completions.py"
    spec = importlib.util.spec_from_file_location("gcloud_completions", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tree = module.STATIC_COMPLETION_CLI_TREE
    return {
        "version": (sdk / "VERSION").read_text().strip(),
        "from": "data/cli/gcloud_completions.py of the Google Cloud CLI",
        "flags": _kinds(tree["flags"]),
        "commands": {name: _kinds(_at(tree, name)["flags"]) for name in GCLOUD},
    }


def _at(tree: Any, name: str) -> Any:
    for word in name.split():
        tree = tree["commands"][word]
    return tree


def _kinds(flags: dict[str, Any]) -> dict[str, Kind]:
    """Values that gcloud looks up while one types are values."""
    return {
        name: kind if kind == BOOL or isinstance(kind, list) else VALUE
        for name, kind in sorted(flags.items())
    }


def docker() -> dict[str, Any]:
    told = {name: _said("docker", *name.split(), "--help") for name in DOCKER}
    return {
        "version": _said("docker", "--version").split()[2].rstrip(","),
        "from": "docker COMMAND --help",
        "flags": {},
        "commands": {name: _flags(_DOCKER_FLAG, text) for name, text in told.items()},
    }


def curl() -> dict[str, Any]:
    return {
        "version": _said("curl", "--version").split()[1],
        "from": "curl --help all",
        "flags": {},
        "commands": {"": _flags(_CURL_FLAG, _said("curl", "--help", "all"))},
    }


def _flags(form: re.Pattern[str], told: str) -> Flags:
    found = [(match[1], match[2], VALUE if match[3] else BOOL) for match in form.finditer(told)]
    return {name: kind for *names, kind in found for name in names if name}


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def main() -> int:
    table = json.loads(FILE.read_text()) if FILE.exists() else {}
    read: dict[str, Any] = {}
    if program := shutil.which("gcloud"):
        read["gcloud"] = gcloud(Path(program).resolve().parents[1])
    if shutil.which("docker"):
        read["docker"] = docker()
    if shutil.which("curl"):
        read["curl"] = curl()
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    for name, told in read.items():
        table[name] = {"version": told.pop("version"), "read on": day, **told}
        sys.stdout.write(f"{name} {table[name]['version']}\n")
    FILE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
