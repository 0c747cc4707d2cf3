from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.webhooks.targets import Target, TargetRefused, allowed_hosts, check, is_public, target_of


def test_a_url_is_taken_apart() -> None:
    assert target_of("https://Hooks.Example.com/in?team=a%20b") == Target(
        "hooks.example.com", 443, "/in?team=a%20b"
    )
    assert target_of("https://hooks.example.com:8443").path == "/"
    assert target_of("https://hooks.example.com:8443").host_header == "hooks.example.com:8443"
    assert target_of("https://hooks.example.com").host_header == "hooks.example.com"
    assert target_of("https://[2606:4700::1]:444/").host_header == "[2606:4700::1]:444"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://hooks.example.com/", "https only"),
        ("ftp://hooks.example.com/", "https only"),
        ("hooks.example.com", "https only"),
        ("https:///path", "https only"),
        ("https://.example.com/", "https only"),
        ("https://user:secret@hooks.example.com/", "user name or password"),
        ("https://@hooks.example.com/", "user name or password"),
        ("https://hooks.example.com/#part", "fragment"),
        ("https://hooks.example.com:0/", "port 0"),
        ("https://hooks.example.com:99999/", "no URL"),
        ("https://[::1/", "no URL"),
        ("https://hooks.example.com/a b", "ASCII"),
        ("https://hooks.example.com/\r\nX: y", "ASCII"),
        ("https://hööks.example.com/", "punycode"),
        ("https://hooks.example.com/" + "a" * 500, "at most 500"),
        ("", "ASCII"),
    ],
)
def test_what_is_no_plain_https_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(TargetRefused, match=said):
        target_of(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "::1",
        "::",
        "::10.0.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "fc00::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)
def test_an_address_that_the_internet_does_not_reach_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_an_address_that_the_internet_reaches_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_as_public_in_ipv6_s_clothes(address: IPv4Address) -> None:
    number = int(address)
    for disguise in ((0xFFFF << 32) | number, (0x2002 << 112) | (number << 80), (0x64FF9B << 96) | number):
        assert is_public(IPv6Address(disguise)) == is_public(address)


def test_one_address_that_is_not_public_refuses_the_host_and_says_what_would_allow_it() -> None:
    target = target_of("https://hooks.example.com/")
    addresses = [ip_address("93.184.216.34"), ip_address("10.0.0.7")]
    with pytest.raises(TargetRefused, match=r"10\.0\.0\.7.*SIGNALBOX_WEBHOOK_PRIVATE_HOSTS"):
        check(target, addresses, allowed_hosts(()))
    check(target, addresses[:1], allowed_hosts(()))


@pytest.mark.parametrize(
    ("entry", "allowed"),
    [
        ("hooks.example.com", True),
        ("HOOKS.example.com", True),
        ("10.0.0.7", True),
        ("10.0.0.0/8", True),
        ("other.example.com", False),
        ("example.com", False),
        ("10.1.0.0/16", False),
        ("fc00::/7", False),
    ],
)
def test_an_operator_allows_names_addresses_and_networks(entry: str, allowed: bool) -> None:
    target = target_of("https://hooks.example.com/")
    if allowed:
        check(target, [ip_address("10.0.0.7")], allowed_hosts((entry,)))
        return
    with pytest.raises(TargetRefused):
        check(target, [ip_address("10.0.0.7")], allowed_hosts((entry,)))
