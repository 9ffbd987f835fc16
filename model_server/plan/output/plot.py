"""The roofline as a picture: FLOP per byte against FLOP per second, one point per bucket.

Written as SVG by hand: for one picture of lines and dots a plotting library would be too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from model_server.plan.model_plan import BucketPlan, ModelPlan
from model_server.plan.slices import CHIPS

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 480, 80, 50, 30, 60
_COLOURS = {"FLOPs": "#b3541e", "HBM": "#1e6fb3", "links": "#6b3fa0"}
_INK, _FAINT = "#222222", "#dddddd"


def roofline_svg(plan: ModelPlan) -> str:
    """Draw the picture of a plan whose buckets were compiled."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            *_Picture(plan).drawn(),
            "</svg>",
            "",
        ]
    )


class _Picture:
    def __init__(self, plan: ModelPlan) -> None:
        self._plan = plan
        self._chip = CHIPS[plan.slice.chip]
        xs = [self._chip.ridge, *(each.intensity for each in plan.buckets)]
        ys = [self._chip.device_flops, *(each.rate for each in plan.buckets)]
        self._x = _decades(min(xs) / 2, max(xs) * 4)
        self._y = _decades(min(ys) / 2, max(ys) * 1.5)

    def drawn(self) -> Iterator[str]:
        yield from self._axes()
        yield self._roof()
        for place, bucket in enumerate(self._plan.buckets):
            yield from self._point(bucket, below=place % 2 == 1)
        yield from self._legend()

    def _across(self, value: float) -> float:
        first, last = self._x
        share = (math.log10(value) - first) / (last - first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def _up(self, value: float) -> float:
        first, last = self._y
        share = (math.log10(value) - first) / (last - first)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def _axes(self) -> Iterator[str]:
        title = f"{self._plan.model} on {self._plan.slice.topology}: predicted, per device"
        yield _text(_WIDTH / 2, 24, title, anchor="middle", size=15)
        bottom = _HEIGHT - _BOTTOM
        for power in range(self._x[0], self._x[1] + 1):
            x = self._across(10.0**power)
            yield _line(x, _TOP, x, bottom, _FAINT)
            yield _text(x, bottom + 18, _power(power), anchor="middle")
        for power in range(self._y[0], self._y[1] + 1):
            y = self._up(10.0**power)
            yield _line(_LEFT, y, _WIDTH - _RIGHT, y, _FAINT)
            yield _text(_LEFT - 8, y + 4, _power(power), anchor="end")
        yield _text(_WIDTH / 2, _HEIGHT - 18, "FLOP per byte of HBM", anchor="middle")
        turned = f'transform="rotate(-90 20 {_HEIGHT / 2})"'
        yield _text(20, _HEIGHT / 2, "FLOP per second", anchor="middle", more=turned)

    def _roof(self) -> str:
        first, last = (10.0**power for power in self._x)
        rate, peak = self._chip.device_hbm_rate, self._chip.device_flops
        least = 10.0 ** self._y[0]
        start = max(first, least / rate)
        corners = [(start, start * rate), (self._chip.ridge, peak), (last, peak)]
        points = " ".join(f"{self._across(x):.1f},{self._up(y):.1f}" for x, y in corners)
        return f'<polyline points="{points}" fill="none" stroke="{_INK}" stroke-width="2"/>'

    def _point(self, bucket: BucketPlan, *, below: bool) -> Iterator[str]:
        x, y = self._across(bucket.intensity), self._up(bucket.rate)
        name = f"{bucket.decodes}+{bucket.blocks}"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_COLOURS[bucket.bound]}">'
            f"<title>{bucket.decodes} decodes + {bucket.blocks} prompt blocks: "
            f"{bucket.intensity:.1f} FLOP/byte, {bucket.rate / 1e12:.2f} TFLOP/s, bound by "
            f"{bucket.bound}</title></circle>"
        )
        yield _text(x + 8, y + (18 if below else 4), name)

    def _legend(self) -> Iterator[str]:
        bounds = [bound for bound in _COLOURS if any(b.bound == bound for b in self._plan.buckets)]
        for place, bound in enumerate(bounds):
            y = _TOP + 14 + 18 * place
            yield f'<circle cx="{_LEFT + 14}" cy="{y}" r="5" fill="{_COLOURS[bound]}"/>'
            yield _text(_LEFT + 26, y + 4, f"bound by {bound}")
        y = _TOP + 18 + 18 * len(bounds)
        yield _text(_LEFT + 10, y + 4, "points: decodes + prompt blocks")


def _decades(least: float, most: float) -> tuple[int, int]:
    return math.floor(math.log10(least)), math.ceil(math.log10(most))


def _power(power: int) -> str:
    names = {0: "1", 1: "10", 2: "100", 9: "1 G", 12: "1 T", 15: "1 P"}
    return names.get(power, f"1e{power}")


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, more: str = ""
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{_INK}" {more}>{escape(text)}</text>'
    )
