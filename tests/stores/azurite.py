"""Azurite, Microsoft's own emulator of Azure's blobs (npm `azurite`; `make azurite` fetches it)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import httpx

from tests.stores.place import BUCKET, Place
from tests.stores.server_process import answers, running

SCRIPT = Path(__file__).parents[2] / ".cache/azurite/node_modules/azurite/dist/src/blob/main.js"
# The emulator's account and key are in Microsoft's documentation, the same for everyone.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_WHERE = re.compile(r"successfully listens on (http://127\.0\.0\.1:\d+)")


def missing() -> str:
    """Why it cannot be started here; empty if it can."""
    if not SCRIPT.is_file():
        return "Azurite is not there: `make azurite` fetches it where npm is installed"
    return "" if shutil.which("node") else "Azurite needs node, which is not installed"


@contextmanager
def azurite_server(folder: Path) -> Iterator[Place]:
    """A server with an empty container."""
    command = [
        *("node", str(SCRIPT), "--blobHost", "127.0.0.1", "--blobPort", "0"),
        *("--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"),
    ]
    with running(command, folder, _up, os.environ) as log:
        url = f"{_url(log)}/{_ACCOUNT}"
        _make_container(url)
        env = {
            "AZURE_STORAGE_ENDPOINT": url,
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        }
        yield Place(f"az://{BUCKET}", env)


def _url(log: str) -> str:
    told = _WHERE.search(log)
    return told[1] if told else ""


def _up(log: str) -> bool:
    return bool(_url(log)) and answers(_url(log))


def _make_container(url: str) -> None:
    """obstore cannot: the one request that we sign by hand (Azure's `Shared Key`)."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = [f"{name}:{value}" for name, value in sorted(headers.items())]
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, *lines, resource])
    key = base64.b64decode(_KEY)
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{signature}"
    httpx.put(f"{url}/{BUCKET}?restype=container", headers=headers).raise_for_status()
