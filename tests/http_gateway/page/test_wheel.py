"""A wheel holds what the pages are made of."""

from __future__ import annotations

import pytest
from setuptools import Distribution
from setuptools.command.build_py import build_py

from sax.look.page_file import page_files
from tests.house import ROOT


@pytest.mark.filterwarnings("ignore:.*experimental")
def test_a_wheel_holds_the_files_of_both_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = Distribution()
    made.parse_config_files()
    made.packages = ["sax.look", "http_gateway.page", "admin_server.api"]
    made.include_package_data = False  # what git tracks, which sdists take
    command = build_py(made)
    command.finalize_options()
    packed = {name.rpartition("/")[2] for *_, names in command.data_files for name in names}
    assert packed >= {*page_files("http_gateway.page"), *page_files("admin_server.api")}
