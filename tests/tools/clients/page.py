"""docs/reference/compatibility.md, written from the record of the last run.

python -m tests.tools.clients.page
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.demo_model import ROOT
from tests.tools.clients.clients import CLIENTS
from tests.tools.clients.record import PASSED, CheckResult, read_record, rows

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
_HEAD = """\
# Clients that work unchanged

Written from the results of `make clients` by `python -m tests.tools.clients.page`; edit neither by
hand.

`make clients` installs each client as its makers publish it, starts a cell with
SmolLM2-135M-Instruct, and runs the programs of `tests/tools/clients/programs/` against its gateway,
with nothing changed in a client but its base URL. CI does so every night. The demo model's own chat
template has no tools: checks that call tools ask the same weights, published with a template that
has them. Agents, from claude-code on, ask a gateway whose model is a script that plays the agent's
part (`tests/tools/clients/scripted.py`), so that a small model's wit is not tested.
"""


def page(results: list[CheckResult]) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_summary(results), "", *_checks(results)]) + "\n"


def _summary(results: list[CheckResult]) -> Iterator[str]:
    yield "| client | version | checks passed |"
    yield "| --- | --- | --- |"
    for client in CLIENTS:
        own = [each for each in results if each.client == client.name]
        passed = sum(each.result == PASSED for each in own)
        version = own[0].version if own else "not run"
        yield f"| [{client.name}](#{client.name}) | {version} | {passed} of {len(own)} |"


def _checks(results: list[CheckResult]) -> Iterator[str]:
    told = {client.name: client.checks() for client in CLIENTS}
    for client in CLIENTS:
        own = [each for each in results if each.client == client.name]
        yield from (f"## {client.name}", "", "| version | what was run | result |")
        yield "| --- | --- | --- |"
        for _, version, text, result in rows(own, told):
            yield f"| {version} | {_cell(text)} | {_cell(result)} |"
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(read_record()).rstrip("\n") + "\n")
