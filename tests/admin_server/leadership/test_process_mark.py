"""Whether the process of a mark has ended."""

import subprocess
import sys

import pytest

from admin_server.leadership.process_mark import is_gone, own_mark

pytestmark = pytest.mark.skipif(not own_mark(), reason="this system has no /proc")


def test_this_very_process_is_here():
    assert not is_gone(own_mark())


def test_a_process_that_ended_is_gone():
    code = "from admin_server.leadership.process_mark import own_mark; print(own_mark())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert is_gone(told.stdout.strip())


def test_a_number_that_was_given_to_another_process_is_not_the_one_of_the_mark():
    machine, pid, started = own_mark().split()
    assert is_gone(f"{machine} {pid} {int(started) + 1}")


@pytest.mark.parametrize("mark", ["", "elsewhere 1 1", "nonsense"])
def test_nobody_here_can_tell_of_a_process_elsewhere(mark):
    assert not is_gone(mark)
