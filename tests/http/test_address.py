"""The address guard: which addresses are public, and that only those are connected to."""

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.http.address import (
    AddressInfo,
    AddressRefused,
    Names,
    NoIPv6,
    TableResolver,
    guarded_socket,
    network_of,
    open_socket,
    permitted,
    refusal,
    refused_unpinned,
)
from tests.support.site import has_ipv6


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "93.184.216.34",
        "172.15.0.1",
        "172.32.0.1",
        "100.63.255.255",
        "100.128.0.1",
        "223.255.255.1",
        "2606:4700::1111",
        "2a00:1450:4001::1",
        "64:ff9b::8.8.8.8",
        "::ffff:8.8.8.8",
    ],
)
def test_public_addresses_are_permitted(address: str) -> None:
    """U2"""
    assert refusal(address) is None


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.1.2", "loopback"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("169.254.169.254", "link-local"),
        ("100.64.0.1", "private"),
        ("100.100.100.200", "private"),
        ("168.63.129.16", "private"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "reserved"),
        ("192.0.0.192", "reserved"),
        ("192.0.2.1", "reserved"),
        ("198.18.0.1", "reserved"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("255.255.255.255", "reserved"),
        ("::1", "loopback"),
        ("::", "unspecified"),
        ("::127.0.0.1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:a9fe:a9fe", "link-local"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b:1::1", "private"),
        ("2002:7f00:1::", "reserved (6to4)"),
        ("2001:0:53aa:64c:0:fbff:80ff:fffe", "reserved (Teredo)"),
        ("2001:db8::1", "reserved"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "private"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("5f00::1", "reserved"),
        ("4000::1", "reserved"),
        ("localhost", "not an address"),
        ("", "not an address"),
    ],
)
def test_other_addresses_are_refused_by_their_kind(address: str, kind: str) -> None:
    """U2, F19"""
    found = refusal(address)

    assert found is not None
    assert found.startswith(kind)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_however_ipv6_wraps_it(address: ipaddress.IPv4Address) -> None:
    """U2"""
    plain = refusal(str(address))

    assert refusal(f"::ffff:{address}") == plain
    assert refusal(f"64:ff9b::{address}") == plain


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_is_permitted(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """U2"""
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert refusal(str(address)) is not None


def test_the_socket_factory_makes_no_socket_for_a_refused_address() -> None:
    """U2"""
    with pytest.raises(AddressRefused, match=r"169\.254\.169\.254\b.*\blink-local\b"):
        guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("169.254.169.254", 80)))


def test_the_socket_factory_makes_one_for_a_public_address() -> None:
    """U2"""
    with guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("93.184.216.34", 80))) as made:
        assert made.family == socket.AF_INET


async def addresses(table: dict[str, str | Sequence[str]], host: str) -> list[str]:
    return list(permitted(host, await TableResolver(table).resolve(host)))


async def test_of_a_names_addresses_only_the_permitted_ones_are_tried() -> None:
    """U2"""
    assert await addresses({"a.test": ["10.0.0.1", "93.184.216.34", "::1", "2606:4700::1111"]}, "a.test") == [
        "93.184.216.34",
        "2606:4700::1111",
    ]


async def test_a_name_with_no_permitted_address_is_refused_and_says_which_it_has() -> None:
    """U2"""
    with pytest.raises(AddressRefused, match=r"a\.test\b.*\b10\.0\.0\.1\b.*\bprivate\b"):
        await addresses({"a.test": ["10.0.0.1", "::1"]}, "a.test")


async def test_a_name_that_is_not_in_the_table_does_not_exist() -> None:
    """U2"""
    with pytest.raises(socket.gaierror):
        await addresses({}, "a.test")


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("public.test", False),
        ("mixed.test", True),
        ("private.test", True),
        ("unknown.test", False),
        ("127.0.0.1", True),
        ("::1", True),
        ("93.184.216.34", False),
    ],
)
async def test_behind_a_proxy_one_refused_address_is_enough(host: str, refused: bool) -> None:
    """U2"""
    table = {"public.test": "93.184.216.34", "mixed.test": ["93.184.216.34", "10.0.0.1"], "private.test": "10.0.0.1"}

    assert (await refused_unpinned(host, Names(TableResolver(table)), 1.0) is not None) == refused


# A machine without IPv6

V6: AddressInfo = (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("2606:4700::1111", 80, 0, 0))
V4: AddressInfo = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("93.184.216.34", 80))


def failing(number: int, asked: list[int]) -> Callable[[int, int], socket.socket]:
    """Makes no socket, but says why."""

    def make(family: int, kind: int) -> socket.socket:
        asked.append(family)
        raise OSError(number, os.strerror(number))

    return make


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT])
def test_no_socket_is_made_for_an_address_of_ipv6_that_there_is_no_way_to(number: int) -> None:
    """N3: as each kind of machine without it says so"""
    with pytest.raises(NoIPv6, match="IPv6") as told:
        open_socket(V6, failing(number, []))

    assert told.value.errno == number


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_what_else_goes_wrong_with_the_look_is_left_to_the_connection() -> None:
    """N3: where no file is left to open, say"""
    asked: list[int] = []

    open_socket(V6, failing(errno.EMFILE, asked)).close()

    assert asked == [socket.AF_INET6]


def test_an_address_of_ipv4_needs_no_look() -> None:
    """N3: there, no free address means that no port is left"""
    asked: list[int] = []

    open_socket(V4, failing(errno.EADDRNOTAVAIL, asked)).close()

    assert asked == []


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("64:ff9b::c000:201", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::6", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
    ],
)
def test_addresses_of_one_network_count_as_one(address: str, network: str) -> None:
    """Q1: whoever has one address of IPv6 has 2**64, and each would have a share of its own"""
    assert network_of(address) == network
