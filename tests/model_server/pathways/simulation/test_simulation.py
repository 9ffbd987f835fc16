from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example
from hypothesis import strategies as st

from model_server.pathways.scheduling.handles import DATA_LOSS, Fault
from tests.model_server.examples import examples
from tests.model_server.pathways import requests
from tests.model_server.pathways.simulation.world import VirtualClient, World


def compiled(world: World, client: VirtualClient, device: int) -> int:
    op_id = client.compile(device)
    world.clock.run()
    client.collect()
    return client.answers[op_id].compile_response.loaded_executable_handle


def test_weights_share_an_island_within_a_tenth() -> None:
    world, weights = World(islands=1), [1.0, 2.0, 4.0, 8.0]
    clients = [VirtualClient(world, weight) for weight in weights]
    programs = [compiled(world, client, 0) for client in clients]
    begun_s = world.clock.now_s
    for client, program in zip(clients, programs, strict=True):
        array = client.put(0, 0)
        for _ in range(1500):
            array = client.execute(program, array)
    world.clock.run(begun_s + 1500 * world.program_s)
    order = world.up[0][0].executor.order
    kinds = [session for session, kind in order if "_execute_" in kind]
    assert len(kinds) == pytest.approx(1500, rel=0.05)  # the island is never idle
    kinds = kinds[150:]  # the first client was alone for a moment
    total = len(kinds)
    for client, weight in zip(clients, weights, strict=True):
        share = kinds.count(client.session.number) / total
        assert share == pytest.approx(weight / sum(weights), rel=0.1)


def test_a_result_is_fetched_before_works_that_wait_and_do_not_touch_it() -> None:
    world = World(islands=1)
    clients = [VirtualClient(world) for _ in range(2)]
    programs = [compiled(world, client, 0) for client in clients]
    first, array = clients[0], clients[0].put(41, 0)
    results = [first.execute(programs[0], array) for _ in range(20)]
    for _ in range(20):
        clients[1].execute(programs[1], clients[1].put(0, 0))
    (op_id, buffer), (last_op, last_buffer) = first.fetch(results[0]), first.fetch(results[-1])
    world.clock.run(world.clock.now_s + 5 * world.program_s)
    first.collect()
    assert first.fetched(op_id, buffer) == 42
    assert last_op not in first.answers
    world.clock.run()
    first.collect()
    assert first.fetched(last_op, last_buffer) == 42


def test_an_only_client_is_not_held_back() -> None:
    world = World(islands=1)
    client = VirtualClient(world)
    program = compiled(world, client, 0)
    begun_s, array = world.clock.now_s, client.put(0, 0)
    for _ in range(30):
        array = client.execute(program, array)
    op_id, buffer = client.fetch(array)
    world.clock.run()
    client.collect()
    assert client.fetched(op_id, buffer) == 30
    assert world.clock.now_s - begun_s < 30 * world.program_s + 0.01


def test_stages_on_two_islands_overlap() -> None:
    world = World()
    client = VirtualClient(world)
    first, second = compiled(world, client, 0), compiled(world, client, 2)
    begun_s = world.clock.now_s
    fetches = []
    for batch in range(20):
        there = client.copy(client.execute(first, client.put(batch, 0)), 2)
        fetches.append(client.fetch(client.execute(second, there)))
    world.clock.run()
    client.collect()
    assert [client.fetched(*each) for each in fetches] == [batch + 2 for batch in range(20)]
    assert world.clock.now_s - begun_s < 1.15 * 21 * world.program_s


def test_an_array_that_had_not_wholly_left_a_lost_island_is_lost_with_it() -> None:
    world = World()
    client = VirtualClient(world)
    fetch = client.fetch(client.copy(client.put(5, 0), 2))
    world.clock.run(0.005)  # the island has said that it sent the array
    world.lose(0)
    world.clock.run()
    client.collect()
    found = client.fetched(*fetch)
    assert isinstance(found, Fault)
    assert found.code == DATA_LOSS


