"""Proxies: which one a request goes through, and what their failures say about the host (nothing, mostly)."""

from __future__ import annotations

import ssl
import urllib.request
from functools import lru_cache

from curtsy.core import messages
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.request import Failure
from curtsy.core.url import DEFAULT_PORTS, InvalidUrl, Url, parse_url
from curtsy.http.address import NoAddress
from curtsy.http.pool import ConnectTimeout, TunnelRefused
from curtsy.http.response import ReplyError
from curtsy.http.tls import describe, is_plain


class Proxies:
    """Proxies by scheme: one that is given, or those of the environment with `use_environment`."""

    def __init__(self, given: str | None, *, use_environment: bool) -> None:
        self._by_scheme: dict[str, Url | PolicyError] = {}
        self._is_bypassed = lru_cache(maxsize=4096)(urllib.request.proxy_bypass)  # reads the environment each time
        self._is_given = bool(given)
        if given:
            found = parse_url(given)
            if isinstance(found, InvalidUrl):
                shown = messages.given(found)
                raise PolicyError(f"proxy = {shown!r} must be an http or https URL, such as http://proxy.example:3128.")
            self._by_scheme = dict.fromkeys(DEFAULT_PORTS, found)
        elif use_environment:
            self._by_scheme = environment_proxies()

    def may_apply(self, url: Url) -> bool:
        """Return whether the scheme of a URL has a proxy."""
        return url.scheme in self._by_scheme

    def of(self, url: Url) -> Url | None:
        """Return the proxy for a URL, or None.

        Raises PolicyError if the configured proxy is unusable, because only the user may decide to bypass it.
        """
        proxy = self._by_scheme.get(url.scheme)
        if proxy is None or (not self._is_given and self._is_bypassed(url.host)):
            return None
        if isinstance(proxy, PolicyError):
            raise PolicyError(str(proxy))
        return proxy


def environment_proxies() -> dict[str, Url | PolicyError]:
    """Return the proxies of HTTP_PROXY and HTTPS_PROXY by scheme, or the error of an unusable one.

    A proxy without a scheme is an http proxy, as for curl.
    """
    proxies: dict[str, Url | PolicyError] = {}
    for scheme, given in urllib.request.getproxies_environment().items():
        if scheme not in DEFAULT_PORTS or not given.strip():
            continue
        found = parse_url(given if "://" in given else f"http://{given.strip()}")
        if isinstance(found, Url):
            proxies[scheme] = found
        else:
            proxies[scheme] = PolicyError(
                f"{scheme.upper()}_PROXY = {messages.given(found)!r} must be an http or https proxy, such as "
                "http://proxy.example:3128. Set another, unset it, or set NO_PROXY=* to go without any."
            )
    return proxies


def check_environment() -> None:
    """Raise PolicyError if the environment names an unusable proxy, once instead of for each URL."""
    if urllib.request.getproxies_environment().get("no", "").strip() == "*":
        return
    for found in environment_proxies().values():
        if isinstance(found, PolicyError):
            raise found


_GATEWAY = frozenset({502, 503, 504})
"""Statuses by which a proxy reports that the host is unreachable or does not answer (RFC 9110, 15.6)."""


def failure_at(proxy: Url, error: Exception, connect_timeout: float) -> Failure:
    """Return the failure for an error before the proxy connected to the host."""
    reason, is_lasting, advice = Reason.CONNECTION_ERROR, False, "Check its address, or try again later."
    match error:
        case TunnelRefused(status=407):
            return login_wanted(proxy)
        case TunnelRefused() if error.status in _GATEWAY:
            return Failure(reason, f"the proxy {proxy.origin} has no way to it: it refused with status {error.status}")
        case TunnelRefused():
            why, advice = f"refused with status {error.status}", "Try again later, or ask who runs it."
        case ConnectTimeout():
            reason, why = Reason.TIMEOUT, f"gave no connection within {connect_timeout:g} s"
        case NoAddress():
            reason, is_lasting, why = Reason.DNS_ERROR, error.is_lasting, f"cannot be reached: {describe(error)}"
            advice = "Check its name." if is_lasting else "Check its name, or try again later."
        case ssl.SSLError() if is_plain(error):
            reason, why = Reason.TLS_ERROR, "speaks no TLS"
            advice = "Write http:// instead of https:// before its host."
        case ssl.SSLCertVerificationError():
            reason, why = Reason.TLS_ERROR, f"cannot be trusted: {describe(error)}"
            advice = "Give the CA that signed it by verify=, if the proxy is yours."
        case ssl.SSLError():
            reason, why = Reason.TLS_ERROR, f"cannot be reached: {describe(error)}"
        case ReplyError(reason=Reason.CONNECTION_ERROR):
            why = "closed the connection before it answered"
        case ReplyError():
            why = "gave no readable answer"
        case _:
            why = f"cannot be reached: {describe(error)}"
    detail = f"the proxy {proxy.origin} {why}"
    return Failure(reason, detail, is_lasting=is_lasting, ended_at_proxy=True, advice=advice)


def login_wanted(proxy: Url) -> Failure:
    """Return the failure for a 407. The advice has no example URL with a password, because it would be masked."""
    if proxy.credentials is not None:
        why, advice = "does not accept the login (407)", "Correct the user and the password that stand before its host."
    else:
        why, advice = "wants a login (407)", f"Put the user, a colon, the password and @ before {proxy.domain}."
    detail = f"the proxy {proxy.origin} {why}"
    return Failure(Reason.CONNECTION_ERROR, detail, is_lasting=True, ended_at_proxy=True, advice=advice)
