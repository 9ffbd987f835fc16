"""Who may be one of the hosts of a replica, and what the others are told."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from model_server.config import ModelServerConfig
from model_server.engine.versions import source_digest, sources_changed, versions
from model_server.multihost.hello import hello, why_not, why_uneven
from tests.model_server.multihost.hosts_here import greeting, membership

PRIMARY = greeting(3, 0)


def test_a_host_that_is_alike_may_come() -> None:
    assert why_not(PRIMARY, greeting(3, 1), {2: greeting(3, 2)}) is None


def test_a_host_that_says_hello_again_is_the_same_host() -> None:
    assert why_not(PRIMARY, greeting(3, 1), {1: greeting(3, 1)}) is None


def test_a_host_that_does_not_fit_is_refused_by_name() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"count": 4}, ["host 1 (node-1)", "4 hosts", "node-0", "3", "--hosts"]),
        ({"ordinal": 0}, ["two primaries", "node-1", "node-0", "--host_ordinal"]),
        ({"ordinal": 3}, ["host 3 (node-1)", "must be 1 to 2"]),
        ({"ordinal": -1}, ["host -1 (node-1)", "must be 1 to 2"]),
        ({"versions": {"sax": "1 (abd)", "jax": "0.10"}}, ["host 1", "sax 1 (abd)", "1 (abc)"]),
        ({"versions": {"sax": "1 (abc)", "jax": "0.11"}}, ["host 1", "jax 0.11", "0.10"]),
        ({"versions": {"sax": "1 (abc)"}}, ["host 1", "jax no version"]),
        ({"flags": {"--slots": "8"}}, ["host 1", "--slots 8", "with 4"]),
    ]
    for changes, words in cases:
        host = greeting(**{"count": 3, "ordinal": 1, "name": "node-1", **changes})
        reason = why_not(PRIMARY, host, {})
        assert reason is not None, changes
        assert all(word in reason for word in words), reason


def test_two_hosts_of_one_ordinal_are_both_named() -> None:
    reason = why_not(PRIMARY, greeting(3, 1, name="b", nonce="x"), {1: greeting(3, 1)})
    assert reason is not None
    assert "node-1" in reason
    assert "and b both say" in reason


def test_a_host_with_other_devices_is_named() -> None:
    names = ("a", "b", "c")
    alike = {0: (4, "TPU v5e"), 1: (4, "TPU v5e"), 2: (4, "TPU v5e")}
    assert why_uneven(alike, names) is None
    assert "host 2 (c) has 3 devices" in str(why_uneven({**alike, 2: (3, "TPU v5e")}, names))
    assert "host 1 (b) has 4 devices (cpu)" in str(why_uneven({**alike, 1: (4, "cpu")}, names))
    assert "host 1 (b) has 0 devices" in str(why_uneven({0: alike[0], 2: alike[2]}, names))


def test_two_programs_of_one_version_are_told_apart(tmp_path: Path) -> None:
    for room in ("sax", "model_server"):
        (tmp_path / room).mkdir()
    (tmp_path / "sax" / "names.py").write_text("A = 1\n")
    before = source_digest(tmp_path)
    assert source_digest(tmp_path) == before
    (tmp_path / "sax" / "names.py").write_text("A = 2\n")
    assert source_digest(tmp_path) != before


def test_sources_that_change_under_a_process_are_noticed(tmp_path: Path) -> None:
    for room in ("sax", "model_server"):
        (tmp_path / room).mkdir()
    file = tmp_path / "sax" / "names.py"
    file.write_text("A = 1\n")
    written_s = file.stat().st_ctime
    assert not sources_changed(tmp_path, written_s)
    assert sources_changed(tmp_path, written_s - 0.01)
    os.utime(file, (0, 0))  # as an installer sets it
    assert sources_changed(tmp_path, written_s - 0.01)
    assert sources_changed(tmp_path), "it is newer than this process"
    assert not sources_changed(since_s=time.time())


def test_a_host_tells_its_versions_and_the_flags_that_must_agree() -> None:
    said = hello(membership(3, 2), ModelServerConfig(slots=7, memory_limit_bytes=5))
    assert said.name == "node-2"
    assert said.flags["--slots"] == "7"
    assert "--memory_limit_bytes" not in said.flags  # hosts may differ in this
    assert set(versions()) == {"sax", "jax", "jaxlib", "Python"}
