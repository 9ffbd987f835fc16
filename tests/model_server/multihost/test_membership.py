"""Who the hosts are: every way to be told, and every contradiction refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.multihost.membership import Membership, membership
from sax.errors import InvalidRequest

# As a real LeaderWorkerSet of two groups injected them into the second pod of the second group.
LEADER_WORKER_SET = {
    "LWS_LEADER_ADDRESS": "gem-1.gem.default",
    "LWS_GROUP_SIZE": "4",
    "LWS_WORKER_INDEX": "1",
}
TPU = {"TPU_WORKER_HOSTNAMES": "gem-1.gem,gem-1-1.gem,gem-1-2.gem", "TPU_WORKER_ID": "2"}
POD = "gemma-server-0-3"  # <js>-<rj>-<job>-<pod>
JOB = {"JOB_COMPLETION_INDEX": "3", "SAX_HOSTS": "4"}


def member(
    hosts: str = "", ordinal: int | None = None, hostname: str = "me", **environ: str
) -> Membership:
    return membership(hosts, ordinal, environ, hostname)


def refused(
    hosts: str = "", ordinal: int | None = None, hostname: str = "me", **environ: str
) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        membership(hosts, ordinal, environ, hostname)
    assert caught.value.param
    assert caught.value.param in caught.value.text
    return caught.value


def test_without_a_word_there_is_one_host() -> None:
    alone = member()
    assert alone == Membership(1, 0, "me", ("me",), "no other hosts configured")
    assert member("1") == Membership(1, 0, "me", ("me",), "--hosts")
    assert member("", 0) == alone


def test_a_list_names_the_hosts_and_the_flag_tells_which_this_is() -> None:
    assert member("a, b.example ,10.0.0.3", 1) == Membership(
        3, 1, "a", ("a", "b.example", "10.0.0.3"), "--hosts and --host_ordinal"
    )
    assert member("fd00::1,[fd00::2]", 0).names == ("fd00::1", "fd00::2")


def test_one_machine_may_be_named_several_times() -> None:
    assert member("127.0.0.1,127.0.0.1", 1).names == ("127.0.0.1", "127.0.0.1")


def test_our_own_variables_say_the_same_as_the_flags() -> None:
    ours = member(SAX_HOSTS="a,b", SAX_HOST_ORDINAL="1")
    assert (ours.count, ours.ordinal, ours.primary, ours.names) == (2, 1, "a", ("a", "b"))
    counted = member("3", SAX_PRIMARY="node-0.lab", SAX_HOST_ORDINAL="2")
    assert counted.names == ("node-0.lab", "node-1.lab", "node-2.lab")
    nameless = member("2", 1, SAX_PRIMARY="10.0.0.1")
    assert (nameless.primary, nameless.names) == ("10.0.0.1", ("10.0.0.1", "host 1"))


def test_tpu_variables_are_enough_and_agree_with_the_flag() -> None:
    for hosts in ("", "3", "gem-1,gem-1-1,gem-1-2"):
        found = member(hosts, **TPU)
        assert (found.count, found.ordinal) == (3, 2), hosts
        assert found.primary.startswith("gem-1"), hosts
        assert "TPU_WORKER_ID" in found.source, hosts


def test_tpu_process_addresses_lose_their_ports() -> None:
    addresses = "10.0.0.1:8476,[fd00::2]:8476,host-3:8476"
    found = member(TPU_PROCESS_ADDRESSES=addresses, TPU_WORKER_ID="0")
    assert found.names == ("10.0.0.1", "fd00::2", "host-3")
    assert found.source == "TPU_PROCESS_ADDRESSES and TPU_WORKER_ID"


def test_a_single_tpu_host_is_one_host_and_hinders_nobody() -> None:
    lone = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    assert member(**lone).count == 1
    assert member(**lone, **LEADER_WORKER_SET).count == 4


def test_a_leader_worker_set_is_enough() -> None:
    found = member(**LEADER_WORKER_SET)
    assert (found.count, found.ordinal, found.primary) == (4, 1, "gem-1.gem.default")
    assert found.names[1:3] == ("gem-1-1.gem.default", "gem-1-2.gem.default")


def test_a_leader_without_tpus_is_no_host_of_the_slice() -> None:
    # The group size counts the leader; the TPU's own variables do not.
    found = member(**LEADER_WORKER_SET, **TPU)
    assert (found.count, found.ordinal) == (3, 2)


def test_a_job_set_is_told_the_count_and_its_coordinator() -> None:
    found = member(**JOB, SAX_PRIMARY="gemma-server-0-0.gemma", hostname="node-17")
    assert (found.count, found.ordinal, found.primary) == (4, 3, "gemma-server-0-0.gemma")
    assert found.names[3] == "gemma-server-0-3.gemma"


def test_a_job_set_without_a_coordinator_is_derived_from_the_host_name() -> None:
    for variable in ("SAX_SUBDOMAIN", "JOBSET_NAME"):
        found = member(hostname=POD, **JOB, **{variable: "gemma"})
        assert (found.primary, found.ordinal) == ("gemma-server-0-0.gemma", 3), variable
        assert found.names[3] == "gemma-server-0-3.gemma", variable


def test_a_plain_indexed_job_is_derived_the_same_way() -> None:
    found = member("4", hostname="big-3", JOB_COMPLETION_INDEX="3", SAX_SUBDOMAIN="big-svc")
    assert (found.count, found.ordinal, found.primary) == (4, 3, "big-0.big-svc")
    full = member("4", hostname="big-3.big-svc.default", JOB_COMPLETION_INDEX="3")
    assert full.primary == "big-0.big-svc.default"


def test_the_index_of_a_job_alone_makes_no_gang() -> None:
    assert member(JOB_COMPLETION_INDEX="3").count == 1
    assert member("1", JOB_COMPLETION_INDEX="3").ordinal == 0


def test_slices_of_a_multislice_job_are_no_larger_gang() -> None:
    megascale = {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "elsewhere",
    }
    found = member(**TPU, **megascale)
    assert (found.count, found.ordinal, found.primary) == (3, 2, "gem-1.gem")
    assert "MEGASCALE_NUM_SLICES=2" in found.source
    assert member(**megascale).count == 1
    assert "MEGASCALE" not in member(**TPU, MEGASCALE_NUM_SLICES="").source


def test_a_list_of_loopback_names_is_this_machine_whatever_its_cluster_says() -> None:
    here = "127.0.0.1,localhost"
    found = member(here, 1, **LEADER_WORKER_SET, JOB_COMPLETION_INDEX="0")
    assert (found.count, found.ordinal) == (2, 1)


CONTRADICTIONS: list[tuple[str, int | None, dict[str, str], str, str]] = [
    ("0", None, {}, "--hosts", "1 to 4096"),
    ("-2", None, {}, "--hosts", "1 to 4096"),
    ("99999999999", None, {}, "--hosts", "1 to 4096"),
    ("a,,b", 0, {}, "--hosts", "host name or an address"),
    (" ", None, {}, "--hosts", "host name or an address"),
    ("a:10101,b", 0, {}, "--hosts", "without a port"),
    ("a b", 0, {}, "--hosts", "host name or an address"),
    ("a,b", None, {}, "--host_ordinal", "which of them"),
    ("a,b", 2, {}, "--host_ordinal", "0 to 1"),
    ("a,b", -1, {}, "--host_ordinal", "0 to 1"),
    ("", 2, {}, "--host_ordinal", "give --hosts"),
    ("2", 1, {}, "SAX_PRIMARY", "which is the primary"),
    ("a,b", 0, {"SAX_HOSTS": "3"}, "--hosts", "SAX_HOSTS says 3"),
    ("a,b", 0, {"SAX_HOSTS": "a,c"}, "SAX_HOSTS", "different hosts"),
    ("a,b", 0, {"SAX_HOST_ORDINAL": "1"}, "--host_ordinal", "SAX_HOST_ORDINAL"),
    ("a,b", 0, {"SAX_PRIMARY": "b"}, "SAX_PRIMARY", "begins with a"),
    ("4", None, TPU, "--hosts", "TPU_WORKER_HOSTNAMES says 3"),
    ("1", None, TPU, "--hosts", "TPU_WORKER_HOSTNAMES says 3"),
    ("3", 1, TPU, "--host_ordinal", "TPU_WORKER_ID"),
    ("", None, {**TPU, "TPU_WORKER_ID": "3"}, "TPU_WORKER_ID", "numbered from 0"),
    ("", None, {**TPU, "TPU_WORKER_ID": "two"}, "TPU_WORKER_ID", "not a number"),
    ("", None, {**TPU, "TPU_WORKER_ID": ""}, "--host_ordinal", "which of them"),
    ("", None, {"TPU_WORKER_ID": "3"}, "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID=3"),
    ("", None, {**TPU, "TPU_PROCESS_ADDRESSES": "a:1,b:1"}, "TPU_PROCESS_ADDRESSES", "agree"),
    ("8", None, LEADER_WORKER_SET, "--hosts", "LWS_GROUP_SIZE says 4"),
    ("", None, {"LWS_GROUP_SIZE": "4"}, "LWS_LEADER_ADDRESS", "not set"),
    ("", None, {"LWS_GROUP_SIZE": "0"}, "LWS_GROUP_SIZE", "1 to 4096"),
    ("", None, {**LEADER_WORKER_SET, "LWS_WORKER_INDEX": "4"}, "LWS_WORKER_INDEX", "from 0"),
    ("", None, {"JOB_COMPLETION_INDEX": "5", "SAX_HOSTS": "4"}, "JOB_COMPLETION_INDEX", "to 3"),
    ("", None, JOB, "SAX_PRIMARY", "SAX_SUBDOMAIN"),
    ("", None, {"SAX_PRIMARY": "a"}, "SAX_PRIMARY", "SAX_HOSTS"),
    ("", None, {"SAX_HOST_ORDINAL": "1"}, "SAX_HOST_ORDINAL", "SAX_HOSTS"),
]


def test_what_contradicts_itself_or_is_half_there_is_refused_by_name() -> None:
    for hosts, ordinal, environ, param, words in CONTRADICTIONS:
        error = refused(hosts, ordinal, **environ)
        assert (error.param, words in error.text) == (param, True), (hosts, ordinal, environ)


def test_two_jobs_of_one_job_set_do_not_take_one_primary() -> None:
    error = refused(
        hostname="gemma-server-1-3",
        **JOB,
        SAX_PRIMARY="gemma-server-0-0.gemma",
        JOBSET_NAME="gemma",
    )
    assert "one JobSet per replica" in error.text


@given(st.integers(2, 64), st.data())
def test_every_host_of_a_gang_sees_the_same_gang_however_it_is_told(
    count: int, data: st.DataObject
) -> None:
    ordinal = data.draw(st.integers(0, count - 1))
    pods = [f"js-rj-0-{index}" for index in range(count)]
    listed = ",".join(f"{pod}.js" for pod in pods)
    index = str(ordinal)
    ways = (
        membership(listed, ordinal, {}, "any"),
        membership("", None, {"SAX_HOSTS": listed, "SAX_HOST_ORDINAL": index}, "any"),
        membership("", None, {"TPU_WORKER_HOSTNAMES": listed, "TPU_WORKER_ID": index}, "any"),
        membership(
            str(count), None, {"JOB_COMPLETION_INDEX": index, "JOBSET_NAME": "js"}, pods[ordinal]
        ),
        membership(
            "",
            None,
            {
                "SAX_HOSTS": str(count),
                "JOB_COMPLETION_INDEX": index,
                "SAX_PRIMARY": "js-rj-0-0.js",
            },
            "node",
        ),
    )
    for way in ways:
        assert (way.count, way.ordinal, way.primary) == (count, ordinal, "js-rj-0-0.js")
        assert way.names == tuple(listed.split(","))


@given(st.text(max_size=30), st.none() | st.integers(-3, 9), st.text(max_size=5))
def test_any_text_is_a_gang_or_refused(hosts: str, ordinal: int | None, index: str) -> None:
    try:
        found = membership(hosts, ordinal, {"SAX_HOST_ORDINAL": index}, "me")
    except InvalidRequest:
        return
    assert 0 <= found.ordinal < found.count == len(found.names)
    assert found.primary == found.names[0]
