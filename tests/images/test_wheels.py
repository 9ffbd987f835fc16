"""Every file that the locks of the accelerators name can be had for where the images run.

CUDA's libraries are gigabytes: the index is asked, and nothing of them is fetched.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.images.locks import Pin, read_lock, read_pins

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

_PLACE = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36")


def offered(pins: Mapping[str, Pin]) -> dict[str, Pin]:
    """These versions as the index has them, each with a wheel that fits, and their hashes."""
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [uv, "pip", "compile", "-", "--no-config", "--no-deps", "--generate-hashes", "--no-header"]
        + ["--no-annotate", "--only-binary", ":all:", *_PLACE],
        input="".join(f"{name}=={pin.version}\n" for name, pin in pins.items()),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return read_pins(done.stdout)


@pytest.mark.parametrize("name", ["model-tpu", "model-cuda"])
def test_the_index_has_a_wheel_of_each_with_the_hashes_of_the_lock(name: str) -> None:
    pins = read_lock(name)
    there = offered(pins)
    assert there.keys() == pins.keys()
    # A release may have got more files since.
    assert not {
        each for each, pin in pins.items() if not set(pin.hashes) <= set(there[each].hashes)
    }


def test_what_has_no_wheel_for_there_is_no_offer() -> None:
    """That the check above can fail: these are for other machines only."""
    with pytest.raises(AssertionError, match="no wheels"):
        offered({"pywin32": Pin("311", ())})
