"""Address guard: the network addresses that may be connected to (U2, F19).

A URL names a host, but only the address that is connected to can be judged. So the guard acts twice. It removes refused
addresses from the results of the resolver, and it checks each address again when its socket is created. The second
check is decisive. It covers literal addresses in URLs, which are never resolved. It also sees the very address of the
connection, so a later DNS answer cannot change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult

from curtsy.http.slots import Slots

# IANA special-purpose registries (RFC 6890), listed here because `ipaddress.is_global` differs between releases of
# Python. The few reachable anycast services inside 192.0.0.0/24 are not web sites.
_IPV4 = tuple(
    (ipaddress.IPv4Network(network), kind)
    for network, kind in (
        ("127.0.0.0/8", "loopback"),
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("169.254.0.0/16", "link-local"),
        ("100.64.0.0/10", "private (carrier's NAT)"),
        ("0.0.0.0/32", "unspecified"),
        ("0.0.0.0/8", "reserved"),
        ("168.63.129.16/32", "private (Azure's machine service)"),  # looks public, but is the VM's host
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved (documentation)"),
        ("192.88.99.0/24", "reserved (6to4 relays)"),
        ("198.18.0.0/15", "reserved (benchmarks)"),
        ("198.51.100.0/24", "reserved (documentation)"),
        ("203.0.113.0/24", "reserved (documentation)"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_EMBEDDING = frozenset(int(network.network_address) >> 32 for network in (_MAPPED, _NAT64))
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""IPv6 range that IANA has allocated for the public internet. All addresses outside it are refused."""

