"""What is asked of the audit most, as links: who ran in which lane on which day, and who may use a lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.conf import settings
from django.urls import reverse

from accounts.admin.audit_filters import recent_days
from accounts.admin.audit_links import assignments_url
from accounts.models import Lane


@dataclass(frozen=True, slots=True)
class Link:
    """A word, where it leads, and the whole question, beginning with the word, for who hears it alone."""

    title: str
    url: str
    question: str


@dataclass(frozen=True, slots=True)
class LaneQuestions:
    """What is asked of one lane."""

    lane: str
    rights_url: str
    days: Sequence[Link]


def lane_questions() -> list[LaneQuestions]:
    """The questions of every lane, the highest first. Days are those of the installation's calendar."""
    days = recent_days(ZoneInfo(settings.TIME_ZONE))
    return [
        LaneQuestions(
            lane,
            reverse("admin:accounts_lane_rights", args=(lane,)),
            [
                Link(
                    title,
                    assignments_url(given_lane=lane, **of.query),
                    f"{title}: who ran in {lane} on {of}",
                )
                for title, of in days
            ],
        )
        for lane in Lane.objects.order_by("rank").values_list("name", flat=True)
    ]
