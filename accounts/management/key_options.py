"""Options of ``manage.py key`` that say what a key may do, and what they stand for."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils import timezone

from accounts.limits import LimitName, Limits
from accounts.models import Lane, Scope

#: What is said for a list that is to allow everything again, and for what is to have no bound any more.
ANY, NONE = "any", "none"
_LIMITS: Final = {
    LimitName.TOKENS_PER_DAY: "Tokens in a day of the tenant's calendar.",
    LimitName.TOKENS_PER_WEEK: "Tokens in a week, from Monday on.",
    LimitName.TOKENS_PER_MONTH: "Tokens in a calendar month.",
    LimitName.REQUESTS_PER_MINUTE: "Requests in any 60 seconds.",
    LimitName.TOKENS_PER_MINUTE: "Tokens, at worst, in any 60 seconds.",
    LimitName.CONCURRENCY: "Generations at the same time.",
}


def add_rights(parser: ArgumentParser) -> None:
    """Options of what a key may do. One that is not given is None."""
    parser.add_argument(
        "--scope",
        action="append",
        choices=[scope.value for scope in Scope],
        help="What it may do; may be repeated. A new key's, if none is given: inference and read.",
    )
    parser.add_argument(
        "--lane", help=f"The lane of requests that ask for none; {NONE}: the lane normal, as for a new key."
    )
    parser.add_argument(
        "--lanes",
        type=_names,
        metavar="NAME[,NAME]",
        help=f"Its requests get no other lanes; {ANY}: every lane of its tenant, as for a new key.",
    )
    parser.add_argument(
        "--models",
        type=_names,
        metavar="NAME[,NAME]",
        help=f"It uses no other models; {ANY}: every model, as for a new key.",
    )
    parser.add_argument(
        "--from",
        dest="networks",
        type=_names,
        metavar="NETWORK[,NETWORK]",
        help="Addresses and networks that it may be used from, as 192.0.2.0/24,2001:db8::/32; "
        f"{ANY}: anywhere, as for a new key.",
    )
    parser.add_argument(
        "--expires-in-days", type=_days, help=f"From now on; {NONE}: it does not expire, as for a new key."
    )
    for name, what in _LIMITS.items():
        option = f"--{name.value.replace('_', '-')}"
        parser.add_argument(
            option, type=_limit, help=f"{what} 0: none at all; {NONE}: no limit, as for a new key."
        )


def lists(options: dict[str, Any]) -> dict[str, Any]:
    """The lists that were given, as ``accounts.keys`` takes them."""
    given = {f"allowed_{name}": options[name] for name in ("lanes", "models", "networks")}
    return {name: entries for name, entries in given.items() if entries is not None}


def limits(options: dict[str, Any], before: Limits) -> Limits:
    """``before`` with what was given."""
    given = {
        name.value: before.of(name) if options[name.value] is None else _unless_none(options[name.value])
        for name in LimitName
    }
    return Limits(**given)


def default_lane(options: dict[str, Any], before: Lane | None) -> Lane | None:
    """The lane that was named, or ``before``. Raises ``CommandError`` where there is none of that name."""
    name = options["lane"]
    if name is None:
        return before
    if name == NONE:
        return None
    try:
        return Lane.objects.get(name=name)
    except Lane.DoesNotExist as error:
        known = ", ".join(Lane.objects.values_list("name", flat=True))
        raise CommandError(f"There is no lane {name!r}. There are: {known}.") from error


def expires_at(options: dict[str, Any], before: datetime | None) -> datetime | None:
    """When it ends by what was given, or ``before``."""
    days = options["expires_in_days"]
    if days is None:
        return before
    return None if days == NONE else timezone.now() + timedelta(days=days)


def _names(text: str) -> list[str]:
    if text == ANY:
        return []
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ArgumentTypeError(f"{text!r} has an empty name in it; {ANY!r} says all")
    return names


def _limit(text: str) -> int | str:
    try:
        return NONE if text == NONE else int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a whole number nor {NONE!r}") from None


def _days(text: str) -> float | str:
    try:
        return NONE if text == NONE else float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a number nor {NONE!r}") from None


def _unless_none(value: int | str) -> int | None:
    return None if isinstance(value, str) else value
