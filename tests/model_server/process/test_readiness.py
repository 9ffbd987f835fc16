"""When a rollout may go on to the next replica."""

from model_server.process.health_page import NOTHING_CAME_S, why_not_ready

LATER = NOTHING_CAME_S + 1


def test_a_server_is_ready_once_it_has_joined_and_loads_nothing() -> None:
    cases: list[tuple[float | None, tuple[str, ...], tuple[str, ...], str]] = [
        (None, (), (), "not joined"),
        (None, (), ("/sax/test/m",), "not joined"),
        (LATER, ("/sax/test/b", "/sax/test/a"), (), "loading /sax/test/a, /sax/test/b"),
        (LATER, ("/sax/test/m",), ("/sax/test/n",), "loading /sax/test/m"),
        (1.0, (), (), "joined just now"),
        (1.0, (), ("/sax/test/m",), ""),
        (LATER, (), (), ""),
        (float("inf"), (), (), ""),
    ]
    for joined_for_s, loading, loaded, reason in cases:
        found = why_not_ready(joined_for_s=joined_for_s, loading=loading, loaded=loaded)
        assert reason in found
        assert bool(reason) == bool(found), (joined_for_s, loading, loaded)
