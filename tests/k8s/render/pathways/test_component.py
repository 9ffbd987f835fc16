"""Components of a PathwaysJob: what their controller honours, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.render.pathways.component import (
    COMPONENTS,
    PROGRAMS,
    SIDECAR,
    PathwaysComponent,
    parse_components,
)
from sax.errors import InvalidRequest
from tests.each_case import each_case


def parse(
    images: list[str],
    flags: list[str] | None = None,
    env: list[str] | None = None,
    are_ours: bool = False,
) -> tuple[PathwaysComponent, ...]:
    return parse_components(images, flags or [], env or [], are_ours=are_ours)


def test_words_of_one_kind_become_one_component() -> None:
    (made,) = parse(
        ["worker=gcr.io/me/w:1"], ["worker=--a=1", "worker=--b=x=y"], ["worker=N=v=w", "worker=M="]
    )
    assert made.manifest("ours") == {
        "componentType": "worker",
        "image": "gcr.io/me/w:1",
        "customFlags": ["--a=1", "--b=x=y"],
        "customEnv": [{"name": "N", "value": "v=w"}, {"name": "M", "value": ""}],
    }


def test_all_four_kinds_come_in_one_order() -> None:
    words = [f"{kind}=gcr.io/me/{index}:1" for index, kind in enumerate(COMPONENTS)]
    assert [each.kind for each in parse(words[::-1])] == list(COMPONENTS)


def test_ours_are_all_programs_that_nothing_else_is_said_of() -> None:
    made = parse(["worker=gcr.io/me/w:1"], are_ours=True)
    assert [(each.kind, each.is_ours) for each in made] == [
        ("pathways_server", True),
        ("worker", False),
        ("proxy_server", True),
    ]
    assert made[1].manifest("ours:1") == {"componentType": "worker", "image": "gcr.io/me/w:1"}


@each_case("kind", PROGRAMS)
def test_flags_alone_keep_googles_image(kind: str) -> None:
    (made,) = parse([], [f"{kind}=--a=1"])
    assert made.manifest("ours") == {"componentType": kind, "customFlags": ["--a=1"]}


@each_case(
    "images, flags, env, words",
    [
        (["gpu=x"], [], [], "write KIND=... with a KIND of pathways_server"),
        (["worker"], [], [], "write KIND="),
        (["worker="], [], [], "write KIND="),
        (["worker=me/x:1"], [], [], "write an image as HOST/PATH:TAG"),
        (["worker=gcr.io/me/x:a b"], [], [], "write an image"),
        (["worker=gcr.io/me/x@sha256:1"], [], [], "write an image"),
        (["worker=sax", "worker=sax"], [], [], "given twice"),
        ([f"{SIDECAR}=sax"], [], [], "which sax has none of"),
        ([], [f"{SIDECAR}=--a=1"], [], "needs the image"),
        ([f"{SIDECAR}=gcr.io/me/s:1"], [f"{SIDECAR}=--a=1"], [], "neither flags nor variables"),
        ([], ["worker=a=1"], [], "write KIND=--NAME=VALUE"),
        ([], ["worker=--a=1\n2"], [], "on one line"),
        ([], ["worker=--server_port=1"], [], "it cannot be changed"),
        ([], ["worker=--gcs_scratch_location=gs://x"], [], "use --pathways-dir"),
        ([], ["proxy_server=--num_elastic_slices=1"], [], "use --elastic-slices"),
        ([], [], ["worker=1A=b"], "a NAME of letters"),
        ([], [], ["worker=A"], "each NAME once"),
        ([], [], ["worker=A=1", "worker=A=2"], "each NAME once"),
        ([], [], ["worker=A=b\x00"], "on one line"),
    ],
)
def test_what_a_controller_would_ignore_or_break_is_refused(
    images: list[str], flags: list[str], env: list[str], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse(images, flags, env)


@each_case(
    "image",
    [
        "gcr.io/me/x",
        "gcr.io/me/x:1",
        "localhost:5000/x:1",
        "sax-model-cpu:0.1.0",
        f"us-docker.pkg.dev/a/b/c@sha256:{'0' * 64}",
    ],
)
def test_images_are_named_as_a_container_runtime_finds_them(image: str) -> None:
    (made,) = parse([f"worker={image}"])
    assert made.manifest("ours")["image"] == image


@given(st.sampled_from(COMPONENTS), st.text(), st.text(), st.text())
def test_any_words_make_a_component_or_a_refusal(
    kind: str, image: str, flag: str, variable: str
) -> None:
    refused, made = None, ()
    try:
        made = parse([f"{kind}={image}"], [f"{kind}={flag}"], [f"{kind}={variable}"])
    except InvalidRequest as error:
        refused = error.param
    assert refused or [each.kind for each in made] == [kind]
    assert refused in (None, "component", "component_flag", "component_env")
