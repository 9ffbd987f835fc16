"""Lists let in whom they name, and nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.auth.acl import (
    ANYONE,
    Acl,
    Principal,
    account_of_host,
    account_of_peer,
    parse_acl,
    parse_acls,
)
from sax.errors import InvalidRequest
from tests.each_case import each_case

NAMES = st.text("abcXYZ019_.@:/-", min_size=1, max_size=12).filter(
    lambda name: not name.startswith("acl/")
)
METHODS = st.sampled_from(
    ["lm.generate", "lm.generate_stream", "lm.score", "lm.embed", "mine", "*"]
)


@given(st.lists(NAMES, max_size=5), NAMES)
def test_a_list_lets_in_whom_it_names_and_nobody_else(names: list[str], name: str) -> None:
    acl = parse_acl(" , ".join(names), "acls")
    assert acl.allows(Principal(name)) == (name in names)


@given(st.text(max_size=60), NAMES)
def test_no_text_at_all_lets_in_someone_it_does_not_name(text: str, name: str) -> None:
    try:
        acl = parse_acl(text, "acls")
    except InvalidRequest:
        return
    words = [word.strip() for word in text.split(",")]
    assert not acl.allows(ANYONE)
    if acl.allows(Principal(name)):
        assert name in words or "*" in words or "acl/all" in words


@given(st.dictionaries(METHODS, st.lists(NAMES, min_size=1, max_size=3)), METHODS, NAMES)
def test_a_method_is_open_only_where_no_list_could_be_meant_for_it(
    lists: dict[str, list[str]], method: str, name: str
) -> None:
    acl = parse_acls({key: ",".join(names) for key, names in lists.items()}).of(method)
    named = {each for names in lists.values() for each in names}
    if acl is None:
        assert method not in lists
        assert "*" not in lists
    else:
        assert not acl.allows(Principal(name)) or name in named


@pytest.mark.parametrize("text", ["*", "acl/all", "alice, *"])
def test_a_star_lets_in_all_who_proved_who_they_are_and_only_them(text: str) -> None:
    acl = parse_acl(text, "acls")
    assert acl.allows(Principal("anybody"))
    assert not acl.allows(ANYONE)


def test_an_empty_list_names_nobody() -> None:
    assert parse_acl(" ", "acls").empty
    assert not Acl().allows(Principal("alice"))


def test_a_method_goes_by_its_own_list_then_its_twins_then_the_star() -> None:
    def who(lists: dict[str, str], method: str) -> str:
        return str(parse_acls(lists).of(method))

    all_three = {"lm.generate": "a", "lm.generate_stream": "b", "*": "c"}
    assert [who(all_three, m) for m in ("lm.generate", "lm.generate_stream", "lm.score")] == [
        "a",
        "b",
        "c",
    ]
    assert who({"lm.generate": "a", "*": "c"}, "lm.generate_stream") == "a"
    assert who({"lm.generate_stream": "b", "*": "c"}, "lm.generate") == "b"
    assert who({"lm.generate": "a"}, "lm.score") == "None"
    assert who({"lm.generate": "", "*": "c"}, "lm.generate") == "c"


@each_case(
    "lists",
    [
        {"lm.genrate": "alice"},
        {"vm.look": "alice"},
        {"": "alice"},
        {"lm generate": "alice"},
        {"x" * 101: "alice"},
        {"lm.generate": "alice bob"},
        {"lm.generate": "alice,,bob"},
        {"lm.generate": "acl/team"},
        {"lm.generate": "x" * 201},
        {"lm.generate": ",".join(f"n{i}" for i in range(1001))},
        {f"m{i}": "alice" for i in range(101)},
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_by_the_name_of_its_field(
    lists: dict[str, str],
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_acls(lists)
    assert refused.value.param == "acls"


@each_case(
    "host, account",
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_account_is_an_ipv4_address_or_an_ipv6_network(host: str, account: str) -> None:
    assert account_of_host(host) == account


@pytest.mark.parametrize(
    ("peer", "account"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::/64"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
    ],
)
def test_a_grpc_peer_is_its_host_without_the_port(peer: str, account: str) -> None:
    assert account_of_peer(peer) == account