class Story:
    """Clients that do anything in any order while islands come and go."""

    def __init__(self, seed: int, hosts: int) -> None:
        self.random = random.Random(seed)
        self.world = World(hosts=hosts)
        self.clients = [VirtualClient(self.world, weight) for weight in (1.0, 3.0)]
        self.programs = {
            (client, island): compiled(self.world, client, 2 * island)
            for client in self.clients
            for island in (0, 1)
        }
        # Per client: handle -> value, island, and the island's incarnation when it was made.
        self.arrays: dict[VirtualClient, dict[int, tuple[int, int, int]]] = {
            client: {} for client in self.clients
        }
        self.fetches: list[tuple[VirtualClient, tuple[int, int], int]] = []
        self.losses = 0

    def incarnation(self, island: int) -> int:
        return self.world.dispatcher.island(island).epoch

    def step(self) -> None:
        client = self.random.choice(self.clients)
        arrays = self.arrays[client]
        action = self.random.choice("ppeeecffdlra")
        if action == "p":
            self.put(client)
        elif action == "a":
            self.world.clock.run(self.world.clock.now_s + self.random.random() * 0.05)
        elif action == "l" and self.random.random() < 0.3:
            self.lose()
        elif action == "r":
            self.start()
        elif arrays and action in "ecfd":
            handle = self.random.choice(list(arrays))
            {"e": self.execute, "c": self.copy, "f": self.fetch, "d": self.destruct}[action](
                client, handle
            )

    def put(self, client: VirtualClient) -> None:
        island, value = self.random.randrange(2), self.random.randrange(1000)
        handle = client.put(value, 2 * island + self.random.randrange(2))
        self.arrays[client][handle] = (value, island, self.incarnation(island))

    def execute(self, client: VirtualClient, handle: int) -> None:
        value, island, incarnation = self.arrays[client][handle]
        result = client.execute(self.programs[client, island], handle)
        self.arrays[client][result] = (value + 1, island, incarnation)

    def copy(self, client: VirtualClient, handle: int) -> None:
        value, _, _ = self.arrays[client][handle]
        island = self.random.randrange(2)
        result = client.copy(handle, 2 * island)
        self.arrays[client][result] = (value, island, self.incarnation(island))

    def fetch(self, client: VirtualClient, handle: int) -> None:
        self.fetches.append((client, client.fetch(handle), self.arrays[client][handle][0]))

    def destruct(self, client: VirtualClient, handle: int) -> None:
        del self.arrays[client][handle]
        client.send(requests.request("destruct_array", array_handle=[handle]))

    def lose(self) -> None:
        island = self.random.randrange(2)
        if self.world.dispatcher.island(island).up:
            self.losses += 1
            self.world.lose(island)

    def start(self) -> None:
        for island in (0, 1):
            if not self.world.dispatcher.island(island).up:
                self.world.start(island)

    def check(self) -> None:
        """Everything was answered once; a fetch brought its value or the loss, never another."""
        self.start()
        self.world.clock.run()
        for client in self.clients:
            client.collect()
            assert len(client.answers) == client.asked
        for client, asked, value in self.fetches:
            found: Any = client.fetched(*asked)
            if self.losses and isinstance(found, Fault):
                assert found.code == DATA_LOSS, found
            else:
                assert found == value
        for hosts in self.world.up.values():
            assert all(host.executor.order == hosts[0].executor.order for host in hosts)

    def leave(self) -> None:
        """When all clients have gone, nothing of theirs is left anywhere."""
        for client in self.clients:
            self.world.dispatcher.close(client.session)
        self.world.clock.run()
        for hosts in self.world.up.values():
            assert all(not host.executor.sessions for host in hosts)
        for number in (0, 1):
            assert len(self.world.dispatcher.island(number).programs) == 0
            assert self.world.dispatcher.island(number).outstanding == 0


@examples(st.integers(0, 1 << 30), st.integers(1, 3), few=20, many=60)
@example(187, 1)  # requests for an incarnation that has ended, sent in the next one
@example(7005, 2)  # and watched ones, let go while the island is down
def test_whatever_happens_no_number_is_wrong_and_nothing_is_left(seed: int, hosts: int) -> None:
    story = Story(seed, hosts)
    for _ in range(150):
        story.step()
    story.check()
    story.leave()


def test_stories_do_lose_islands_and_do_bring_numbers() -> None:
    """The stories themselves: without losses or successes they would prove nothing."""
    losses = brought = lost = 0
    for seed in range(20):
        story = Story(seed, 1)
        for _ in range(150):
            story.step()
        story.check()
        losses += story.losses
        statuses = [
            client.answers[op_id].response_metadata.status.code
            for client, (op_id, _), _ in story.fetches
        ]
        brought += statuses.count(0)
        lost += statuses.count(DATA_LOSS)
    assert min(losses, brought, lost) > 20
