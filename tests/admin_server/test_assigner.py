"""The assigner: golden stories, and the laws that every assignment obeys.

A story in golden/*.txt is a plot in comments, then one line for each server and model, then
`---` and the report. `SAX_REWRITE_GOLDEN=1` writes the reports anew: read the difference.
"""

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_server.assigner import Assignment, assign
from admin_server.placement import serves
from sax.types import JoinedServer, ModelSpec, ServableInfo, ServableStatus, ServerInfo

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
GIB = 2**30


def server(
    address: str, *, paths: str = "llama", memory: str = "0", holds: str = ""
) -> JoinedServer:
    """`holds` is model=GiB, comma-separated."""
    held = [part.split("=") for part in holds.split(",") if part]
    return JoinedServer(
        ServerInfo(
            address=address, model_paths=tuple(paths.split(",")), memory_total=int(memory) * GIB
        ),
        0.0,
        tuple(
            ServableInfo(
                model_id=f"/sax/test/{name}", status=ServableStatus.LOADED, memory=int(size) * GIB
            )
            for name, size in held
        ),
    )


def model(name: str, *, path: str = "llama", replicas: str = "1") -> ModelSpec:
    return ModelSpec(
        model_id=f"/sax/test/{name}", model_path=path, checkpoint="None", replicas=int(replicas)
    )


def play(story: str) -> str:
    """The report of a story."""
    servers, models, current, failed = [], [], {}, {}
    for line in story.splitlines():
        words = [] if line.startswith("#") else line.split()
        options = dict(word.split(":", 1) for word in words[2:] if ":" in word)
        if words[:1] == ["server"]:
            servers.append(server(words[1], **options))
        elif words[:1] == ["model"]:
            models.append(model(words[1], **options))
        elif words[:1] in (["current"], ["failed"]):
            into = current if words[0] == "current" else failed
            into[f"/sax/test/{words[1]}"] = tuple(words[2:])
    failed = {model_id: frozenset(addresses) for model_id, addresses in failed.items()}
    return tell(assign(models, servers, current, failed))


def tell(assignment: Assignment) -> str:
    lines: list[str] = []
    for model_id, addresses in assignment.addresses.items():
        lines.append(f"{model_id} on {', '.join(addresses) or 'no server'}")
        lines += [f"    missing: {reason}" for reason in assignment.reasons[model_id]]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_story_ends_as_it_is_told(path):
    story, _, end = path.read_text().partition("---\n")
    report = play(story)
    if os.environ.get("SAX_REWRITE_GOLDEN"):
        path.write_text(f"{story}---\n{report}")
    assert report == end


def test_there_are_stories():
    assert len(GOLDEN) >= 8


@pytest.mark.parametrize("offered", ["a.B", "saxml.server.a.B"])
@pytest.mark.parametrize("wanted", ["a.B", "saxml.server.a.B"])
def test_a_path_is_known_with_and_without_the_saxml_prefix(offered, wanted):
    assert serves(server("h:1", paths=offered).info, wanted)
    assert not serves(server("h:1", paths=offered).info, wanted + "C")


ADDRESSES = [f"h{n}:1" for n in range(6)]
cells = st.builds(
    lambda servers, models: (servers, models),
    st.lists(
        st.builds(
            server,
            st.sampled_from(ADDRESSES),
            paths=st.sampled_from(["x", "y", "x,y"]),
            memory=st.sampled_from(["0", "4", "9"]),
            holds=st.sampled_from(["", "a=2", "b=5", "a=2,b=5,c=1"]),
        ),
        unique_by=lambda one: one.info.address,
    ),
    st.lists(
        st.builds(
            model,
            st.sampled_from("abcd"),
            path=st.sampled_from(["x", "y", "saxml.server.x"]),
            replicas=st.sampled_from("0123"),
        ),
        unique_by=lambda one: one.model_id,
    ),
)


@given(cells)
def test_every_assignment_obeys_the_laws(cell):
    servers, models = cell
    by_address = {one.info.address: one for one in servers}
    result = assign(models, servers, {})
    for spec in models:
        addresses = result.addresses[spec.model_id]
        assert len(set(addresses)) == len(addresses) <= spec.replicas
        assert len(addresses) + len(result.reasons[spec.model_id]) == spec.replicas
        assert all(serves(by_address[address].info, spec.model_path) for address in addresses)
        assert all(result.reasons[spec.model_id])


@given(cells)
def test_what_is_placed_fits_the_memory_that_is_known(cell):
    servers, models = cell
    sizes = {
        held.model_id: held.memory for one in servers for held in one.servables
    }  # one size for each name
    result = assign(models, servers, {})
    for one in servers:
        load = sum(
            sizes.get(model_id, 0)
            for model_id, addresses in result.addresses.items()
            if one.info.address in addresses
        )
        assert one.info.memory_total == 0 or load <= one.info.memory_total


@given(cells)
def test_an_assignment_is_kept_when_nothing_changes(cell):
    servers, models = cell
    first = assign(models, servers, {})
    second = assign(models, servers, first.addresses)
    assert {m: set(a) for m, a in second.addresses.items()} == {
        m: set(a) for m, a in first.addresses.items()
    }


@given(cells, st.randoms(use_true_random=False))
def test_the_order_of_servers_and_models_does_not_matter(cell, shuffler: random.Random):
    servers, models = cell
    before = tell(assign(models, servers, {}))
    shuffler.shuffle(servers)
    shuffler.shuffle(models)
    assert tell(assign(models, servers, {})) == before


@given(cells, st.sampled_from(ADDRESSES))
def test_a_server_that_comes_moves_nothing(cell, address):
    servers, models = cell
    before = assign(models, servers, {})
    if all(one.info.address != address for one in servers):
        after = assign(models, [*servers, server(address, paths="x,y")], before.addresses)
        for spec in models:
            kept = before.addresses[spec.model_id]
            assert set(kept) <= set(after.addresses[spec.model_id])


@given(cells)
def test_one_more_replica_is_missing_only_if_no_server_could_take_it(cell):
    servers, models = cell
    unlimited = [server(one.info.address, paths=",".join(one.info.model_paths)) for one in servers]
    result = assign(models, unlimited, {})
    for spec in models:
        able = sum(serves(one.info, spec.model_path) for one in unlimited)
        assert len(result.addresses[spec.model_id]) == min(able, spec.replicas)
