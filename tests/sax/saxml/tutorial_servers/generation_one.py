"""The HTTP server of Saxml's multi-host tutorial as it behaves, on the standard library.

Bodies have exactly the keys of their route; answers are JSON indented by 4, without a content type;
every error is 400 with "Error".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import sax

Body = dict[str, Any]


def list_cell(body: Body) -> Body:
    _check(body, 1, "Provide model for list cell")
    detail = sax.ListDetail(body["model"])
    return {
        "model": body["model"],
        "model_path": detail.model,
        "checkpoint": detail.ckpt,
        "max_replicas": detail.max_replicas,
        "active_replicas": detail.active_replicas,
    }


def publish(body: Body) -> Body:
    _check(body, 4, "Provide model, model path, checkpoint, and replica number for publish")
    sax.Publish(*_publication(body))
    return _told(body)


def update(body: Body) -> Body:
    _check(body, 4, "Provide model, model path, checkpoint, and replica number for update")
    sax.Update(*_publication(body))
    return _told(body)


def unpublish(body: Body) -> Body:
    _check(body, 1, "Provide model for unpublish")
    sax.Unpublish(body["model"])
    return {"model": body["model"]}


def generate(body: Body) -> Body:
    _check(body, 2, "Provide model and query for generate")
    sax.ListDetail(body["model"])
    return {"generate_response": sax.Model(body["model"]).LM().Generate(body["query"])}


def _check(body: Body, count: int, words: str) -> None:
    if len(body) != count:
        raise ValueError(words)


def _publication(body: Body) -> tuple[str, str, str, int]:
    return body["model"], body["model_path"], body["checkpoint"], int(body["replicas"])


def _told(body: Body) -> Body:
    model, path, checkpoint, replicas = _publication(body)
    return {"model": model, "path": path, "checkpoint": checkpoint, "replicas": replicas}


ROUTES: dict[tuple[str, str], Callable[[Body], Body]] = {
    ("GET", "/listcell"): list_cell,
    ("POST", "/publish"): publish,
    ("POST", "/unpublish"): unpublish,
    ("POST", "/generate"): generate,
    ("PUT", "/update"): update,
}


class TutorialHandler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        if (self.command, self.path) == ("GET", "/"):
            self._send(200, {"message": "HTTP Server for SAX Client"})
        elif route := ROUTES.get((self.command, self.path)):
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._send(200, route(body))
            except Exception as error:
                self._send(400, {"Error": str(error)})
        else:
            self._send(400, {"message": "Invalid Request"})

    do_GET = do_POST = do_PUT = answer

    def _send(self, status: int, value: Body) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write((json.dumps(value, indent=4) + "\n").encode())


server = HTTPServer(("127.0.0.1", 0), TutorialHandler)
sys.stdout.write(f"{server.server_port}\n")
sys.stdout.flush()
server.serve_forever()
