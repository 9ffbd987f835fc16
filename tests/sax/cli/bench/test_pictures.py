"""Histograms and the SVG file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from sax.cli.bench.report import Outcome, ServiceLimit, draw, make_report
from sax.cli.commands.bench import counted, histogram

SVG = "{http://www.w3.org/2000/svg}"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(1, 12))
def test_every_value_is_counted_once(values: list[float], bars: int) -> None:
    counts = counted(values, bars)
    assert len(counts) == bars
    assert sum(counts) == len(values)


def test_a_bar_is_as_long_as_its_share_of_the_most() -> None:
    assert list(histogram([0, 0, 0, 0, 8], bars=2, width=4)) == [
        "0.0 - 4.0 ████ 4",
        "4.0 - 8.0 █    1",
    ]
    assert list(histogram([])) == []


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0.001, 10)), max_size=6))
def test_a_picture_is_xml_with_a_curve_for_each_time_that_was_measured(
    times: list[tuple[float, float]],
) -> None:
    outcomes = [
        Outcome(sent_s=0, pieces_s=(a, a + b), ended_s=a + b, tokens=2, wanted=2) for a, b in times
    ]
    report = make_report({}, outcomes, 0, [ServiceLimit("ttft", 5), ServiceLimit("e2e", 9)])
    tree = ElementTree.fromstring(draw(report, "a <model> & more"))
    assert tree.findtext(f"{SVG}title") == "a <model> & more"
    assert len(tree.findall(f".//{SVG}polyline")) == (4 if times else 0)
    assert len(tree.findall(f".//{SVG}line[@class='limit']")) == (2 if times else 0)


def test_a_curve_rises_to_the_right() -> None:
    outcomes = [
        Outcome(sent_s=0, pieces_s=(ms / 1e3,), ended_s=ms / 1e3, tokens=1) for ms in range(1, 40)
    ]
    tree = ElementTree.fromstring(draw(make_report({}, outcomes, 0, []), "t"))
    curve = tree.find(f".//{SVG}polyline")
    assert curve is not None
    points = [tuple(map(float, point.split(","))) for point in curve.attrib["points"].split()]
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
