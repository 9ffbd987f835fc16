"""docs/pictures/race.svg: tokens per second of every server, a bar each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tests.demo_model import ROOT
from tests.tools.bench.peers.results import Results

PICTURE = Path(ROOT) / "docs" / "pictures" / "race.svg"
WIDTH, LEFT, RIGHT, BAR, GAP = 920, 250, 80, 18, 6
STYLE = """
  text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a; }
  .name { font-size: 15px; font-weight: 600; fill: #1f2328; }
  .back { fill: #ffffff; }
  .peer { fill: #8c959f; }
  .ours { fill: #0969da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .name { fill: #f0f6fc; }
    .back { fill: #0d1117; }
    .peer { fill: #6e7681; }
    .ours { fill: #4493f8; }
  }
"""


def draw(results: Results, streams: int) -> str:
    """One group of bars per format and workload, at this number of streams."""
    groups = [_group(results, *names, streams) for names in _groups(results)]
    most = max((rate for _, bars in groups for _, rate in bars), default=1.0)
    lines, y = [], 44
    for title, bars in groups:
        lines.append(f'<text class="name" x="20" y="{y + 14}">{escape(title)}</text>')
        y += BAR + GAP
        lines += _bars(bars, most, y)
        y += len(bars) * (BAR + GAP) + 14
    return "\n".join([*_head(streams, y), *lines, "</svg>\n"])


def _head(streams: int, height: int) -> Iterator[str]:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    title = f"Tokens per second, {streams} streams"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    yield f"<title>{title}</title>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>'
    yield f'<text class="name" x="20" y="28">{title}</text>'


def _groups(results: Results) -> list[tuple[str, str]]:
    return list(dict.fromkeys((heat.weights, heat.workload) for heat in results.heats))


def _group(
    results: Results, weights: str, workload: str, streams: int
) -> tuple[str, list[tuple[str, float]]]:
    bars: list[tuple[str, float]] = []
    for peer in results.peers(weights):
        where = {"peer": peer, "weights": weights, "workload": workload, "streams": streams}
        rate = results.median(lambda heat: heat.tokens_per_s, **where)
        if rate is not None:
            bars.append((peer, rate))
    return f"{weights}: {workload}", bars


def _bars(bars: Sequence[tuple[str, float]], most: float, y: int) -> Iterator[str]:
    for place, (peer, rate) in enumerate(bars):
        top = y + place * (BAR + GAP)
        width = (WIDTH - LEFT - RIGHT) * rate / most
        kind = "ours" if peer.startswith("sax") else "peer"
        yield f'<text x="{LEFT - 10}" y="{top + 13}" text-anchor="end">{escape(peer)}</text>'
        yield f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{width:.0f}" height="{BAR}"/>'
        yield f'<text x="{LEFT + width + 8:.0f}" y="{top + 13}">{rate:.0f}</text>'
