"""What is remembered of a store that fails."""

from admin_server.health_routes import describe_health
from admin_server.store_health import StoreHealth


def test_a_store_that_nobody_has_written_to_yet_is_well():
    health = StoreHealth(lambda: 5.0)
    assert (health.failing, health.trouble, health.since_s) == (False, "", None)
    assert describe_health(health, 5.0) == {"status": "ok", "reads": "ok", "writes": "ok"}


def test_trouble_is_told_with_its_last_reason_and_since_its_first():
    now = 10.0
    health = StoreHealth(lambda: now)
    health.failed("one")
    now = 12.0
    health.failed("two")
    assert (health.trouble, health.since_s, health.failures) == ("two", 10.0, 2)
    assert describe_health(health, 13.5) == {
        "status": "degraded",
        "reads": "ok",
        "writes": "refused",
        "reason": "two",
        "for_s": 3.5,
    }
    health.succeeded()
    assert (health.failing, health.trouble, health.failures) == (False, "", 2)


async def test_who_waits_hears_of_the_change_and_not_of_its_repetition():
    health = StoreHealth(lambda: 0.0)
    change = health.changed.next()
    health.succeeded()
    assert not change.is_set()
    health.failed("one")
    assert change.is_set()
    change = health.changed.next()
    health.failed("two")
    assert not change.is_set()
    health.succeeded()
    assert change.is_set()
