"""What a key may give to keys: never more than it has itself, and to itself nothing.

A key narrows what its tenant has. One that administers makes, changes and rotates keys, and would be narrowed by
nothing if those could have more than it has, or if it could change itself. So what it gives lies within what it is held
to; what a key has already may stay. People and commands are held to none of this.

Limits would add up: ten keys of 1000 tokens a day are 10,000. A key that has limits therefore makes no keys, and raises
no limit that it has one of.

Scopes are another matter: ``admin`` and ``operator`` reach keys of every scope of a tenant, which is what they are for.
Only itself a key gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal

from django.utils import timezone

from accounts import networks
from accounts.key_rights import Rights, rights_of
from accounts.limits import LimitName, Limits
from accounts.models import ApiKey
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant

_ListRight = Literal["allowed_lanes", "allowed_models", "allowed_networks"]


def _among(names: Collection[str], bounds: Collection[str]) -> bool:
    return set(names) <= set(bounds)


#: The lists that a key is held to, where they are not empty: what they hold, and when one lies within another.
_LISTS: Final[Mapping[_ListRight, tuple[str, Callable[[Collection[str], Collection[str]], bool]]]] = (
    MappingProxyType(
        {
            "allowed_lanes": ("lanes", _among),
            "allowed_models": ("models", _among),
            "allowed_networks": ("networks", networks.within),
        }
    )
)


def require_may_make(rights: Rights, expires_at: datetime | None, actor: Actor) -> None:
    """Raise ``ChangeRefused`` where ``actor`` is a key, and a new one of ``rights`` would have more than it has."""
    giver = _acting(actor)
    if giver is None:
        return
    for name in LimitName:
        if giver.allowance.limits.of(name) is not None:
            raise _refused(
                f"The API key that asks has limits of its own ({_listed(_set(giver.allowance.limits))}), and makes no "
                "others: what they may use would come on top of what it may. Make it with another key, or as a person.",
                name.value,
            )
    _require_within(giver, None, rights, expires_at)


def require_may_change(
    key: ApiKey,
    *,
    before: Limits,
    rights: Rights,
    expires_at: datetime | None,
    limits: Limits,
    actor: Actor,
) -> None:
    """Raise ``ChangeRefused`` where ``actor`` is a key, and gives ``key`` more than both of them have.

    ``key`` is as it was, with the limits ``before``; the rest is what it is to become.
    """
    giver = _acting(actor)
    if giver is None:
        return
    if giver.id == key.id:
        added = [scope for scope in rights["scopes"] if scope not in key.scopes]
        if added:
            raise _refused(f"An API key gives itself no other scopes: {_listed(added)}.", "scopes")
    for name in LimitName:
        if giver.allowance.limits.of(name) is not None and _higher(limits.of(name), before.of(name)):
            raise _refused(
                f"The API key that asks has a limit {name.value} of its own, and raises that of no key. Use another "
                "key, or do it as a person.",
                name.value,
            )
    _require_within(giver, key, rights, expires_at)


def require_may_rotate(key: ApiKey, expires_at: datetime | None, actor: Actor, *, handed_on: bool) -> None:
    """Raise ``ChangeRefused`` where ``actor`` is a key, and would be told the text of a successor of ``key`` that has
    more than it has. That of its own it may be told: one that ends at ``expires_at``.

    ``handed_on``: a successor has the life that was the key's own, and hands it to the next one.
    """
    giver = _acting(actor)
    if giver is None:
        return
    if giver.id == key.id:
        if not handed_on and _outlives(expires_at, key.expires_at):
            raise _refused(
                f"{key.name} was rotated and its successor revoked: it ends at {key.expires_at:%Y-%m-%dT%H:%M:%SZ}, "
                "and gives itself no longer life. Rotate it with another key, or as a person."
            )
        return
    try:
        if giver.allowance_id != key.allowance_id and _set(giver.allowance.limits):
            raise _refused(
                "The API key that asks has limits of its own, and those of another would add to them."
            )
        _require_within(giver, None, rights_of(key), expires_at)
    except ChangeRefused as refusal:
        # Nothing in the request is at fault.
        raise _refused(f"{key.name} may do more than the API key that asks. {refusal.message}") from refusal


def _acting(actor: Actor) -> ApiKey | None:
    """The key that ``actor`` is, as it stands now; None: it is none. Raises ``ChangeRefused`` where it has ended since.

    Its request was let in a while ago: it may have waited for others, and one of them may have revoked it.
    """
    if actor.kind != "api_key":
        return None
    with every_tenant("a key that administers may be of another tenant than what it makes"):
        key: ApiKey = ApiKey.objects.select_related("allowance").get(id=actor.id)
    if key.revoked_at or not _outlives(key.expires_at, timezone.now()):
        raise _refused("The API key that asks was revoked, or has ended, while its request waited.")
    return key


def _require_within(
    giver: ApiKey, before: ApiKey | None, rights: Rights, expires_at: datetime | None
) -> None:
    """Raise ``ChangeRefused`` where a list or the expiry allows more than that of ``giver``, and than it did before."""
    for right, (noun, lies_within) in _LISTS.items():
        own: Sequence[str] = getattr(giver, right)
        had: Sequence[str] | None = getattr(before, right) if before is not None else None
        if not own or had == []:
            continue
        given = rights[right]
        if not given or not lies_within(given, [*own, *(had or ())]):
            raise _refused(
                f"The API key that asks is held to the {noun} {_listed(own)}, and gives no key others; this one "
                f"would have {_listed(given) or f'all {noun}'}.",
                right,
            )
    latest = _later(giver.expires_at, giver.expires_at if before is None else before.expires_at)
    if _outlives(expires_at, latest):
        raise _refused(
            f"The API key that asks ends at {giver.expires_at:%Y-%m-%dT%H:%M:%SZ}, and gives no key a longer life.",
            "expires_at",
        )


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    """Of two ends; None: never."""
    return None if one is None or other is None else max(one, other)


def _outlives(one: datetime | None, other: datetime | None) -> bool:
    """Of two ends (None: never), whether the first is later."""
    return other is not None and (one is None or one > other)


def _higher(limit: int | None, before: int | None) -> bool:
    return before is not None and (limit is None or limit > before)


def _set(limits: Limits) -> list[str]:
    return [name.value for name in LimitName if limits.of(name) is not None]


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)


def _refused(message: str, field: str | None = None) -> ChangeRefused:
    return ChangeRefused(ChangeRefusal.WIDER_THAN_GIVER, message, field=field)
