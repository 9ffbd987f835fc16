"""The locks hold what pyproject.toml asks for, pinned by hashes, and say nothing of where from."""

from __future__ import annotations

import re

import pytest
from packaging.utils import canonicalize_name

from tests.images.locks import EXTRAS, path_of, read_lock, wanted

NAMES = (*EXTRAS, "build")


def test_a_lock_holds_every_dependency_in_its_range() -> None:
    wrong = [
        (name, str(each))
        for name in NAMES
        for pins in [read_lock(name)]
        for each in wanted(name)
        if (pin := pins.get(canonicalize_name(each.name))) is None
        or not each.specifier.contains(pin.version)
    ]
    assert not wrong, "run `make locks`"


def test_every_package_is_pinned_by_hashes() -> None:
    pins = {name: read_lock(name) for name in NAMES}
    assert all(pins.values())
    unpinned = [
        (name, package)
        for name, packages in pins.items()
        for package, pin in packages.items()
        if not pin.hashes or not all(re.fullmatch(r"[0-9a-f]{64}", each) for each in pin.hashes)
    ]
    assert not unpinned


def test_a_lock_names_no_place_that_packages_came_from() -> None:
    place = re.compile(r"://|file:|--find-links|--(extra-)?index|@ |(^|\s)/")
    texts = {name: path_of(name).read_text() for name in NAMES}
    assert [n for n, text in texts.items() if "make locks" not in text.partition("\n\n")[0]] == []
    assert [name for name, text in texts.items() if place.search(text)] == []


def test_the_control_plane_has_no_jax() -> None:
    assert not {"jax", "jaxlib", "numpy", "flax", "libtpu"} & set(read_lock("control"))


def test_native_kernels_are_compiled_with_the_headers_of_the_jaxlib_they_run_in() -> None:
    models = [name for name in EXTRAS if name.startswith("model-")]
    assert {read_lock(name)["jaxlib"].version for name in models} == {
        read_lock("build")["jaxlib"].version
    }


@pytest.mark.parametrize(
    ("name", "device"), [("model-tpu", {"libtpu"}), ("model-cuda", {"jax-cuda12-plugin"})]
)
def test_a_model_servers_image_is_that_for_cpus_and_its_device(name: str, device: set[str]) -> None:
    plain, with_device = read_lock("model-cpu"), read_lock(name)
    assert device <= set(with_device) - set(plain)
    assert {each: with_device[each].version for each in plain if each in with_device} == {
        each: pin.version for each, pin in plain.items()
    }
