"""When a key was last used, without a database write in the way of a request.

Authentication leaves a stamp in the cache; a periodic task carries the stamps into the rows. A stamp is exact to
about a minute, and one that a restart of the cache loses is replaced by the key's next use. Only the first use of a key
that replaces another goes to its row at once: whether that one may be rotated again depends on it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog
from django.core.cache import cache
from django.db import DatabaseError
from django.db.models import Q
from django.utils import timezone
from redis.exceptions import RedisError

from accounts.models import ApiKey
from accounts.tenancy import every_tenant

#: A key whose row was stamped less than this ago leaves no new stamp.
RESOLUTION = timedelta(minutes=1)
#: How long a stamp waits for the task: longer than any outage of it that is not noticed.
_STAMP_LIFE = timedelta(days=1)
_BATCH = 500

_log = structlog.get_logger(__name__)


def note(key: ApiKey, now: datetime) -> None:
    """Leave a stamp that ``key`` was used at ``now``, if its row's own is old enough to matter."""
    if key.last_used_at and now - key.last_used_at < RESOLUTION:
        return
    if key.last_used_at is None and key.rotated_from_id is not None and _written_at_once(key, now):
        return
    try:
        cache.set(_slot(key.id.hex), int(now.timestamp()), timeout=int(_STAMP_LIFE.total_seconds()))
    except RedisError:
        # The request itself needs no stamp, and will meet the outage where it matters.
        _log.warning("last_used_stamp_lost", api_key=key.prefix, exc_info=True)


def collect() -> int:
    """Carry the stamps into the rows; returns how many rows moved. May run beside itself, and any number of times."""
    moved = 0
    with every_tenant("stamps are collected for every tenant's keys"):
        # A key that was revoked may have left a stamp before: whoever revoked it wants to know.
        may_have_one = Q(revoked_at=None) | Q(revoked_at__gt=timezone.now() - _STAMP_LIFE)
        ids = list(ApiKey.objects.filter(may_have_one).order_by("id").values_list("id", flat=True))
        for start in range(0, len(ids), _BATCH):
            slots = {_slot(key_id.hex): key_id for key_id in ids[start : start + _BATCH]}
            for slot, seconds in cache.get_many(slots).items():
                used_at = datetime.fromtimestamp(int(seconds), UTC)
                moved += ApiKey.objects.filter(
                    Q(last_used_at=None) | Q(last_used_at__lt=used_at), id=slots[slot]
                ).update(last_used_at=used_at)
    return moved


def _written_at_once(key: ApiKey, now: datetime) -> bool:
    """False: the database takes no writes at the moment. Reading is all that a request may need of it."""
    try:
        with every_tenant("the key has said which one it is"):
            ApiKey.objects.filter(id=key.id, last_used_at=None).update(last_used_at=now)
    except DatabaseError:
        _log.warning("first_use_left_to_stamp", api_key=key.prefix, exc_info=True)
        return False
    return True


def _slot(key_id: str) -> str:
    return f"api-key-used:{key_id}"
