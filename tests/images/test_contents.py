"""What is in the images, looked at from outside: nothing but the lock, and nothing to write."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from model_server.kernels.cpu.build import INSTRUCTIONS
from tests.images.locks import PLACE, PROJECT, read_lock
from tests.images.store import Image, Store

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

FOLDER = "{}-{version}".format(PROJECT["project"]["name"].replace("-", "_"), **PROJECT["project"])
_UNCHECKED = 0b01  # a pyc that is taken as it is: no look at its source's time


def packages(image: Image) -> Path:
    (folder,) = image.root.glob("opt/sax/lib/python3.*/site-packages")
    return folder


def installed(image: Image) -> dict[str, importlib.metadata.Distribution]:
    found = importlib.metadata.distributions(path=[str(packages(image))])
    return {canonicalize_name(each.metadata["Name"]): each for each in found}


def target(image: Image) -> str:
    return image.name.removeprefix("localhost/sax-").removesuffix(":test")


def test_an_image_holds_its_lock_and_sax_and_nothing_else(image: Image) -> None:
    pinned = {name: pin.version for name, pin in read_lock(target(image)).items()}
    ours = {PROJECT["project"]["name"]: PROJECT["project"]["version"]}
    assert {name: each.version for name, each in installed(image).items()} == pinned | ours


def test_whatever_a_package_needs_is_there(image: Image) -> None:
    """What `pip check` would say, were there a pip in the image."""
    there = installed(image)
    wrong = [
        f"{name} needs {requirement}"
        for name, each in there.items()
        for requirement in map(Requirement, each.requires or ())
        if requirement.marker is None or requirement.marker.evaluate({**PLACE, "extra": ""})
        if (found := there.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(found.version)
    ]
    assert not wrong


def test_the_control_image_has_no_jax(control: Image) -> None:
    assert not {"jax", "jaxlib", "numpy"} & set(installed(control))
    assert not list(packages(control).glob("jax*"))


def test_a_model_image_has_the_native_cpu_kernels(image: Image) -> None:
    (library,) = (packages(image) / "model_server" / "kernels" / "cpu").glob("_native*.so")
    found = library.read_bytes()
    assert found.startswith(b"\x7fELF")
    assert all(name.encode() in found for name in INSTRUCTIONS[PLACE["platform_machine"]])


def test_bytecode_of_every_module_is_there_and_good_for_ever(image: Image) -> None:
    """Where nothing can be written, each start would compile a module anew that lacks it."""
    modules = [
        path
        for room in ("sax", "model_server", "grpc", "uvicorn")
        for path in (packages(image) / room).rglob("*.py")
    ]
    assert len(modules) > 400
    for path in modules:
        compiled = path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc"
        assert compiled.read_bytes()[4] == _UNCHECKED, path


def test_an_image_is_no_one_persons(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["StopSignal"] == "SIGTERM"
    assert image.config["Labels"]["org.opencontainers.image.title"] == f"sax-{target(image)}"
    assert "Apache License" in (image.root / "licenses" / "LICENSE").read_text()
    assert (packages(image) / f"{FOLDER}.dist-info").is_dir()


def test_the_same_tree_makes_the_same_files(store: Store, control: Image) -> None:
    first, again = contents(control), contents(store.build("control", tag="again"))
    assert len(first) > 4000
    assert {path for path in first.keys() | again.keys() if first.get(path) != again.get(path)} == (
        set()
    )


def contents(image: Image) -> dict[str, str]:
    """Every file of the environment, by a hash of what is in it."""
    root = image.root / "opt" / "sax"
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_what_built_an_image_stayed_behind(image: Image) -> None:
    for path in ("src", "wheels", "opt/build", "opt/sax/bin/pip", "etc/pip.conf"):
        assert not (image.root / path).exists(), path
    assert not list(packages(image).glob("pip*"))
    assert importlib.util.find_spec("pip")  # here there is one
