"""Write docs/pictures/system.svg: the processes of a cell and what flows between them.

python -m docs.pictures.system
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 920, 590
STYLE = """
  text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a; }
  .name { font-size: 15px; font-weight: 600; fill: #1f2328; }
  .label { font-size: 12px; font-style: italic; }
  .back { fill: #ffffff; }
  .box { fill: #f6f8fa; stroke: #8c959f; }
  .ours { fill: #ddf4ff; stroke: #0969da; }
  .inner { fill: #ffffff; stroke: #0969da; }
  .line { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#tip); }
  .tip { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .name { fill: #f0f6fc; }
    .back { fill: #0d1117; }
    .box { fill: #161b22; stroke: #6e7681; }
    .ours { fill: #10233d; stroke: #4493f8; }
    .inner { fill: #0d1117; stroke: #4493f8; }
    .line { stroke: #9198a1; }
    .tip { fill: #9198a1; }
  }
"""


def draw() -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img">',
            "<title>A cell: clients, gateway, admin servers and replicas</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto-start-reverse">'
            '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
            f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
            *_clients(),
            *_control(),
            *_replica(),
            *_arrows(),
            "</svg>\n",
        )
    )


def _clients() -> Iterator[str]:
    yield from _box(30, 20, 250, 50, "box", "curl, OpenAI SDK, browser")
    yield from _box(320, 20, 250, 50, "box", "sax command, sax SDK", "Saxml's own clients")
    yield from _box(
        30,
        125,
        250,
        72,
        "ours",
        "http_gateway",
        "any number, no state",
        "OpenAI's and Saxml's routes",
    )
    yield from _box(30, 250, 540, 50, "ours", "locator", "in every client: picks a ready replica")


def _control() -> Iterator[str]:
    yield from _box(
        640,
        125,
        250,
        72,
        "ours",
        "admin_server",
        "one leader, any number of standbys",
        "not on the request path",
    )
    yield from _box(640, 20, 250, 50, "box", "object storage", "numbered records, written first")


def _replica() -> Iterator[str]:
    yield '<rect class="ours" x="46" y="386" width="844" height="180" rx="8"/>'
    yield '<rect class="ours" x="38" y="378" width="844" height="180" rx="8"/>'
    yield from _box(30, 370, 844, 180, "ours", "")
    yield _text(50, 394, "model_server", "name", "start")
    yield _text(
        265, 394, "a replica: one process per host of a slice; all live and die as one", "", "start"
    )
    yield from _box(
        50, 410, 390, 58, "inner", "primary", "services, serving, engine: scheduler, runner"
    )
    yield from _box(560, 410, 294, 58, "inner", "secondaries", "same program, same steps")
    yield from _box(50, 492, 804, 42, "inner", "mesh of devices: CPU, GPU, TPU")


def _arrows() -> Iterator[str]:
    yield _arrow("M155 70 V125", 165, 102, "HTTP, SSE")
    yield _arrow("M155 197 V250", 165, 228, "sax SDK")
    yield _arrow("M445 70 V250", 455, 228, "gRPC")
    yield _arrow("M570 45 H605 V145 H640", 560, 92, "")
    yield _arrow("M280 160 H640", 455, 152, "publish, update, list")
    yield _arrow("M765 125 V70", 775, 102, "record, then reply")
    yield _arrow("M690 197 V275 H570", 580, 294, "watch: ready replicas")
    yield _arrow("M820 197 V370", 738, 330, "load, unload")
    yield _arrow("M245 300 V410", 255, 340, "one token stream per connection:")
    yield _text(255, 356, "one message per step for all its requests", "label", "start")
    yield _arrow("M440 439 H560", 464, 431, "lockstep")
    yield _arrow("M245 468 V492")
    yield _arrow("M707 468 V492")


def _box(x: int, y: int, width: int, height: int, kind: str, *lines: str) -> Iterator[str]:
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
    top = y + height / 2 + 5 - 9 * (len(lines) - 1)
    for at, line in enumerate(lines):
        yield _text(x + width / 2, top + 18 * at, line, "" if at else "name", "middle")


def _arrow(path: str, x: int = 0, y: int = 0, label: str = "") -> str:
    return f'<path class="line" d="{path}"/>' + (
        _text(x, y, label, "label", "start") if label else ""
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def main() -> int:
    PICTURE.write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