_IPV6 = tuple(
    (ipaddress.IPv6Network(network), kind)
    for network, kind in (
        ("::1/128", "loopback"),
        ("::/128", "unspecified"),
        ("::/96", "reserved (IPv4-compatible)"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private (site-local)"),
        ("ff00::/8", "multicast"),
        ("64:ff9b:1::/48", "private (local NAT64)"),
        # Tunnels embed an IPv4 address of the sender's choice, and no web site is behind them.
        ("2001::/32", "reserved (Teredo)"),
        ("2002::/16", "reserved (6to4)"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved (documentation)"),
        ("3fff::/20", "reserved (documentation)"),
    )
)


_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_CONFIGURED = socket.AI_ADDRCONFIG & getattr(socket, "AI_MASK", -1)
"""Flag that limits results to address families of this machine; 0 on systems that define but do not accept it."""


class AddressRefused(OSError):
    """Address that may not be connected to. An OSError, so that it passes through aiohttp's connector."""

    def __init__(self, host: str, address: str, kind: str) -> None:
        super().__init__(None, f"{host} is {address}, which is {kind}" if host != address else f"{address} is {kind}")


class NoIPv6(OSError):
    """IPv6 address that this machine cannot reach. An OSError, so that the connector tries the next address."""

    def __init__(self, number: int | None) -> None:
        super().__init__(number, "its address is of IPv6, which this machine does not have")


def refusal(address: str) -> str | None:
    """Return why an address is refused, in a word or two; None if it is public.

    IPv4-mapped and NAT64 addresses are judged by the embedded IPv4 address. Text that is not an address is refused.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "not an address"
    if isinstance(found, ipaddress.IPv6Address):
        if found not in _MAPPED and found not in _NAT64:
            kind = next((kind for network, kind in _IPV6 if found in network), None)
            return kind if kind or found in _UNICAST else "reserved"
        found = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
    return next((kind for network, kind in _IPV4 if found in network), None)


def network_of(address: str) -> str:
    """Return the network by which an address is grouped.

    For IPv6 it is the /64, because that belongs to one owner. An IPv4 address embedded in an IPv6 address counts as
    itself. Text that is not an address is returned unchanged.
    """
    if ":" not in address:
        return address
    try:
        found = int(ipaddress.IPv6Address(address.partition("%")[0]))
    except ValueError:
        return address
    if found >> 32 in _EMBEDDING:
        return str(ipaddress.IPv4Address(found & 0xFFFF_FFFF))
    return f"{ipaddress.IPv6Address(found >> 64 << 64)}/64"


AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""Parameters of a socket: family, type, protocol, canonical name, address (as of `socket.getaddrinfo`)."""


def guarded_socket(info: AddressInfo) -> socket.socket:
    """Create a socket, or raise AddressRefused. It is the socket factory of aiohttp's connector."""
    shown = str(info[4][0])
    refused = refusal(shown)
    if refused is not None:
        raise AddressRefused(shown, shown, refused)
    return open_socket(info)


def open_socket(info: AddressInfo, make: Callable[[int, int], socket.socket] = socket.socket) -> socket.socket:
    """Create a socket for any address, or raise NoIPv6.

    `make` creates the UDP socket that probes for IPv6; connecting it sends nothing. A TCP socket cannot probe: it fails
    with EADDRNOTAVAIL also if all local ports are in use.
    """
    family, kind, protocol, _, address = info
    if family == socket.AF_INET6:
        try:
            with make(family, socket.SOCK_DGRAM) as look:
                look.connect(address)
        except OSError as error:
            if error.errno in _NO_WAY:
                raise NoIPv6(error.errno) from None
    return socket.socket(family, kind, protocol)


_NO_WAY = frozenset({errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT})
"""Errors of connecting to an IPv6 address on a machine without IPv6."""


class GuardedResolver(AbstractResolver):
    """Resolver that removes refused addresses from the results of another one.

    Raises AddressRefused if none is permitted, and OSError if the name has no address.
    """

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the permitted addresses of a name."""
        found = await self._inner.resolve(host, port, family)
        if not found:
            raise _nameless()
        permitted = [each for each in found if refusal(each["host"]) is None]
        if not permitted:
            address = found[0]["host"]
            raise AddressRefused(host, address, refusal(address) or "")
        return permitted

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._inner.close()


class NamesBusy(OSError):
    """Too many lookups are running. This is not an error of the host."""

    def __init__(self, why: str) -> None:
        super().__init__(None, why)


class SystemResolver(AbstractResolver):
    """System resolver with a daemon thread per lookup, so that the program's exit does not wait for it.

    asyncio uses a few threads that it shares with file operations. Names with silent servers would block all other
    hosts, all files and the exit (Q1). At most `at_once` lookups run at once, and a quarter of them for one registered
    domain, because a lookup cannot be cancelled (slots.py). A lookup that waits longer than `patience` seconds raises
    NamesBusy. `ask` is the blocking function, `socket.getaddrinfo` by default.
    """

    def __init__(
        self,
        *,
        at_once: int = 128,
        patience: float = 2.0,
        ask: Callable[..., Sequence[AddressInfo]] | None = None,
    ) -> None:
        self._at_once = at_once
        self._places = Slots(at_once, is_strict=True)
        self._patience = patience
        self._ask = ask or socket.getaddrinfo

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name."""
        try:
            if not self._places.take_at_once(host):
                async with asyncio.timeout(self._patience):
                    await self._places.take(host)
        except TimeoutError:
            raise NamesBusy(f"{self._at_once} other names are being looked up, and no answer comes") from None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def work() -> None:
            found: list[ResolveResult] | Exception
            try:
                found = self._look_up(host, port, family)
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._answer, host, answer, found)

        try:
            threading.Thread(target=work, name=f"name {host}", daemon=True).start()
        except RuntimeError as error:
            self._places.give_back(host)
            raise NamesBusy("no thread can be started to look a name up") from error
        return await answer

    def _answer(
        self, host: str, answer: asyncio.Future[list[ResolveResult]], found: list[ResolveResult] | Exception
    ) -> None:
        self._places.give_back(host)
        if answer.done():  # the caller was cancelled
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def _look_up(self, host: str, port: int, family: int) -> list[ResolveResult]:
        # Without a network, Windows has no address for its own name either.
        flags = 0 if sys.platform == "win32" and host == "localhost" else _CONFIGURED
        results = []
        for kind, _, protocol, _, address in self._ask(host, port, family, socket.SOCK_STREAM, flags=flags):
            if len(address) == 4 and address[3]:  # a link-local address needs its scope
                shown = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
            elif kind == socket.AF_INET6 and len(address) < 4:
                continue  # this Python is built without IPv6
            else:
                shown = str(address[0])
            results.append(
                ResolveResult(hostname=host, host=shown, port=port, family=kind, proto=protocol, flags=_NUMERIC)
            )
        return results

    async def close(self) -> None:
        """Do nothing: lookups cannot be cancelled."""


class TableResolver(AbstractResolver):
    """Resolver with a fixed table of names: for tests, and for sites without a public name."""

    def __init__(self, addresses: Mapping[str, str | Sequence[str]]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses that the table has for a name."""
        try:
            found = self._addresses[host]
        except KeyError:
            raise _nameless() from None
        if not found:
            raise _nameless()
        return [_result(host, port, each) for each in ((found,) if isinstance(found, str) else found)]

    async def close(self) -> None:
        """Do nothing: no resources are open."""


def _nameless() -> socket.gaierror:
    return socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def _result(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=_NUMERIC)


def open_resolver(names: AbstractResolver | Mapping[str, str | Sequence[str]] | None) -> AbstractResolver:
    """Return the given resolver, one for a table of names, or the system's for None."""
    if names is None:
        return SystemResolver()
    return TableResolver(names) if isinstance(names, Mapping) else names


async def refused_behind_proxy(host: str, resolver: AbstractResolver, within: float) -> AddressRefused | None:
    """Return why a host behind a proxy is refused; None if it is permitted.

    One refused address suffices, because the proxy chooses among them. A name that cannot be resolved here `within`
    that many seconds is permitted, because behind many proxies only the proxy can resolve names. The proxy decides
    about the address in any case.
    """
    try:
        ipaddress.ip_address(host)
        addresses = [host]
    except ValueError:
        try:
            async with asyncio.timeout(within):
                addresses = [each["host"] for each in await resolver.resolve(host, 0, socket.AF_UNSPEC)]
        except OSError:  # includes TimeoutError
            return None
    for address in addresses:
        if (kind := refusal(address)) is not None:
            return AddressRefused(host, address, kind)
    return None
