"""The status page in a browser: what is shown, filtered, never markup, and clean by axe's rules."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from admin_server.config import AdminConfig
from admin_server.process import running
from sax.types import ModelSpec
from tests.admin_server.conftest import FAST, eventually
from tests.admin_server.fake_modelet import FakeModelet
from tests.browser import broken_rules, chromium, tab
from tests.each_case import each_case

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]
NASTY = "<img src=x onerror='window.hit=1'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a cell with a model that is ready, one that failed, and two servers."""
    port: Future[int] = Future()
    stopped = threading.Event()
    folder = tmp_path_factory.mktemp("state")

    def serve() -> None:
        try:
            asyncio.run(_cell(folder, port, stopped))
        except Exception as error:
            port.set_exception(error)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield f"http://127.0.0.1:{port.result(60)}"
    finally:
        stopped.set()
        serving.join()


async def _cell(folder: Path, port: Future[int], stopped: threading.Event) -> None:
    config = AdminConfig(port=0, status_port=0, fs_root=str(folder))
    async with running(config, FAST) as admin:
        servers = [await FakeModelet(paths=(path,)).start() for path in ("llama", "x")]
        servers[1].failing = NASTY
        for server in servers:
            await server.join(admin.port)
        for name, path in (("good", "llama"), ("bad", "x")):
            spec = ModelSpec(
                model_id=f"/sax/test/{name}", model_path=path, checkpoint="/weights", replicas=1
            )
            await admin.cell.publish(spec, by=NASTY)
        await eventually(lambda: admin.cell.find("/sax/test/good").ready_replicas)
        await eventually(lambda: NASTY in admin.cell.find("/sax/test/bad").replicas[0].reason)
        assert admin.status_port is not None
        port.set_result(admin.status_port)
        await asyncio.to_thread(stopped.wait)
        for server in servers:
            await server.stop()


@each_case("scheme, width", [("light", 1300), ("dark", 1300), ("light", 375), ("dark", 375)])
def test_no_rule_of_axe_is_broken(browser: Any, url: str, scheme: str, width: int) -> None:
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 760}}
    with tab(browser, url, **look) as page:
        page.locator("#models tr").nth(1).wait_for()
        page.locator("#happenings tr").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert broken_rules(page) == []


def test_reasons_and_authors_never_become_markup_and_words_filter(browser: Any, url: str) -> None:
    with tab(browser, url) as page:
        page.locator("#models tr").nth(1).wait_for()
        assert NASTY in page.locator("#models").inner_text()
        assert NASTY in page.locator("#events").inner_text()
        assert page.locator("main img").count() == 0
        assert page.evaluate("window.hit") is None
        page.keyboard.press("/")
        page.keyboard.type("failed")
        page.locator("#models-range", has_text="of 1").wait_for()
        assert "/sax/test/bad" in page.locator("#models tr").inner_text()
