"""What of the audit an export shows: of whom, of when, of which lane. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accounts.audit.canonical import utc_text

#: The fields of changes that name lanes.
_LANE_FIELDS: Final = ("lane", "lane_id", "default_lane_id", "allowed_lanes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is asked for; nothing given: everything.

    Times are those of the events, from ``first_at`` until before ``last_at``. An assignment belongs to the time at
    which it was sealed, normally a second after it was made, so that the batches of any time are whole.
    """

    tenant_id: UUID | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None
    lane: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether everything of its time is shown."""
        return self.tenant_id is None and self.lane is None

    def shows_event(self, content: Mapping[str, Any]) -> bool:
        """Whether the event is the tenant's, if one is asked for, and about the lane, if one is asked for.

        Events that seal assignments are shown where one of these is.
        """
        if self.tenant_id is not None and content["tenant"] != self.tenant_id.hex:
            return False
        return self.lane is None or self._is_about_lane(content)

    def shows_assignment(self, content: Mapping[str, Any]) -> bool:
        """Whether the assignment is the tenant's, if one is asked for, and gave the lane, if one is asked for."""
        if self.tenant_id is not None and content["tenant"][0] != self.tenant_id.hex:
            return False
        return self.lane is None or content["given_lane"] == self.lane

    def as_fields(self) -> dict[str, str | None]:
        """The selection as exports and their events write it down."""
        return {
            "tenant": self.tenant_id.hex if self.tenant_id else None,
            "lane": self.lane,
            "first_at": utc_text(self.first_at) if self.first_at else None,
            "last_at": utc_text(self.last_at) if self.last_at else None,
        }

    def _is_about_lane(self, content: Mapping[str, Any]) -> bool:
        kind, identity, _ = content["object"]
        if kind == "lane":
            return bool(identity == self.lane)
        fields = (content["before"] or {}, content["after"] or {})
        return any(_names(side.get(name), self.lane) for side in fields for name in _LANE_FIELDS)


def _names(value: Any, lane: str | None) -> bool:
    return lane in value if isinstance(value, list) else value == lane
