"""What a server must have: how it joins, divides and is written."""

from sax.need import Need, from_text, to_text
from tests.each_case import each_case

LARGE = Need(devices=32, memory=101, weights=60)


def test_a_need_is_read_as_it_was_written():
    assert from_text(to_text(LARGE)) == LARGE


@each_case("text", ["", "1 2", "1 2 3 4", "a b c", "1 -2 3", "\u00b2 1 1"])
def test_what_is_no_need_is_none(text):
    assert from_text(text) is None


def test_the_bytes_of_one_device_are_never_too_few():
    assert LARGE.memory_each == 4
    assert LARGE.memory_each * LARGE.devices >= LARGE.memory
    assert Need(memory=5).memory_each == 0  # on any number of devices


def test_two_needs_are_met_by_the_larger_of_each():
    other = Need(devices=1, memory=200, weights=10)
    assert LARGE.joined(other) == Need(devices=32, memory=200, weights=60)
    assert LARGE.joined(None) == LARGE
