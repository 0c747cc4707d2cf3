"""Counters of failed log-ins in Valkey: how many more an account and an address may have, and which get an event.

A log-in is counted before its password is checked and given back when it succeeds, in one step on the server each:
whoever tries many passwords at once gets no more of them than whoever tries one after the other. A counter begins with
the first failure and ends a window later; what is refused meanwhile does not prolong it. The store holds no names and
addresses, only codes made from them with the site's key: what people type in place of a name may be a password.

With Valkey away nothing is counted and nobody is refused. Each function says so in the log, as what it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

import redis
import structlog
from django.utils.crypto import salted_hmac

from signalbox import store
from signalbox.configuration import configuration

#: Failures that get an audit event of their own, in a minute; of more, the number is recorded.
EVENTS_A_MINUTE: Final = 60
_MINUTE_MS: Final = 60_000
#: A log-in must not wait long for counters that it can do without.
_TIMEOUT_S: Final = 1.0
#: What one subscriber has of IPv6: each of its addresses would else be a new one.
_IPV6_NETWORK: Final = 64

_EVENTS: Final = "log-ins:events"
_WITHOUT_EVENT: Final = "log-ins:without-event"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A log-in that counts as failed until ``give_back`` says otherwise."""

    counters: tuple[str, ...]


class Limit(StrEnum):
    """What has failed too often."""

    ACCOUNT = "account"
    ADDRESS = "address"


class TooManyFailures(Exception):
    """The account or the address has failed too often. ``reached`` is the limit that refuses here for the first
    time in its window, or None."""

    def __init__(self, *, retry_after_s: int, reached: Limit | None) -> None:
        super().__init__(f"too many log-ins have failed; the next may be tried in {retry_after_s} s")
        self.retry_after_s = retry_after_s
        self.reached = reached


def take(username: str, address: str) -> Attempt:
    """Count a log-in that is about to be tried. Raises ``TooManyFailures``.

    ``username`` counts whether there is such an account or not, and however it is capitalized.
    """
    settings = configuration()
    counted = {Limit.ACCOUNT: username.casefold(), Limit.ADDRESS: _network(address)}
    attempt = Attempt(tuple(_counter(limit, value) for limit, value in counted.items()))
    limits = (settings.log_in_failures_per_account, settings.log_in_failures_per_address)
    window_ms = round(settings.log_in_window_seconds * 1000)
    try:
        wait_ms, reached = _function("take_attempt")(keys=attempt.counters, args=(*limits, window_ms))
    except redis.RedisError as error:
        _log.warning("log_in_not_throttled", error=str(error))
        return attempt
    if wait_ms:
        raise TooManyFailures(retry_after_s=math.ceil(wait_ms / 1000), reached=[None, *counted][reached])
    return attempt


def give_back(attempt: Attempt) -> None:
    """The log-in succeeded."""
    try:
        _function("give_back_attempt")(keys=attempt.counters)
    except redis.RedisError as error:
        _log.warning("log_in_counted_as_failed", error=str(error))


def gets_event() -> bool:
    """Whether a failure gets an audit event of its own. If not, it is counted for ``without_event``."""
    try:
        taken = _function("take_record")(keys=(_EVENTS, _WITHOUT_EVENT), args=(EVENTS_A_MINUTE, _MINUTE_MS))
    except redis.RedisError as error:
        _log.warning("log_in_events_not_limited", error=str(error))
        return True
    return bool(taken)


def without_event() -> int:
    """How many failures got no event. Raises ``redis.RedisError``."""
    return int(_client().get(_WITHOUT_EVENT) or 0)


def forget_without_event(count: int) -> None:
    """``count`` of them have been recorded. Raises ``redis.RedisError``."""
    _client().decrby(_WITHOUT_EVENT, count)


def _counter(limit: Limit, value: str) -> str:
    return f"log-ins:{limit}:{salted_hmac('accounts.log_in_counters', value, algorithm='sha256').hexdigest()}"


def _network(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, _IPV6_NETWORK), strict=False))
    return address


@cache
def _client() -> redis.Redis:
    return store.sync_client(timeout_s=_TIMEOUT_S, retries=1)


@cache
def _function(name: str) -> Any:
    # What ends a log-in is allowed beyond the memory limit too: nobody is let in by filling the store.
    source = (files("accounts") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return _client().register_script(f"#!lua flags=allow-oom\n{source}")
