"""The assigner: golden stories, and the laws that every assignment obeys.

A story in golden/*.txt is a plot in comments, then one line for each server and model, then
`---` and the report. `SAX_REWRITE_GOLDEN=1` writes the reports anew: read the difference.
"""

import os
import random
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from admin_server.assignment.assigner import Assignment, assign
from admin_server.ledger.placement import devices_of
from sax.types import JoinedServer, ModelSpec, Placement, ServableInfo, ServableStatus, ServerInfo
from tests.each_case import each_case

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
GIB = 2**30


def serves(info: ServerInfo, model_path: str) -> bool:
    """What the assigner has to find out by its own way: the prefix may be left out."""
    prefix = "saxml.server."
    return model_path.removeprefix(prefix) in {p.removeprefix(prefix) for p in info.model_paths}


def server(
    address: str,
    *,
    paths: str = "llama",
    memory: str = "0",
    holds: str = "",
    tags: str = "",
    devices: str = "0",
) -> JoinedServer:
    """`holds` is model=GiB, comma-separated."""
    held = [part.split("=") for part in holds.split(",") if part]
    return JoinedServer(
        ServerInfo(
            address=address,
            model_paths=tuple(paths.split(",")),
            memory_total=int(memory) * GIB,
            tags=tuple(tags.split(",")) if tags else (),
            devices=int(devices),
            chip_topology="unknown",
        ),
        0.0,
        tuple(
            ServableInfo(
                model_id=f"/sax/test/{name}", status=ServableStatus.LOADED, memory=int(size) * GIB
            )
            for name, size in held
        ),
    )


