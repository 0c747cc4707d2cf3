import pytest

from signalbox.origins import may_connect


def connect(host: str | None, origin: str | None, *, https: bool = False) -> bool:
    return may_connect(
        host,
        origin,
        allowed_hosts=["localhost", "chat.example.com", "[::1]"],
        trusted_origins=["https://portal.example.com"],
        https=https,
    )


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("chat.example.com", "https://chat.example.com"),
        ("chat.example.com:443", "https://chat.example.com"),
        ("chat.example.com", "https://portal.example.com"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_the_sites_own_pages_and_trusted_ones_may_open_sockets(host: str, origin: str) -> None:
    assert connect(host, origin)


def test_a_program_that_is_no_browser_sends_no_origin_and_may_open_sockets() -> None:
    assert connect("localhost:8000", None)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example.com",
        "http://localhost:3000",
        "http://localhost",
        "https://chat.example.com.evil.example.com",
        "http://chat.example.com:8001",
        "null",
        "file://",
        "",
        "http://",
        "not an origin",
    ],
)
def test_a13_a_foreign_origin_is_refused_another_port_of_the_same_machine_included(origin: str) -> None:
    assert not connect("localhost:8000", origin)
    assert not connect("chat.example.com", origin)


@pytest.mark.parametrize("host", [None, "", "evil.example.com", "localhost.evil.example.com", "127.0.0.1"])
def test_a13_a_foreign_host_is_refused_whatever_the_origin(host: str | None) -> None:
    assert not connect(host, f"http://{host}")
    assert not connect(host, None)


def test_over_https_a_page_that_came_without_it_is_refused() -> None:
    assert connect("chat.example.com", "https://chat.example.com", https=True)
    assert not connect("chat.example.com", "http://chat.example.com", https=True)
