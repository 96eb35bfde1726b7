"""Network addresses: name lookup, the guard that refuses private addresses (U2, F19), and the connection to one.

A URL names a host, but only the address that is connected to can be judged. So the guard acts twice. It removes refused
addresses from the results of the resolver, and it checks each address again when its socket is created. The second
check is decisive: it sees the very address of the connection, so a later DNS answer cannot change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Protocol

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


_CONFIGURED = socket.AI_ADDRCONFIG & getattr(socket, "AI_MASK", -1)
"""Flag that limits results to address families of this machine; 0 on systems that define but do not accept it."""


DNS_TTL = 60.0
"""Seconds for which the addresses of a name are cached."""

MOST_NAMES = 1000
"""Names whose addresses are cached."""

NEXT_ATTEMPT = 0.25
"""Seconds after which the next address of a name is tried, too (RFC 8305, 8)."""


class AddressRefused(OSError):
    """Address that may not be connected to."""

    def __init__(self, host: str, address: str, kind: str) -> None:
        super().__init__(None, f"{host} is {address}, which is {kind}" if host != address else f"{address} is {kind}")


class NoIPv6(OSError):
    """IPv6 address that this machine cannot reach."""

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


class NoAddress(OSError):
    """Name without an address, or whose lookup failed."""

    def __init__(self, error: OSError) -> None:
        super().__init__(None, error.strerror or type(error).__name__)
        self.is_lasting = isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_NAME
        """True if a working resolver does not know the name. Without a network, other errors occur."""


_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class ConnectFailed(OSError):
    """Several addresses of a name that cannot be connected to, for different reasons."""

    def __init__(self, errors: Sequence[OSError]) -> None:
        reasons = (os.strerror(error.errno) if error.errno else str(error.strerror) for error in errors)
        super().__init__(None, ", ".join(dict.fromkeys(reason.lower() for reason in reasons)))


AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""Parameters of a socket: family, type, protocol, canonical name, address (as of `socket.getaddrinfo`)."""


def guarded_socket(info: AddressInfo) -> socket.socket:
    """Create a socket for an address, or raise AddressRefused."""
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
            with make(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
        except OSError as error:
            if error.errno in _NO_WAY:
                raise NoIPv6(error.errno) from None
    return socket.socket(family, kind, protocol)


_NO_WAY = frozenset({errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT})
"""Errors of connecting to an IPv6 address on a machine without IPv6."""


def permitted(host: str, addresses: Sequence[str]) -> Sequence[str]:
    """Return the addresses of a host that may be connected to. Raises AddressRefused if there is none."""
    found = [each for each in addresses if refusal(each) is None]
    if not found:
        raise AddressRefused(host, addresses[0], refusal(addresses[0]) or "")
    return found


async def connect(addresses: Sequence[str], port: int, *, guarded: bool) -> socket.socket:
    """Return a socket connected to the first address that answers (RFC 8305). Raises OSError.

    The addresses of IPv6 and IPv4 alternate. Each is tried if the one before failed or has not answered yet.
    """
    six, four = ([each for each in addresses if (":" in each) == is_six] for is_six in (True, False))
    families = (six, four) if ":" in addresses[0] else (four, six)
    waiting = [each for each in chain.from_iterable(zip_longest(*families)) if each is not None]
    attempt = partial(_attempt, port=port, make=guarded_socket if guarded else open_socket)
    if len(waiting) == 1:
        return await attempt(waiting[0])
    errors: list[OSError] = []
    running: set[asyncio.Task[socket.socket]] = set()
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(attempt(waiting.pop(0))))
            timeout = NEXT_ATTEMPT if waiting else None
            done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    running.discard(task)
                    return task.result()
                running.discard(task)
                if not isinstance(error, OSError):
                    raise error
                errors.append(error)
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_close_unused)
    kinds = {(type(error), error.errno) for error in errors}
    raise errors[0] if len(kinds) == 1 else ConnectFailed(errors)


async def _attempt(address: str, port: int, make: Callable[[AddressInfo], socket.socket]) -> socket.socket:
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    info = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]
    made = make(info)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, info[4])
    except BaseException:
        made.close()
        raise
    return made


