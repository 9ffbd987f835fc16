"""A Hugging Face hub that serves files from memory, over the API of the real one.

Commits are made of their contents; `main` is the newest, and tags may name others. Tests read what
was asked for, and make it private, gated, slow or broken.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

Files = Mapping[str, bytes]


class FakeHub:
    """Repositories by name, each with revisions by name or commit."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Files]] = {}
        self.heads: dict[str, dict[str, str]] = {}  # by repository: branch or tag -> commit
        self.token = ""  # without it, nothing is there
        self.gated = False
        self.status = 0  # of every answer, in place of the right one
        self.lost = ""  # a file that is listed and not there
        self.next: Files | None = None  # pushed to main once somebody asked what it is
        self.asked: list[str] = []  # METHOD path
        self.slow = threading.Event()  # clear: bodies of files stop in the middle
        self.slow.set()
        hub = self

        class Handler(_Handler):
            fake = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def push(self, repo: str, files: Files, name: str = "main") -> str:
        """Commit files to a branch, or under a tag; return the commit."""
        text = repr(sorted((key, hashlib.sha1(body).hexdigest()) for key, body in files.items()))
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = files
        self.heads.setdefault(repo, {})[name] = commit
        return commit

    @property
    def fetched(self) -> list[str]:
        """The names of the files whose bodies were asked for."""
        gets = [path for path in self.asked if path.startswith("GET") and "/resolve/" in path]
        return [path.rpartition("/resolve/")[2].partition("/")[2] for path in gets]

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.slow.set()
        self._server.shutdown()
        self._server.server_close()

    def find(self, repo: str, revision: str) -> tuple[str, Files] | None:
        commit = self.heads.get(repo, {}).get(revision, revision)
        files = self.repos.get(repo, {}).get(commit)
        return None if files is None else (commit, files)


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


def use_hub(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it the hub of this process, whose client read the environment at its import."""
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read `asked`."""

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.fake.asked.append(f"{self.command} {path}")
        if self.fake.status:
            self._send(self.fake.status, b"broken", body=body)
        elif self.fake.token and self._token != self.fake.token:
            self._send(401, b"", body=body, error="RepoNotFound")
        elif path.startswith("/api/models/"):
            self._describe(path.removeprefix("/api/models/"), body=body)
        else:
            self._resolve(path.removeprefix("/"), body=body)

    @property
    def _token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def _describe(self, rest: str, *, body: bool) -> None:
        repo, _, revision = rest.partition("/revision/")
        if repo not in self.fake.repos:
            self._send(404, b"", body=body, error="RepoNotFound")
            return
        found = self.fake.find(repo, revision or "main")
        if found is None:
            self._send(404, b"", body=body, error="RevisionNotFound")
            return
        commit, files = found
        told = {
            "id": repo,
            "modelId": repo,
            "sha": commit,
            "private": False,
            "siblings": [
                {"rfilename": name, "size": len(content)} for name, content in files.items()
            ],
        }
        self._send(200, json.dumps(told).encode(), body=body, kind="application/json")
        if self.fake.next is not None and not revision:
            self.fake.push(repo, self.fake.next)

    def _resolve(self, path: str, *, body: bool) -> None:
        repo, _, rest = path.partition("/resolve/")
        revision, _, name = rest.partition("/")
        found = self.fake.find(repo, revision)
        if found is None or name not in found[1] or name == self.fake.lost:
            error = "EntryNotFound" if found else "RevisionNotFound"
            self._send(404, b"", body=body, error=error)
            return
        if self.fake.gated:
            self._send(403, b"", body=body, error="GatedRepo")
            return
        commit, files = found
        etag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
        more = {"ETag": etag, "X-Repo-Commit": commit, "X-Linked-Size": str(len(files[name]))}
        self._send(200, files[name], body=body, more=more)

    def _send(
        self,
        status: int,
        content: bytes,
        *,
        body: bool,
        kind: str = "application/octet-stream",
        error: str = "",
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            half = len(content) // 2
            self.wfile.write(content[:half])
            self.wfile.flush()
            if more:  # a file
                self.fake.slow.wait(60)
            self.wfile.write(content[half:])