def model(
    name: str,
    *,
    path: str = "llama",
    replicas: str = "1",
    tags: str = "",
    devices: str = "0",
    memory: str = "0",
    base: str = "",
) -> ModelSpec:
    return ModelSpec(
        model_id=f"/sax/test/{name}",
        model_path=path,
        checkpoint="None",
        replicas=int(replicas),
        overrides={"BASE": f'"/sax/test/{base}"'} if base else {},
        placement=Placement(
            tags=tuple(tags.split(",")) if tags else (),
            devices=int(devices),
            memory=int(memory) * GIB,
        ),
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


@each_case("path", GOLDEN)
def test_a_story_ends_as_it_is_told(path):
    story, _, end = path.read_text().partition("---\n")
    report = play(story)
    if os.environ.get("SAX_REWRITE_GOLDEN"):
        path.write_text(f"{story}---\n{report}")
    assert report == end


def test_there_are_stories():
    assert len(GOLDEN) >= 8


@each_case("offered", ["a.B", "saxml.server.a.B"])
@each_case("wanted", ["a.B", "saxml.server.a.B"])
def test_a_path_is_known_with_and_without_the_saxml_prefix(wanted, offered):
    one = [server("h:1", paths=offered)]
    assert assign([model("m", path=wanted)], one, {}).addresses["/sax/test/m"] == ("h:1",)
    assert assign([model("m", path=wanted + "C")], one, {}).addresses["/sax/test/m"] == ()


ADDRESSES = [f"h{n}:1" for n in range(6)]
A_OR_B = "fast,model:/sax/test/a,model:/sax/test/b"
cells = st.builds(
    lambda servers, models: (servers, models),
    st.lists(
        st.builds(
            server,
            st.sampled_from(ADDRESSES),
            paths=st.sampled_from(["x", "y", "x,y"]),
            memory=st.sampled_from(["0", "4", "9"]),
            holds=st.sampled_from(["", "a=2", "b=5", "a=2,b=5,c=1"]),
            tags=st.sampled_from(["", "fast", "fast,spot", "model:/sax/test/a", A_OR_B]),
            devices=st.sampled_from(["0", "1", "8"]),
        ),
        unique_by=lambda one: one.info.address,
    ),
    st.lists(
        st.builds(
            model,
            st.sampled_from("abcd"),
            path=st.sampled_from(["x", "y", "saxml.server.x"]),
            replicas=st.sampled_from("0123"),
            tags=st.sampled_from(["", "", "fast", "spot,fast"]),
            devices=st.sampled_from(["0", "0", "2"]),
            memory=st.sampled_from(["0", "3", "8"]),
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
        for info in (by_address[address].info for address in addresses):
            assert serves(info, spec.model_path)
            assert set(spec.placement.tags) <= set(info.tags)
            assert spec.placement.devices <= devices_of(info)
            assert admits(info, spec.model_id)
        assert all(result.reasons[spec.model_id])


def admits(info: ServerInfo, model_id: str) -> bool:
    """Is the server for anyone, or for this model?"""
    reserved = [tag for tag in info.tags if tag.startswith("model:")]
    return not reserved or f"model:{model_id}" in reserved


@given(cells)
def test_a_model_prefers_the_servers_that_nobody_else_may_use(cell):
    servers, models = cell
    result = assign(models, servers, {})
    by_address = {one.info.address: one.info for one in servers}
    for spec in models:
        own = [
            one.info.address
            for one in servers
            if f"model:{spec.model_id}" in one.info.tags
            and not one.info.memory_total  # has room for anything
            and serves(one.info, spec.model_path)
            and set(spec.placement.tags) <= set(one.info.tags)
            and devices_of(one.info) >= spec.placement.devices
        ]
        addresses = result.addresses[spec.model_id]
        if any(not set(by_address[a].tags) & {f"model:{spec.model_id}"} for a in addresses):
            assert set(own) <= set(addresses)


def overfull(servers, models, assignment, sizes) -> list[str]:
    """The servers that are given more bytes than they have."""
    told = {spec.model_id: spec.placement.memory for spec in models} | sizes
    return [
        one.info.address
        for one in servers
        if 0
        < one.info.memory_total
        < sum(
            told.get(model_id, 0)
            for model_id, addresses in assignment.addresses.items()
            if one.info.address in addresses
        )
    ]


def sizes_told(servers) -> dict[str, int]:
    """One size for each name, in these cells."""
    return {held.model_id: held.memory for one in servers for held in one.servables}


@given(cells)
def test_what_is_placed_fits_the_memory_that_is_known(cell):
    servers, models = cell
    assert not overfull(servers, models, assign(models, servers, {}), sizes_told(servers))


@given(cells, st.data())
def test_what_is_kept_of_loads_that_began_fits_as_well(cell, data):
    servers, models = cell
    current = {
        spec.model_id: data.draw(st.lists(st.sampled_from(ADDRESSES), unique=True))
        for spec in models
    }
    empty = [replace(one, servables=()) for one in servers]  # nothing is in memory yet
    assert not overfull(empty, models, assign(models, empty, current), {})


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
        there = [*(ready(one, before) for one in servers), server(address, paths="x,y")]
        after = assign(models, there, before.addresses)
        for spec in models:
            kept = before.addresses[spec.model_id]
            assert set(kept) <= set(after.addresses[spec.model_id])


def ready(one: JoinedServer, assignment: Assignment) -> JoinedServer:
    """The server with all that was placed there loaded."""
    loaded = [
        ServableInfo(model_id=model_id, status=ServableStatus.LOADED)
        for model_id, addresses in assignment.addresses.items()
        if one.info.address in addresses
    ]
    return replace(one, servables=tuple(loaded))


@given(cells, st.sampled_from(ADDRESSES))
def test_a_server_that_goes_moves_only_what_it_had(cell, address):
    servers, models = cell
    before = assign(models, servers, {})
    left = [ready(one, before) for one in servers if one.info.address != address]
    after = assign(models, left, before.addresses)
    for spec in models:
        kept = [other for other in before.addresses[spec.model_id] if other != address]
        assert set(kept) <= set(after.addresses[spec.model_id])


@given(cells)
def test_a_replica_is_missing_only_if_no_server_has_room_for_it(cell):
    servers, models = cell
    result = assign(models, servers, {})
    sizes = {spec.model_id: spec.placement.memory for spec in models} | sizes_told(servers)
    for spec in models:
        for one in servers if result.reasons[spec.model_id] else ():
            there = [
                m for m, addresses in result.addresses.items() if one.info.address in addresses
            ]
            free = one.info.memory_total - sum(sizes[model_id] for model_id in there)
            assert (
                spec.model_id in there
                or not serves(one.info, spec.model_path)
                or not admits(one.info, spec.model_id)
                or not set(spec.placement.tags) <= set(one.info.tags)
                or devices_of(one.info) < spec.placement.devices
                or (one.info.memory_total > 0 and sizes[spec.model_id] > free)
            )


def test_a_model_that_took_all_that_was_free_fits_where_less_is_left():
    """Its second replica would do with what the server says is the least."""
    servers = [server("a", memory="16", holds="wide=16"), server("b", memory="16", holds="other=8")]
    specs = [model("wide", replicas="2"), model("other")]
    current = {"/sax/test/wide": ("a",), "/sax/test/other": ("b",)}
    assert assign(specs, servers, current).addresses["/sax/test/wide"] == ("a",)
    least = {"/sax/test/wide": 6 * GIB}
    placed = assign(specs, servers, current, least_bytes=least)
    assert placed.addresses["/sax/test/wide"] == ("a", "b")
