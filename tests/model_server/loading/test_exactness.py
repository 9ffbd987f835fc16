"""A request gets the same bits in any company: on golden configs, by everything that may differ.

python -m tests.model_server.loading.test_exactness qwen3_biases=int8 ...   tells what differs
python -m tests.model_server.loading.test_exactness =float8   does so of every family
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from model_server.config import ModelServerConfig
from model_server.engine.drafting.drafting import Drafting, DraftTokens
from model_server.engine.engine import SequenceUpdate
from model_server.engine.limits import EngineLimits
from model_server.engine.parts.beams import sampling_of
from model_server.engine.request import EngineRequest
from model_server.engine.running.ops import Runner
from model_server.engine.types import BeamSettings, Hypothesis, Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.errors import SaxError
from sax.types import ModelSpec
from tests.demo_model import COMPILE_CACHE
from tests.each_case import Failures
from tests.model_server.checkpoints.adapter_folder import write_adapter
from tests.model_server.checkpoints.tiny_folder import VOCAB, write_tiny
from tests.model_server.engine.drafting.driving import answers as driven
from tests.model_server.engine.test_grammar_states import Counting
from tests.model_server.loading.asker import CONFIG, adapter_spec
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.test_recurrent_models import folder_of
from tests.model_server.models.family_cases import (
    config_of,
    first_of_each_family,
    is_encoder,
    overrides_of,
)
from tests.model_server.recorded_answers import Answer, Recorder, scoring, unlike
from tests.processes import on_devices

SLOTS, PAGE, CONTEXT = 4, 16, 64
PAGES = 9  # fewer than the slots need: the youngest are preempted
REQUESTS = 10
TINY = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
ROWS = "gemma3"  # the native kernels compute all of it but sums of two numbers
SIZES = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "64",
    "HIDDEN_DIMS": "128",
    "NUM_HEADS": "4",
    "DIMS_PER_HEAD": "16",  # as native attention needs it
    "VOCAB_SIZE": str(VOCAB),
    "INPUT_SEQ_LEN": str(CONTEXT),
}
WEIGHTS: dict[str, dict[str, object]] = {
    "bfloat16": {"DTYPE": "bfloat16"},
    "int8": {"DTYPE": "bfloat16", "QUANTIZE": "int8"},
    "int4": {"DTYPE": "bfloat16", "QUANTIZE": "int4"},
    "int4, one byte": {"DTYPE": "bfloat16", "QUANTIZE": "int4", "ACTIVATIONS": "int8"},
    "float32": {"DTYPE": "float32"},
    "float8": {"DTYPE": "bfloat16", "QUANTIZE": "float8"},
}
DAILY = ("bfloat16", "int8", "int4", "int4, one byte", "float32")


@contextmanager
def loaded_case(name: str, weights: str, folder: Path, steps: int = 1) -> Iterator[Loaded]:
    """Load a golden case, or TINY with random weights, as a model server would.

    steps: of decodes, that one launch computes.
    """
    given = {key: json.dumps(value) for key, value in WEIGHTS[weights].items()}
    own = SIZES if name == TINY else overrides_of(name)
    spec = ModelSpec(
        model_id="/sax/test/exact",
        model_path=TINY if name == TINY else "auto",
        checkpoint="None" if name == TINY else folder_of(name, folder),
        replicas=1,
        overrides=own | given,
    )
    config = ModelServerConfig(
        jax_cache_dir=str(COMPILE_CACHE),
        slots=SLOTS,
        page_size=PAGE,
        max_context=CONTEXT,
        steps_per_launch=steps,
    )
    loaded = make_loader(config)(spec, lambda _: None)
    assert isinstance(loaded, Loaded)
    with closing(loaded.runner):
        yield loaded


def requests(seed: int = 0) -> list[EngineRequest]:
    """Random requests, some of which begin alike; greedy, seeded and with penalties."""
    rng = random.Random(seed)
    common = [rng.randrange(3, VOCAB) for _ in range(40)]
    made: list[EngineRequest] = []
    for number in range(REQUESTS):
        shared = rng.choice([0, 0, 16, 35, 40])
        own = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 50 - shared))]
        sampling = Sampling(rng.choice([0.0, 1.0, 1.0]), 0, 1.0, seed=number, logprobs=number % 3)
        if number % 4 == 3:
            sampling = replace(sampling, presence_penalty=0.5, top_p=0.9)
        if number % 4 == 1:
            sampling = replace(sampling, frequency_penalty=0.3, repetition_penalty=1.1)
        prompt = (*common[:shared], *own)
        most = min(rng.randint(2, 16), CONTEXT - len(prompt))
        made.append(
            EngineRequest(prompt=prompt, sampling=sampling, max_tokens=most, stop_ids=frozenset())
        )
    return made


@dataclass(frozen=True)
class FewerPages:
    """A runner of which an engine uses only so many pages, so that it preempts."""

    runner: Runner

    @property
    def limits(self) -> EngineLimits:
        return replace(self.runner.limits, pages=PAGES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)


class Residues(Counting):
    """A grammar: the n-th token of an answer has a remainder of n."""

    def mask(self) -> bytes:
        flags = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
        flags[len(self.taken) % self.modulus : VOCAB : self.modulus] = 1
        return np.packbits(flags, bitorder="little").tobytes()


def guided(request: EngineRequest) -> EngineRequest:
    """Return the request with a grammar that ends its answer."""
    sampling = replace(request.sampling, guided=True)
    return replace(request, sampling=sampling, grammar=Residues(request.max_tokens))


class Knowing(Drafting):
    """Always tries two draft tokens, of which every third is wrong."""

    def __init__(self, known: Sequence[Sequence[int]]) -> None:
        super().__init__(2, SLOTS)
        self._known = known

    def pays_to_wait(self) -> bool:
        return True

    def choose(self) -> DraftTokens:
        left, made = SLOTS - len(self.live.running), dict[int, tuple[int, ...]]()
        for each in self.draftable:
            answer, count = self._known[each.id - 1], min(left, self.room(each))
            begun = len(each.tokens) - len(each.request.prompt)
            tokens = enumerate(answer[begun : begun + count], begun)
            made[each.id] = tuple(token ^ (place % 3 == 0) for place, token in tokens)
            left -= len(made[each.id])
        return made


def with_drafts(runner: Runner, wanted: list[EngineRequest], alone: list[Answer]) -> list[Answer]:
    """Return what the requests get two at a time, so that slots are free, with draft tokens."""
    found: list[Answer] = []
    accepted = 0
    for first in range(0, len(wanted), 2):
        pair = slice(first, first + 2)
        drafting = Knowing([answer.tokens for answer in alone[pair]])
        for results in driven(runner, wanted[pair], drafting):
            told = [(each.token, each.logprob) for each in results if each.token is not None]
            found.append(Answer(tuple(t for t, _ in told), tuple(score for _, score in told)))
        accepted += drafting.accepted
    assert accepted > len(wanted), "next to no draft token was tried"
    return found


def differences(loaded: Loaded) -> dict[str, list[int]]:
    """Return the requests whose bits differ from those alone, by what was different."""
    wanted = requests()
    runner: Any = FewerPages(loaded.runner)

    def answers(given: list[EngineRequest], at_once: int, turns: int = 1) -> list[Answer]:
        with closing(Recorder(runner, loaded.step_times)) as recorder:
            return [recorder.answers(given, at_once) for _ in range(turns)][-1]

    alone = answers(wanted, 1)
    half = [len(answer.tokens) // 2 for answer in alone]
    begun = [
        replace(each, answer=answer.tokens[:count])
        for each, answer, count in zip(wanted, alone, half, strict=True)
    ]
    rest = [Answer(a.tokens[n:], a.logprobs[n:]) for a, n in zip(alone, half, strict=True)]
    held = [guided(each) if number % 2 else each for number, each in enumerate(wanted)]
    texts = [scoring(one, answer) for one, answer in zip(wanted, alone, strict=True)]
    scores = [Answer((), answer.logprobs) for answer in alone]
    return {
        "from the cache": unlike(alone, answers(wanted, 1, turns=2)),
        "in a crowd": unlike(alone, answers(wanted, REQUESTS)),
        "in a crowd, from the cache": unlike(alone, answers(wanted, REQUESTS, turns=2)),
        "under a grammar": unlike(answers(held, 1), answers(held, REQUESTS)),
        "with draft tokens": unlike(alone, with_drafts(loaded.runner, wanted, alone)),
        "continued after a replay": unlike(rest, answers(begun, REQUESTS)),
        "scored": unlike(scores, answers(texts, 1)),
        "scored in a crowd": unlike(scores, answers(texts, REQUESTS)),
    }


def unequal(cases: Sequence[tuple[str, str]], folder: Path) -> Failures:
    """Return the cases in which some request got other bits."""
    failures = Failures()
    for name, weights in cases:
        place = folder / f"{name}-{weights}"
        place.mkdir()
        with failures.of(name, weights), loaded_case(name, weights, place) as loaded:
            found = differences(loaded)
            assert not any(found.values()), found
    return failures


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_request_gets_the_same_bits_in_any_company(tmp_path: Path) -> None:
    """A dense decoder in all kinds of weights; latent attention and a hybrid, both with experts."""
    cases = [(TINY, weights) for weights in DAILY]
    cases += [(name, "int8") for name in ("deepseek_v3", "qwen3_next", "deepseek_v32")]
    failures = unequal(cases, tmp_path)
    assert not failures, str(failures)


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_a_request_gets_the_same_bits_from_programs_compiled_as_servers_do() -> None:
    """The compiler of the other tests does not compute several rows at once as vectors.

    Streams are mixed by weights in rows of four, which show it most.
    """
    module = "tests.model_server.loading.test_exactness"
    command = [sys.executable, "-m", module, "deepseek_v4=float32"]
    environ = on_devices(1) | {"XLA_FLAGS": ""}
    told = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert told.endswith(": equal\n"), told


@pytest.mark.extended
def test_another_replica_goes_on_with_the_same_bits_several_steps_per_launch(
    tmp_path: Path,
) -> None:
    """It loads the same weights, and continues what the first one began.

    Not with Saxml's decoder: in the program of several steps the tests' quick compiler gives two of
    ten requests other bits. As servers compile none differed.
    """
    wanted = requests()
    with loaded_case(ROWS, "int8", tmp_path) as loaded, closing(Recorder(loaded.runner)) as first:
        alone = first.answers(wanted)
    begun = [
        replace(each, answer=answer.tokens[:1]) for each, answer in zip(wanted, alone, strict=True)
    ]
    rest = [Answer(answer.tokens[1:], answer.logprobs[1:]) for answer in alone]
    with loaded_case(ROWS, "int8", tmp_path, steps=4) as other:
        assert other.runner.limits.steps_per_launch == 4
        with closing(Recorder(other.runner)) as second:
            assert not unlike(rest, second.answers(begun)), "alone"
            assert not unlike(rest, second.answers(begun, SLOTS)), "together"


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_row_gets_the_same_bits_beside_rows_with_adapters(tmp_path: Path, dtype: str) -> None:
    base, loader = write_tiny(tmp_path / "base"), make_loader(CONFIG)
    room = {"DTYPE": f'"{dtype}"', "MAX_ADAPTERS": "2", "MAX_ADAPTER_RANK": "4"}
    loaded = loader(spec_of(base, name="base", **room), quiet)
    assert isinstance(loaded, Loaded)
    for seed in (1, 2):
        folder = write_adapter(tmp_path / f"{seed}", base, seed=seed)
        assert loader(adapter_spec(f"adapter-{seed}", folder), quiet)
    wanted = [
        replace(each, adapter=number % 3, salt=str(number % 3))
        for number, each in enumerate(requests())
    ]
    with closing(loaded.runner), closing(Recorder(loaded.runner)) as recorder:
        alone = recorder.answers(wanted)
        crowded = recorder.answers(wanted, REQUESTS)
        plain = recorder.answers([replace(each, adapter=0, salt="") for each in wanted])
    assert not unlike(alone, crowded)
    assert len(unlike(alone, plain)) > REQUESTS / 2, "the adapters change next to nothing"


class FoundAnswers(Recorder):
    """Also keeps what beam searches found, in the order in which the requests were made."""

    def __init__(self, runner: Runner) -> None:
        self._answers: dict[int, tuple[Hypothesis, ...]] = {}
        super().__init__(runner)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        self._answers |= {each.sequence: each.hypotheses for each in updates if each.hypotheses}
        super()._deliver(updates)

    def found(self, wanted: list[EngineRequest], at_once: int) -> list[tuple[Hypothesis, ...]]:
        self._answers.clear()
        self.answers(wanted, at_once)
        return [self._answers[id] for id in sorted(self._answers)]


@pytest.mark.extended
def test_a_beam_search_finds_the_same_answers_with_the_same_bits_in_any_company(
    tmp_path: Path,
) -> None:
    beams, ends = BeamSettings(2, 0.6), frozenset(range(3, VOCAB, 5))
    wanted = [
        replace(each, beams=beams, stop_ids=ends, sampling=sampling_of(beams, ends), max_tokens=9)
        for each in requests()
        if len(each.prompt) + 9 < CONTEXT
    ]
    mixed = [one for pair in zip(wanted, requests(), strict=False) for one in pair]
    with (
        loaded_case(TINY, "int8", tmp_path) as loaded,
        closing(FoundAnswers(loaded.runner)) as recorder,
    ):
        alone = recorder.found(wanted, 1)
        assert len(alone) == len(wanted)
        assert recorder.found(wanted, 1) == alone, "from the cache"
        assert recorder.found(mixed, REQUESTS) == alone, "in a crowd"


def has_text_alone(name: str) -> bool:
    """False for Saxml's classes, and for models beside an encoder: other cases have their text."""
    keys = config_of(name).keys()
    return "model_type" in keys and keys.isdisjoint(
        ("audio_config", "text_config", "vision_config")
    )


def families_of_text() -> list[str]:
    """The case of each family that generates, and whose text is its own."""
    return [n for n in first_of_each_family() if not is_encoder(n) and has_text_alone(n)]


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_request_of_any_family_gets_the_same_bits_in_any_company(tmp_path: Path) -> None:
    failures = unequal(list(itertools.product(families_of_text(), WEIGHTS)), tmp_path)
    assert not failures, str(failures)


def main() -> None:
    """Print which of these cases, NAME=WEIGHTS or =WEIGHTS for every family, differ and how."""
    for each in sys.argv[1:]:
        name, _, weights = each.partition("=")
        for case in [name] if name else families_of_text():
            sys.stdout.write(f"{case}={weights} {_told(case, weights)}\n")
            sys.stdout.flush()


def _told(case: str, weights: str) -> str:
    try:
        with TemporaryDirectory() as folder, loaded_case(case, weights, Path(folder)) as loaded:
            found = {key: len(of) for key, of in differences(loaded).items() if of}
            return f"({loaded.kernels}): {found or 'equal'}"
    except (SaxError, AssertionError) as exc:
        return f"did not run: {exc}"


if __name__ == "__main__":
    main()
