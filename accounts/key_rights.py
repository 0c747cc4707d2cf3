"""What a key may do, as its row has it: checked, and written one way. A key narrows what its tenant has, never more.

The verbs that give and change these rights are ``accounts.keys``'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypedDict

from accounts import model_names, networks
from accounts.lane_resolution import TENANT_DEFAULT_LANE
from accounts.models import ApiKey, Lane, Scope, User
from accounts.permissions import is_operator
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text

#: Scopes that reach beyond the key's tenant.
BEYOND_ITS_TENANT: Final = frozenset({Scope.OPERATOR, Scope.AUDIT})
#: Entries that one of a key's lists may have.
LONGEST_LIST: Final = 100
_LONGEST_NAME: Final = 200


class Rights(TypedDict):
    """A key's fields that say what it may do. Lists that are empty allow everything that the tenant may."""

    scopes: list[str]
    default_lane: Lane | None
    allowed_lanes: list[str]
    allowed_models: list[str]
    allowed_networks: list[str]


def rights_of(key: ApiKey) -> Rights:
    """What ``key`` may do now."""
    return Rights(
        scopes=key.scopes,
        default_lane=key.default_lane,
        allowed_lanes=key.allowed_lanes,
        allowed_models=key.allowed_models,
        allowed_networks=key.allowed_networks,
    )


def checked(
    *,
    scopes: Iterable[str],
    default_lane: Lane | None,
    allowed_lanes: Iterable[str],
    allowed_models: Iterable[str],
    allowed_networks: Iterable[str],
    models_before: Iterable[str] = (),
) -> Rights:
    """The rights as they are stored: in order, each once. Raises ``ChangeRefused`` at the field at fault.

    ``models_before`` may stay, though they are no longer offered.
    """
    lanes = _checked_lanes(allowed_lanes, default_lane)
    return Rights(
        scopes=_checked_scopes(scopes),
        default_lane=default_lane,
        allowed_lanes=lanes,
        allowed_models=_checked_models(allowed_models, set(models_before)),
        allowed_networks=_checked_networks(allowed_networks),
    )


def require_may_give(scopes: Collection[str], actor: Actor) -> None:
    """Raise ``ChangeRefused`` where ``scopes`` reach beyond the tenant and ``actor`` does not.

    Platform operators and commands may give such scopes. A key may not, whatever its own: one that got into wrong hands
    could outlive its revocation in keys that it made.
    """
    beyond = [scope.value for scope in Scope if scope in BEYOND_ITS_TENANT and scope in scopes]
    if not beyond or actor.kind == "system":
        return
    user = User.objects.filter(id=actor.id).first() if actor.kind == "user" else None
    if user is not None and is_operator(user):
        return
    raise ChangeRefused(
        ChangeRefusal.OPERATORS_ONLY,
        f"Only platform operators make, change and rotate keys that reach every tenant ({', '.join(beyond)}).",
        field="scopes",
    )


def _checked_scopes(scopes: Iterable[str]) -> list[str]:
    wanted = {str(scope) for scope in scopes}
    unknown = wanted - set(Scope.values)
    if unknown or not wanted:
        given = ", ".join(sorted(unknown)) or "nothing"
        raise _refused(
            "scopes", f"A key's scopes are one or more of {', '.join(Scope.values)}; this names {given}."
        )
    return [scope for scope in Scope.values if scope in wanted]


def _checked_lanes(names: Iterable[str], default_lane: Lane | None) -> list[str]:
    wanted = set(names)
    if not wanted:
        return []
    lanes = list(Lane.objects.order_by("rank"))
    unknown = wanted - {lane.name for lane in lanes}
    if unknown:
        raise _refused(
            "allowed_lanes",
            f"There is no lane {_listed(unknown)}. There are: {', '.join(lane.name for lane in lanes)}.",
        )
    allowed = [lane for lane in lanes if lane.name in wanted]
    if default_lane is not None and default_lane.name not in wanted:
        raise _refused(
            "default_lane",
            f"The default lane {default_lane.name!r} is not among the lanes that the key may use: "
            f"{', '.join(lane.name for lane in allowed)}.",
        )
    normal = next(lane for lane in lanes if lane.name == TENANT_DEFAULT_LANE)
    if default_lane is None and all(lane.rank < normal.rank for lane in allowed):
        raise _refused(
            "default_lane",
            f"A key that may use lanes above {TENANT_DEFAULT_LANE!r} only needs one of them as its default: its "
            "requests that ask for no lane would get none.",
        )
    return [lane.name for lane in allowed]


def _checked_models(names: Iterable[str], before: set[str]) -> list[str]:
    wanted = _each_once(
        "allowed_models", names, lambda name: checked_text(name, field="allowed_models", most=_LONGEST_NAME)
    )
    offered = model_names.offered() if set(wanted) - before else []
    unknown = set(wanted) - before - set(offered)
    if unknown:
        raise _refused(
            "allowed_models",
            f"There is no model {_listed(unknown)}. There are: {', '.join(offered) or 'none'}.",
        )
    return sorted(wanted)


def _checked_networks(texts: Iterable[str]) -> list[str]:
    try:
        return _each_once("allowed_networks", texts, networks.normalized)
    except networks.NotANetwork as objection:
        raise _refused("allowed_networks", str(objection)) from objection


def _each_once(field: str, texts: Iterable[str], write: Callable[[str], str]) -> list[str]:
    entries = list(dict.fromkeys(write(text) for text in texts))
    if len(entries) > LONGEST_LIST:
        raise _refused(field, f"There may be {LONGEST_LIST} entries at most; these are {len(entries)}.")
    return entries


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _refused(field: str, message: str) -> ChangeRefused:
    return ChangeRefused(ChangeRefusal.INVALID, message, field=field)
