"""What a pipeline does with steps, links and failures; its stages are arithmetic."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from model_server.engine.types import PageGrant, Row, Sampling, SlotSampling, Step
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.multihost.link import LinkBroken, LinkClosed, StageMessage
from tests.model_server.multihost.fake_stage import VOCAB, FakeRunner, fake_stages
from tests.model_server.multihost.played import play, steps, tokens_of
from tests.model_server.multihost.queue_link import QueueLink, ring
from tests.model_server.multihost.staged import Hosts

PROMPT = (5, 8)  # a pipeline of n stages gives 8 + n - 1 + 1
GRANT = PageGrant(0, 0, (1, 2))
FIRST = Step(1, (Row(1, 0, 0, PROMPT, True),), (GRANT,))


class Pipeline:
    """Hosts of fake stages, and what failed on them."""

    def __init__(self, stages: int) -> None:
        self.programs = fake_stages(stages)
        self.links = ring(stages)
        self.failures: list[BaseException] = []
        self.runners = [
            PipelineRunner(_as_real(each), link, StageThread(), self.failures.append)
            for each, link in zip(self.programs, self.links, strict=True)
        ]
        self.hosts = Hosts(self.runners)


def _as_real(programs: FakeRunner) -> object:
    return programs


@pytest.fixture(params=[2, 4])
def pipeline(request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    made = Pipeline(request.param)
    yield made
    for programs in made.programs:
        programs.gate.set()
    made.hosts.close()
    assert all(programs.closed for programs in made.programs)


@pytest.fixture
def two() -> Iterator[Pipeline]:
    made = Pipeline(2)
    yield made
    for programs in made.programs:
        programs.gate.set()
    made.hosts.close()


def test_every_token_goes_through_every_stage_once_and_back(pipeline: Pipeline) -> None:
    decodes = [Step(2 + n, (Row(1, 0, 2 + n, (), True),)) for n in range(20)]
    token, wanted = PROMPT[-1], []
    for position in range(1, 22):
        token = (token + len(pipeline.runners) - 1 + position) % VOCAB
        wanted.append([token])
    assert tokens_of(play(pipeline.hosts, [FIRST, *decodes])) == wanted


def test_draft_tokens_go_through_the_stages_beside_the_row_that_they_follow(two: Pipeline) -> None:
    """A right one, and then, from the token that the host knows, the next position again."""
    drafted = Step(2, (Row(1, 0, 2, (), True), Row(1, 0, 3, (), True, given=13)))
    wrong = Step(3, (Row(1, 0, 4, (), True, given=17), Row(1, 0, 5, (), True, given=1)))
    after = Step(4, (Row(1, 0, 5, (), True, given=22),))
    got = tokens_of(play(two.hosts, [FIRST, drafted, wrong, after]))
    assert got == [[10], [13, 17], [22, 1 + 1 + 5], [22 + 1 + 5]]


def test_two_and_four_stages_differ_and_so_the_fake_counts_them() -> None:
    pipelines = [Pipeline(count) for count in (2, 4)]
    two, four = (tokens_of(play(each.hosts, steps())) for each in pipelines)
    for each in pipelines:
        each.hosts.close()
    assert two != four


def test_rivals_travel_only_for_those_who_want_them(two: Pipeline) -> None:
    wanting = SlotSampling(0, Sampling(0.0, 0, 1.0, seed=0, logprobs=2))
    plain = two.hosts.launch(FIRST).result()[0].rows[0]
    more = Step(2, (Row(1, 0, 0, PROMPT, True),), samplings=(wanting,))
    (asked,) = two.hosts.launch(more).result()
    assert plain.top == ()
    assert plain.token is not None
    assert asked.rows[0].top == ((plain.token, 0.0), (plain.token + 1, 0.0))


def test_prompts_do_not_wait_for_the_tokens_of_steps_before_them(two: Pipeline) -> None:
    first, second = two.programs
    second.gate.clear()
    prompts = [FIRST, Step(2, (Row(2, 1, 0, PROMPT, True),), (PageGrant(1, 0, (3,)),))]
    pending = [two.hosts.launch(step) for step in prompts]
    two.runners[0]._thread.submit(lambda: None).result(60)  # behind both
    assert (first.runs, second.runs) == (2, 0)
    second.gate.set()
    assert [each.result()[0].rows[0].token for each in pending] == [10, 10]


def test_a_decode_waits_for_its_own_token_only(two: Pipeline) -> None:
    """The second sequence's decode is launched when the last stage holds back a third one's."""
    two.hosts.launch(FIRST).result()
    two.programs[1].gate.clear()
    other = Step(2, (Row(2, 1, 0, PROMPT, True),), (PageGrant(1, 0, (3,)),))
    pending = [two.hosts.launch(other), two.hosts.launch(Step(3, (Row(1, 0, 2, (), True),)))]
    two.runners[0]._thread.submit(lambda: None).result(60)
    assert two.programs[0].runs == 3
    two.programs[1].gate.set()
    assert [each.result()[0].rows[0].token for each in pending] == [10, 13]


def test_a_warm_up_runs_on_every_stage(pipeline: Pipeline) -> None:
    calls = [threading.Thread(target=runner.warm, args=[0]) for runner in pipeline.runners]
    for call in calls:
        call.start()
    for call in calls:
        call.join(60)
    assert [programs.runs for programs in pipeline.programs] == [1] * len(calls)
    assert tokens_of(play(pipeline.hosts, [FIRST])) == [[8 + len(calls)]]


def test_another_stage_says_when_its_part_is_done_and_has_no_rows(two: Pipeline) -> None:
    pending = [runner.launch(FIRST) for runner in two.runners]
    (result,) = pending[1].result()
    assert (result.number, result.rows) == (1, ())
    assert two.programs[1].runs == 1


@pytest.mark.parametrize("index", [0, 1])
def test_closing_ends_what_waits_for_another_stage(two: Pipeline, index: int) -> None:
    pending = two.runners[index].launch(FIRST)  # the other stage is never told
    closing = threading.Thread(target=two.runners[index].close)
    closing.start()
    with pytest.raises(LinkClosed):
        pending.result()
    closing.join(60)
    assert two.programs[index].closed
    assert not two.failures  # it was asked to


@pytest.mark.parametrize(
    ("stray", "complaint"),
    [
        (StageMessage(7, (np.zeros((20, 2), np.float32),)), "expected step 0 .* got 7"),
        (
            StageMessage(0, (np.zeros((3, 2), np.float32),)),
            r"step 0 from .* is \[\(\(3, 2\), 'float32'",
        ),
        (StageMessage(0, (np.zeros((20, 2), np.int32),)), "int32"),
        (StageMessage(0, ()), r"is \[\], expected"),
    ],
)
def test_what_does_not_belong_ends_the_pipeline(
    two: Pipeline, stray: StageMessage, complaint: str
) -> None:
    stranger = QueueLink()
    stranger.connect(two.links[1])
    stranger.send(stray)
    with pytest.raises(LinkBroken, match=complaint):
        two.runners[1].launch(FIRST).result()
    assert [type(failure) for failure in two.failures] == [LinkBroken]
    with pytest.raises(LinkBroken):
        two.runners[1].launch(FIRST)


def test_tokens_of_another_step_end_the_pipeline_for_who_reads_them(two: Pipeline) -> None:
    stranger = QueueLink()
    stranger.connect(two.links[0])
    stranger.send(StageMessage(3, (np.zeros((2, 6), np.int32),)))
    with pytest.raises(LinkBroken, match="got 3"):
        two.runners[0].launch(FIRST).result()
    assert [type(failure) for failure in two.failures] == [LinkBroken]


def test_a_device_that_fails_is_the_reason_that_the_reader_gets(two: Pipeline) -> None:
    two.programs[0].closed = True  # its run is an AssertionError
    pending = two.runners[0].launch(FIRST)
    with pytest.raises(AssertionError):
        pending.result()
    assert [type(failure) for failure in two.failures] == [AssertionError]


def test_pipelines_that_share_a_thread_compute_in_the_order_of_their_launches() -> None:
    """Whatever arrives first: the hosts of a stage must start programs in one order."""
    thread, stages, links = StageThread(), fake_stages(2), [ring(2), ring(2)]
    firsts = [PipelineRunner(fake_stages(2)[0], each[0], StageThread()) for each in links]
    others = [stages[1], fake_stages(2)[1]]
    seconds = [
        PipelineRunner(programs, each[1], thread)
        for programs, each in zip(others, links, strict=True)
    ]
    pending = [runner.launch(FIRST) for runner in seconds]  # the first pipeline's comes first
    firsts[1].launch(FIRST)  # but only the second one has something to compute
    with pytest.raises(TimeoutError):
        pending[1]._done.result(0.3)
    assert others[1].runs == 0
    firsts[0].launch(FIRST)
    assert pending[1].result()[0].rows == ()
    assert (others[0].runs, others[1].runs) == (1, 1)
    for runner in (*firsts, *seconds):
        runner.close()


def test_closing_one_pipeline_does_not_wait_for_another_one_of_the_thread() -> None:
    thread, links = StageThread(), [ring(2), ring(2)]
    busy, idle = (PipelineRunner(fake_stages(2)[1], each[1], thread) for each in links)
    pending = busy.launch(FIRST)  # holds the thread: nothing comes from its first stage
    idle.close()
    busy.close()
    with pytest.raises(LinkClosed):
        pending.result()
