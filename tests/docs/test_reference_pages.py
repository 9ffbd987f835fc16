"""The pages that are made from code are current, and one page has every variable."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.docs import commands_page, flags_page, laptop_page, sdk_page
from tests.docs.blocks import PAGES
from tests.each_case import each_case
from tests.house import ROOT

_PACKAGES = ("sax", "admin_server", "model_server", "http_gateway")
# A literal, or what C++ asks for: names of macros and of constants are none of these.
_READ = re.compile(r"""[\"'](SAX(?:ML)?_[A-Z_]+)[\"']""")
_CODE = re.compile(r"^```python$.*?^```$|^## .*$", re.DOTALL | re.MULTILINE)


@each_case(
    "name, make",
    [("commands", commands_page.page), ("flags", flags_page.page), ("sdk", sdk_page.page)],
)
def test_a_page_is_what_the_code_says(name: str, make: Callable[[], str]) -> None:
    assert PAGES[f"docs/reference/{name}.md"] == make(), "run 'make docs'"


def test_every_call_and_value_of_the_sdk_has_a_sentence() -> None:
    page = PAGES["docs/reference/sdk.md"]
    parts = re.split(r"^#{3,4} (.*)$", page, flags=re.MULTILINE)[1:]
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    assert {"sax.client.Client", "Client.generate", "sax.Publish"} <= told.keys()
    without = [name for name, text in told.items() if not _CODE.sub("", text).strip()]
    assert without == []


def test_the_first_model_fits_where_its_row_says() -> None:
    (first, *_) = laptop_page.MODELS
    page = PAGES["docs/reference/laptop.md"]
    assert [row for row in laptop_page.rows(first) if row not in page] == [], "run 'make docs'"
    assert page.startswith(laptop_page.head())


@pytest.mark.nightly
def test_every_model_fits_where_its_rows_say() -> None:
    assert PAGES["docs/reference/laptop.md"] == laptop_page.page(), "run 'make docs'"


def test_every_variable_that_the_code_reads_is_on_one_page_and_no_other() -> None:
    sources = (
        path
        for package in _PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".cc")
    )
    read = {name for path in sources for name in _READ.findall(path.read_text())}
    told = set(re.findall(r"`(SAX(?:ML)?_[A-Z_]+)`", PAGES["docs/reference/variables.md"]))
    assert len(read) > 25
    assert told == read
