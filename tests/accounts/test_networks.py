from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.networks import NotANetwork, contains, normalized, within


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("192.0.2.7", "192.0.2.7"),
        (" 192.0.2.7/32 ", "192.0.2.7"),
        ("192.0.2.0/24", "192.0.2.0/24"),
        ("192.0.2.0/255.255.255.0", "192.0.2.0/24"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:DB8:0::/32", "2001:db8::/32"),
        ("2001:db8::1/128", "2001:db8::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("::/0", "::/0"),
    ],
)
def test_an_address_or_network_is_stored_in_one_form(written: str, stored: str) -> None:
    assert normalized(written) == stored
    assert normalized(stored) == stored


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("192.0.2.7/24", "write 192.0.2.0/24 for the network, 192.0.2.7 for that address"),
        ("2001:db8::1/32", "write 2001:db8::/32 for the network, 2001:db8::1 for that address"),
        ("fe80::1%eth0", "leave the % and what follows it out"),
        ("", "neither an address nor a network"),
        ("192.0.2", "neither an address nor a network"),
        ("192.0.2.0/33", "neither an address nor a network"),
        ("office.example", "neither an address nor a network"),
        ("x" * 500, "x…' is neither"),
    ],
)
def test_what_is_no_network_is_refused_with_what_would_be_one(written: str, said: str) -> None:
    with pytest.raises(NotANetwork) as refusal:
        normalized(written)
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("192.0.2.7", True),
        ("::ffff:192.0.2.7", True),
        ("192.0.3.7", False),
        ("2001:db8::7", True),
        ("2001:db9::7", False),
        ("198.51.100.1", True),
        ("198.51.100.2", False),
        ("", False),
        ("/run/web.sock", False),
    ],
)
def test_an_address_is_inside_of_its_networks_only(address: str, inside: bool) -> None:
    assert contains(["192.0.2.0/24", "2001:db8::/32", "198.51.100.1"], address) is inside


@given(st.ip_addresses(), st.data())
def test_a_network_holds_what_the_standard_library_says_it_holds(
    network_address: object, data: st.DataObject
) -> None:
    bits = ip_address(str(network_address)).max_prefixlen
    length = data.draw(st.integers(0, bits))
    network = ip_network(f"{network_address}/{length}", strict=False)
    asked = data.draw(st.ip_addresses(v=network.version))
    mapped = getattr(asked, "ipv4_mapped", None) or getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None:
        assert contains([normalized(str(network))], str(asked)) is (asked in network)


@pytest.mark.parametrize(
    ("networks", "bounds", "lie_within"),
    [
        (["192.0.2.7"], ["192.0.2.0/24"], True),
        (["192.0.2.0/24"], ["192.0.2.0/25", "192.0.2.128/25"], True),
        (["192.0.2.0/24"], ["192.0.2.0/25", "192.0.3.0/24"], False),
        (["192.0.2.7", "2001:db8::1"], ["192.0.2.0/24"], False),
        (["192.0.2.7", "2001:db8::1"], ["192.0.2.0/24", "2001:db8::/32"], True),
        (["::/0"], ["0.0.0.0/0"], False),
        (["0.0.0.0/0"], ["::/0"], False),
        ([], ["192.0.2.0/24"], True),
        (["192.0.2.7"], [], False),
    ],
)
def test_networks_lie_within_others_taken_together(
    networks: list[str], bounds: list[str], lie_within: bool
) -> None:
    assert within(networks, bounds) is lie_within
