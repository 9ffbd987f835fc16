"""The membership: whatever servers there are, the next leader reads them as they were."""

import json

from hypothesis import given
from hypothesis import strategies as st

from admin_server.leadership.leadership import decode_membership, encode_membership
from sax.types import ServerInfo

INFOS = st.builds(
    ServerInfo,
    address=st.text(min_size=1),
    model_paths=st.sampled_from([(), ("llama",), ("llama", "gemma")]),
    tags=st.lists(st.text()).map(tuple),
    incarnation=st.text(),
    memory_total=st.integers(0, 1 << 60),
    devices=st.integers(0, 1 << 30),
)


@given(st.lists(INFOS, max_size=8))
def test_a_roster_is_read_as_it_was_written(infos):
    assert decode_membership(encode_membership(infos, 7)) == (infos, 7)


def test_a_roster_of_a_version_that_named_no_record_is_read():
    paths = [ServerInfo(address="10.0.0.1:1", model_paths=("llama",))]
    stored = json.loads(encode_membership(paths, 7))
    del stored["sequence"]
    assert decode_membership(json.dumps(stored).encode()) == (paths, 0)


def test_paths_that_servers_share_are_written_once():
    paths = tuple(f"saxml.server.pax.lm.params.{n}" for n in range(66))
    infos = [ServerInfo(address=f"10.0.0.1:{n}", model_paths=paths) for n in range(1, 1001)]
    assert encode_membership(infos, 7).count(paths[0].encode()) == 1
