"""What is remembered of a store that fails."""

from admin_server.api.status_page import describe_health
from admin_server.leadership import AdminRole
from admin_server.storage.store_check import StoreHealth
from sax.names import CellId


def test_a_store_that_nobody_has_written_to_yet_is_well():
    health = StoreHealth(lambda: 5.0)
    assert (health.failing, health.trouble, health.since_s) == (False, "", None)


def test_trouble_is_told_with_its_last_reason_and_since_its_first():
    now = 10.0
    health = StoreHealth(lambda: now)
    health.failed("one")
    now = 12.0
    health.failed("two")
    assert (health.trouble, health.since_s, health.failures) == ("two", 10.0, 2)
    told = describe_health(AdminRole(CellId("test"), health), 13.5)
    assert (told["status"], told["reason"], told["for_s"]) == ("degraded", "two", 3.5)
    health.succeeded()
    assert (health.failing, health.trouble, health.failures) == (False, "", 2)


def test_an_admin_that_follows_is_well_and_refuses_everything():
    role = AdminRole(CellId("test"), StoreHealth(lambda: 5.0))
    role.follow("10.0.0.1:1")
    assert describe_health(role, 5.0) == {
        "status": "ok",
        "role": "follows the admin server of /sax/test at 10.0.0.1:1",
        "reads": "refused",
        "writes": "refused",
    }


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
