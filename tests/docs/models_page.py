"""Writes docs/reference/models.md: what the registry says, and what is tested of each family.

python -m tests.docs.models_page > docs/reference/models.md   # make docs

A cell of the second kind is taken from the list of cases of a test: it says what the test tries,
and is empty where no case is of the family.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from model_server.checkpoints.gguf.architectures import ARCHITECTURES
from model_server.checkpoints.gguf.kinds import KINDS as GGUF_KINDS
from model_server.checkpoints.text_part import text_config
from model_server.models import families_page
from model_server.models.families_page import PLANNED, anchor_of, table
from model_server.models.layers.embedder import EmbedderFamily
from model_server.models.recipe import Family
from model_server.models.registry import families
from model_server.plan.output.registry_page import CASES as PLANS
from tests.each_case import cases_of
from tests.model_server.checkpoints.gguf import test_converted, test_media
from tests.model_server.checkpoints.gguf import test_whole_models as gguf_models
from tests.model_server.checkpoints.gguf.architectures import test_gpt_oss
from tests.model_server.checkpoints.gguf_case import written_cases
from tests.model_server.checkpoints.huggingface.prequantized import test_whole_models as packed
from tests.model_server.checkpoints.orbax import test_whole_models as orbax
from tests.model_server.models import test_families, test_quantised_families
from tests.model_server.models.families import test_own_heads
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.media.media_cases import kinds_of, media_config_of
from tests.model_server.models.media.test_media_families import (
    test_vectors_and_logits_with_images_equal_the_reference_implementations as media_test,
)
from tests.model_server.seen_folders import config_of as seen_config
from tests.model_server.serving.passes import test_mixed_inputs
from tests.model_server.text.test_public_templates import DIALECTS
from tests.model_server.text.test_public_templates import (
    test_golden_calls_are_read_and_the_grammar_of_forced_calls_allows_them as calls_test,
)
from tests.tools.templates.__main__ import SERVED_BY

_MEDIA = {"image": "images", "video": "videos", "audio": "sounds"}
_TINY = "llama"  # whose tiny configuration the tests of stored forms have
AnyFamily = Family | EmbedderFamily


def page() -> str:
    return families_page.page(tested())


def tested() -> str:
    """The table of what tests show of each family."""
    head = ("model path", *_COLUMNS)
    rows = ([_linked(each), *(cell(each) for cell in _COLUMNS.values())] for each in families())
    return table(head, rows)


def _linked(family: AnyFamily) -> str:
    return f"[`{family.path}`](#{anchor_of(family)})"


def _tick(there: Iterable[object]) -> str:
    return "✓" if any(True for _ in there) else ""


def _ours(
    family: AnyFamily, test: Callable[..., Any], config: Callable[[str], Any] = config_of
) -> Sequence[str]:
    """The cases of a test whose model is of a family."""
    return [case for case in cases_of(test) if _type_of(config(case)) in family.model_types]


def _type_of(config: dict[str, Any]) -> str | None:
    return text_config(config).get("model_type")


def _folder(family: AnyFamily) -> str:
    whole = (
        test_families.test_a_prompt_whole_and_in_steps_gives_the_reference_implementations_logits,
        test_families.test_hidden_states_equal_the_reference_implementations,
    )
    found = [case for test in whole for case in _ours(family, test)]
    return _tick([*found, *_seen(family)])


def _seen(family: AnyFamily) -> list[str]:
    """The cases that make vectors of images."""
    tests = (
        test_mixed_inputs.test_texts_and_images_in_one_space_are_transformers,
        test_mixed_inputs.test_a_late_interaction_model_compares_texts_with_images,
    )
    return [case for test in tests for case in _ours(family, test, seen_config)]


def _orbax(family: AnyFamily) -> str:
    return _tick(_ours(family, orbax.test_an_orbax_folder_gives_the_same_model))


def _gguf(family: AnyFamily) -> str:
    """Architectures of which a file is written, and, in italics, of which one is read; and the
    names of its encoders of images and sounds."""
    written = {
        each.name
        for case in [*written_cases(), test_gpt_oss.CASE]
        if (kind := _type_of(config_of(case))) in family.model_types
        for each in ARCHITECTURES.values()
        if each.more_metadata and kind in each.model_types
    }
    read = {
        test_converted.Case(case).architecture.name
        for case in _ours(
            family,
            test_converted.test_the_file_holds_the_folders_weights,
            lambda case: test_converted.Case(case).config,
        )
    }
    seen = _ours(
        family,
        test_media.test_both_files_hold_the_folders_weights,
        lambda case: test_media.MediaCase(case).config,
    )
    read |= {test_media.MediaCase(case).architecture.name for case in seen}
    names = [*(f"`{n}`" for n in sorted(written)), *(f"*{n}*" for n in sorted(read - written))]
    encoders = {
        f"`{value}`"
        for case in seen
        for key, value in test_media.MediaCase(case).both["media"]["metadata"].items()
        if key.endswith("projector_type")
    }
    return " with ".join(filter(None, (", ".join(names), ", ".join(sorted(encoders)))))


def _quantised(family: AnyFamily) -> str:
    test = test_quantised_families.test_quantised_weights_compute_what_their_numbers_compute
    at_load = [*test_quantised_families.KINDS] if _ours(family, test) else []
    if family.path != _TINY:
        return ", ".join(at_load)
    stored = cases_of(packed.test_logits_are_those_of_the_numbers)
    kinds = {each.name for each in cases_of(gguf_models.test_logits_are_those_of_the_numbers)}
    assert kinds <= {each.name for each in GGUF_KINDS}
    return f"{', '.join(at_load)}; stored: {', '.join(stored)}; GGUF: {', '.join(sorted(kinds))}"


@cache
def _media_of(case: str) -> frozenset[str]:
    return frozenset(kinds_of(case))


def _media(family: AnyFamily) -> str:
    cases = _ours(family, media_test, media_config_of)
    found = {kind for case in cases for kind in _media_of(case)}
    if _seen(family):
        found.add("image")
    return ", ".join(name for kind, name in _MEDIA.items() if kind in found)


def _tools(family: AnyFamily) -> str:
    """Forms of calls, each with the models whose templates were tried."""
    found: dict[str, list[str]] = {}
    for case in cases_of(calls_test):
        if SERVED_BY.get(case) == family.path:
            found.setdefault(DIALECTS[case].tools, []).append(case)
    return "; ".join(f"{form}: {', '.join(cases)}" for form, cases in found.items())


def _drafts(family: AnyFamily) -> str:
    """Whether transformers' draft layers were compared with, or ours have their names and shapes,
    or are left out."""
    equal = test_own_heads.test_a_draft_layer_computes_what_transformers_does
    named = test_own_heads.test_draft_layers_have_the_tensors_that_checkpoints_have
    skipped = test_own_heads.test_draft_layers_that_no_reference_computes_are_left_out
    if _ours(family, equal):
        return "equal"
    if _ours(family, named, lambda case: config_of(case) | test_own_heads.CASES[case][0]):
        return "read"
    return "left out" if _ours(family, skipped) else ""


def _plans(family: AnyFamily) -> str:
    """Models that docs/reference/plans.md has, which a test holds against its list."""
    names = dict.fromkeys(case.model for case in PLANS)
    paths = {name: PLANNED / f"{name.replace('/', '--')}.json" for name in names}
    ours = (
        name.rpartition("/")[2]
        for name, path in paths.items()
        if path.exists() and _type_of(json.loads(path.read_text())) in family.model_types
    )
    return ", ".join(ours)


_COLUMNS: Mapping[str, Callable[[AnyFamily], str]] = {
    "folder": _folder,
    "GGUF": _gguf,
    "Orbax": _orbax,
    "quantised": _quantised,
    "media": _media,
    "calls of tools": _tools,
    "draft layers": _drafts,
    "plans": _plans,
}


if __name__ == "__main__":
    sys.stdout.write(page())
