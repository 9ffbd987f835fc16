"""A picture of a benchmark as SVG: which share of the times is at most so long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from sax.cli.bench.percentiles import percentile
from sax.cli.bench.report import TITLES, BenchReport

_WIDTH, _HEIGHT, _MARGIN = 420, 250, 46
_TOP = 64  # of the panels
_STEPS = 200  # points of a curve
_STYLE = """
  text { font: 12px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a; }
  .name { font-size: 14px; font-weight: 600; fill: #1f2328; }
  .back { fill: #ffffff; }
  .grid { stroke: #d0d7de; }
  .curve { stroke: #0969da; stroke-width: 2; fill: none; }
  .limit { stroke: #cf222e; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .name { fill: #f0f6fc; }
    .back { fill: #0d1117; }
    .grid { stroke: #3d444d; }
    .curve { stroke: #4493f8; }
    .limit { stroke: #f85149; }
  }
"""


def draw(report: BenchReport, title: str) -> str:
    """Draw a panel with a curve for each kind of time that was measured, two in a row."""
    shown = [name for name in TITLES if report.times_s[name]]
    rows = -(-len(shown) // 2)
    lines = [*_head(title, max(1, rows))]
    for place, name in enumerate(shown):
        x, y = place % 2 * _WIDTH, _TOP + place // 2 * _HEIGHT
        lines.append(f'<g transform="translate({x} {y})">')
        limits = [each.most_ms for each in report.limits if each.measure == name]
        lines += _panel(TITLES[name], [1e3 * each for each in report.times_s[name]], limits)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>\n"])


def _head(title: str, rows: int) -> Iterator[str]:
    width, height = 2 * _WIDTH, _TOP + rows * _HEIGHT
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{_STYLE}</style>"
    yield f'<rect class="back" width="{width}" height="{height}" rx="8"/>'
    yield f'<text class="name" x="20" y="28">{escape(title)}</text>'
    yield '<text x="20" y="48">share of the measured times that is at most so many ms</text>'


def _panel(title: str, values_ms: Sequence[float], limits_ms: Sequence[float]) -> Iterator[str]:
    ordered = sorted(values_ms)
    most = max(ordered[-1], *limits_ms, 1e-9) * 1.02
    yield f'<text class="name" x="{_MARGIN}" y="12">{escape(title)}</text>'
    for share in (0.0, 0.5, 0.9, 1.0):
        y = _y(share)
        yield f'<line class="grid" x1="{_MARGIN}" x2="{_WIDTH - 20}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{_MARGIN - 6}" y="{y + 4}" text-anchor="end">{share:.0%}</text>'
    for part in (0.0, 0.5, 1.0):
        x = _x(part)
        yield f'<text x="{x}" y="{_y(0) + 16}" text-anchor="middle">{most * part:.4g}</text>'
    points = (
        f"{_x(percentile(ordered, 100 * step / _STEPS) / most)},{_y(step / _STEPS)}"
        for step in range(_STEPS + 1)
    )
    yield f'<polyline class="curve" points="{" ".join(points)}"/>'
    for limit in limits_ms:
        x = _x(limit / most)
        yield f'<line class="limit" x1="{x}" x2="{x}" y1="{_y(0)}" y2="{_y(1)}"/>'


def _x(share: float) -> float:
    return round(_MARGIN + (_WIDTH - 20 - _MARGIN) * share, 1)


def _y(share: float) -> float:
    return round(20 + (_HEIGHT - 60) * (1 - share), 1)
