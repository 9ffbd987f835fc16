"""One thread, in order, whatever its jobs do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from model_server.engine.worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("worker under test")
    yield made
    made.stop()


async def test_jobs_run_in_order_on_one_thread(worker: Worker) -> None:
    order: list[tuple[int, str]] = []
    jobs = [
        worker.run(lambda i=i: order.append((i, threading.current_thread().name))) for i in range(5)
    ]
    await asyncio.gather(*jobs)
    assert order == [(i, "worker under test") for i in range(5)]


async def test_a_job_returns_its_value_and_raises_its_error(worker: Worker) -> None:
    assert await worker.run(lambda: 7) == 7
    with pytest.raises(KeyError):
        await worker.run(lambda: {}["absent"])


async def test_a_job_that_exits_ends_nothing_but_itself(worker: Worker) -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await worker.run(leave)
    assert await worker.run(lambda: "still here") == "still here"


async def test_a_job_whose_caller_left_before_it_began_is_left_out(worker: Worker) -> None:
    gate, ran = threading.Event(), []
    first = worker.run(gate.wait)
    second = worker.run(lambda: ran.append("second"))
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await first
    await worker.run(lambda: None)
    assert ran == []


async def test_the_thread_ends_after_the_jobs_it_has() -> None:
    worker = Worker("worker that stops")
    job = worker.run(lambda: "done")
    worker.stop()
    assert await job == "done"
    for thread in threading.enumerate():
        if thread.name == "worker that stops":
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()


async def test_a_worker_that_nobody_holds_ends_its_thread_after_its_jobs() -> None:
    worker = Worker("worker let go")
    thread = worker.submit(threading.current_thread)
    slow = worker.submit(time.sleep, 0.05)
    del worker
    await asyncio.to_thread(thread.result().join, 60)
    assert not thread.result().is_alive()
    assert slow.done()


def test_one_job_gets_a_thread_of_its_own_and_raises_whatever_it_raised() -> None:
    def leave() -> None:
        raise SystemExit(3)

    assert Worker.once("one job", threading.current_thread).result(60).name == "one job"
    with pytest.raises(SystemExit):
        Worker.once("one job", leave).result(60)


def test_a_worker_without_jobs_has_no_thread() -> None:
    worker = Worker("worker without jobs")
    assert all(thread.name != "worker without jobs" for thread in threading.enumerate())
    worker.stop()


ENDING = """
import sys, time
from model_server.engine.worker import Worker, jobs_run
worker = Worker("w")
worker.submit(lambda: (time.sleep(0.2), sys.stdout.write("ended\\n"), sys.stdout.flush()))
worker.submit(sys.stdout.write, "begun too late\\n")
while not jobs_run():
    time.sleep(0.01)
"""


def test_a_process_that_ends_waits_for_the_job_that_runs_and_begins_no_other() -> None:
    said = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, "ended\n", "")