def _close_unused(task: asyncio.Task[socket.socket]) -> None:
    """Close the socket of an attempt that another one overtook."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


class Resolver(Protocol):
    """Protocol of an object that looks up names."""

    async def resolve(self, host: str) -> Sequence[str]:
        """Return the addresses of a name, as text. Raises OSError if there is none."""
        ...


class Names:
    """Addresses of names, cached and looked up once for all requests of an event loop."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, tuple[float, Sequence[str]]] = {}
        """Addresses by name, with the loop time until which they are cached."""

        self._lookups: dict[str, asyncio.Task[Sequence[str]]] = {}

    async def addresses(self, host: str) -> Sequence[str]:
        """Return the addresses of a host, which may be an address itself. Raises NoAddress, and NamesBusy."""
        if is_address(host):
            return [host]
        known = self._known.get(host)
        if known is not None and self._loop.time() < known[0]:
            return known[1]
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.ensure_future(self._resolver.resolve(host))
            lookup.add_done_callback(partial(self._end, host))
        try:
            found = await asyncio.shield(lookup)
        except NamesBusy:
            raise
        except OSError as error:
            raise NoAddress(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if lookup.cancelled() and task is not None and not task.cancelling():
                raise NoAddress(OSError("the client was closed")) from None  # by close(): the caller goes on
            raise
        if not found:
            raise NoAddress(_nameless())
        return found

    def _end(self, host: str, lookup: asyncio.Task[Sequence[str]]) -> None:
        del self._lookups[host]
        if lookup.cancelled() or lookup.exception() is not None or not lookup.result():
            return
        self._known.pop(host, None)
        while len(self._known) >= MOST_NAMES:
            del self._known[next(iter(self._known))]
        self._known[host] = self._loop.time() + DNS_TTL, lookup.result()

    def close(self) -> None:
        """Cancel the running lookups."""
        for lookup in self._lookups.values():
            lookup.cancel()


def is_address(host: str) -> bool:
    """Return whether a host is an address, not a name."""
    if not (":" in host or host[-1:].isdigit()):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class NamesBusy(OSError):
    """Too many lookups are running. This is not an error of the host."""

    def __init__(self, why: str) -> None:
        super().__init__(None, why)


class SystemResolver:
    """System resolver with a daemon thread per lookup, so that the program's exit does not wait for it.

    asyncio uses a few threads that it shares with file operations. Names with silent servers would block all other
    hosts, all files and the exit (Q1). At most `concurrency` lookups run at once, and a quarter of them for one
    registered domain, because a lookup cannot be cancelled (slots.py). A lookup that waits longer than `max_wait`
    seconds raises NamesBusy. `getaddrinfo` is the blocking function, `socket.getaddrinfo` by default.
    """

    def __init__(
        self,
        *,
        concurrency: int = 128,
        max_wait: float = 2.0,
        getaddrinfo: Callable[..., Sequence[AddressInfo]] | None = None,
    ) -> None:
        self._concurrency = concurrency
        self._slots = Slots(concurrency, is_strict=True)
        self._max_wait = max_wait
        self._getaddrinfo = getaddrinfo or socket.getaddrinfo

    async def resolve(self, host: str) -> Sequence[str]:
        """Return the addresses of a name."""
        try:
            if not self._slots.take_at_once(host):
                async with asyncio.timeout(self._max_wait):
                    await self._slots.take(host)
        except TimeoutError:
            raise NamesBusy(f"{self._concurrency} other names are being looked up, and no answer comes") from None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def work() -> None:
            found: Sequence[str] | Exception
            try:
                found = self._look_up(host)
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._answer, host, answer, found)

        try:
            threading.Thread(target=work, name=f"name {host}", daemon=True).start()
        except RuntimeError as error:
            self._slots.give_back(host)
            raise NamesBusy("no thread can be started to look a name up") from error
        return await answer

    def _answer(self, host: str, answer: asyncio.Future[Sequence[str]], found: Sequence[str] | Exception) -> None:
        self._slots.give_back(host)
        if answer.done():  # the caller was cancelled
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def _look_up(self, host: str) -> Sequence[str]:
        # Without a network, Windows has no address for its own name either.
        flags = 0 if sys.platform == "win32" and host == "localhost" else _CONFIGURED
        addresses = []
        for family, _, _, _, address in self._getaddrinfo(host, 0, 0, socket.SOCK_STREAM, flags=flags):
            if len(address) == 4 and address[3]:  # a link-local address needs its scope
                addresses.append(socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0])
            elif family != socket.AF_INET6 or len(address) == 4:  # otherwise this Python is built without IPv6
                addresses.append(str(address[0]))
        return addresses


class TableResolver:
    """Resolver with a fixed table of names: for tests, and for sites without a public name."""

    def __init__(self, addresses: Mapping[str, str | Sequence[str]]) -> None:
        self._addresses = addresses

    async def resolve(self, host: str) -> Sequence[str]:
        """Return the addresses that the table has for a name."""
        try:
            found = self._addresses[host]
        except KeyError:
            raise _nameless() from None
        return [found] if isinstance(found, str) else found


def _nameless() -> socket.gaierror:
    return socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def open_resolver(names: Resolver | Mapping[str, str | Sequence[str]] | None) -> Resolver:
    """Return the given resolver, one for a table of names, or the system's for None."""
    if names is None:
        return SystemResolver()
    return TableResolver(names) if isinstance(names, Mapping) else names


async def refused_unpinned(host: str, names: Names, within: float) -> AddressRefused | None:
    """Return why a host is refused to which a proxy or another library connects; None if it is permitted.

    One refused address suffices, because that party chooses among them. A name that cannot be resolved here `within`
    that many seconds is permitted, because behind many proxies only the proxy can resolve names. The other party
    decides about the address in any case.
    """
    try:
        async with asyncio.timeout(within):
            addresses = await names.addresses(host)
    except (OSError, ValueError):  # includes TimeoutError
        return None
    for address in addresses:
        if (kind := refusal(address)) is not None:
            return AddressRefused(host, address, kind)
    return None
