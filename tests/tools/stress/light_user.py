"""A light user: streams one completion after the other until its stdin ends.

    python -m tests.tools.stress.light_user URL MODEL HEADERS

Writes a line once tokens flow, and at the end a line with the longest pause and the errors. A
process of its own, so that what an attack does to its own interpreter is not taken for a pause.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import httpx

_TOKENS = 200  # of one stream
_WARM_UP = 8  # tokens before the attack begins
_LONG_S = 0.25  # a pause told when it happens, so that it can be laid beside the server's log


class LightUser:
    def __init__(self, url: str, model: str, headers: dict[str, str]) -> None:
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False, headers=headers)
        self._model = model
        self._tokens = 0
        self.stopping = threading.Event()
        self.longest_gap_s = 0.0
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._stream()
            except (httpx.HTTPError, ValueError) as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:200])
                time.sleep(0.1)

    def _stream(self) -> None:
        body = {
            "model": self._model,
            "prompt": "Once upon a time",
            "max_tokens": _TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        with self._http.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                raise ValueError(f"{reply.status_code} {reply.read().decode()[:150]}")
            last_s = 0.0  # the first token's wait is not a gap of a stream
            for line in reply.iter_lines():
                if self.stopping.is_set():
                    return
                if not line.startswith("data: {"):
                    continue
                if '"error"' in line:
                    raise ValueError(line[:150])
                now = time.monotonic()
                self._note(now - last_s if last_s else 0.0)
                last_s = now

    def _note(self, gap_s: float) -> None:
        self._tokens += 1
        if self._tokens == _WARM_UP:
            _tell(warm=True)
        elif self._tokens > _WARM_UP:
            self.longest_gap_s = max(self.longest_gap_s, gap_s)
            if gap_s > _LONG_S:
                sys.stderr.write(f"{time.strftime('%H:%M:%S')} a pause of {gap_s:.2f} s\n")


def _tell(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> None:
    url, model, headers = sys.argv[1:]
    user = LightUser(url, model, json.loads(headers))
    thread = threading.Thread(target=user.run)
    thread.start()
    sys.stdin.read()
    user.stopping.set()
    thread.join()
    _tell(longest_gap_s=user.longest_gap_s, errors=user.errors)


if __name__ == "__main__":
    main()
