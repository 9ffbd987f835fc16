"""Judging model paths and overrides where no model server is there to be asked."""

from __future__ import annotations

import pytest

from sax.errors import InvalidRequest
from sax.overrides.known_paths import check_names, full_path, overrides_of, unknown_path
from tests.each_case import each_case

LM = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"


@each_case(
    "path, key, said",
    [
        (LM, "NUM_LAYER", "did you mean NUM_LAYERS?"),
        (LM.removeprefix("saxml.server."), "num_layers", "did you mean NUM_LAYERS?"),
        (LM, "ROTARY_DIM", "unknown override 'ROTARY_DIM'"),
        ("llama", "INPUT_SEQ_LEN", "use MAX_CONTEXT"),
        ("llama", "ramp", "unknown override 'ramp'"),
        ("bert", "NUM_STAGES", "a model of this kind has one stage"),
        ("auto", "BASE", "unknown override 'BASE'"),
    ],
)
def test_a_name_that_a_model_of_sax_does_not_take_is_refused(
    path: str, key: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_names(path, [key])
    assert (said in refusal.value.text, refusal.value.param) == (True, f"overrides.{key}")


def test_names_that_it_takes_pass_and_so_do_all_of_other_models() -> None:
    check_names(LM, ["NUM_LAYERS", "BUCKET_KEYS", "ram", "ram8", "constraints", "DTYPE"])
    check_names("lora", ["BASE"])
    assert overrides_of("my.own") is None
    check_names("my.own", ["ANYTHING"])


@each_case(
    "path, hint",
    [("lama", "(did you mean llama?)"), ("my.own", "my.own is none of sax's own"), (LM, None)],
)
def test_a_path_that_nobody_here_can_judge_is_told_of(path: str, hint: str | None) -> None:
    said = unknown_path(path)
    assert not said if hint is None else hint in said


@each_case(
    "words, path",
    [
        ("lm_cloud.LmCloudSpmd2BTest", LM),
        ("LmCloudSpmd2BTest", LM),
        ("pax.lm.params.lm_cloud.LmCloudSpmd2BTest", "pax.lm.params.lm_cloud.LmCloudSpmd2BTest"),
        ("ImageNetResNet50", "saxml.server.pax.vision.params.resnet.ImageNetResNet50"),
        ("llama", "llama"),
        ("my.own", "my.own"),
    ],
)
def test_a_class_of_saxmls_is_named_by_its_last_words(words: str, path: str) -> None:
    assert full_path(words) == path
