"""Under which host a server is known."""

from model_server.config import advertised_host


def test_what_somebody_told_comes_before_what_the_machine_knows() -> None:
    for host, told, known in (
        ("127.0.0.1", "", "127.0.0.1"),
        ("0.0.0.0", "10.4.0.7", "10.4.0.7"),
        ("127.0.0.1", "tpu-0.lab", "tpu-0.lab"),
        ("0.0.0.0", "fd00::7", "[fd00::7]"),
        ("0.0.0.0", "[fd00::7]", "[fd00::7]"),
    ):
        assert advertised_host(host, told) == known


def test_a_server_on_every_address_is_known_by_one_of_them() -> None:
    assert advertised_host("0.0.0.0") not in ("", "0.0.0.0")
