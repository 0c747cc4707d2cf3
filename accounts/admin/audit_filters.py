"""How the audit's lists are narrowed: by what, by whom, of which tenant, and by days of a calendar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.admin import ListFilter, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from accounts.audit import actions
from accounts.models import ApiKey, AssignmentReason, Lane, Tenant

#: What the days are called in addresses.
FIRST, LAST = "first", "last"
#: So many days before today are offered by their names: of every weekday the last one.
_NAMED_DAYS: Final = 7
_MOST_KEYS: Final = 200


@dataclass(frozen=True, slots=True)
class Days:
    """The days from ``first`` to ``last``, that one included, of the calendar of ``zone``."""

    first: date
    last: date
    zone: ZoneInfo

    @property
    def since(self) -> datetime:
        """Their first moment."""
        return datetime.combine(self.first, time.min, self.zone)

    @property
    def until(self) -> datetime:
        """The first moment after them."""
        return datetime.combine(self.last + timedelta(days=1), time.min, self.zone)

    @property
    def count(self) -> int:
        """How many they are."""
        return (self.last - self.first).days + 1

    @property
    def query(self) -> dict[str, str]:
        """As they stand in an address."""
        return {FIRST: self.first.isoformat(), LAST: self.last.isoformat()}

    def __str__(self) -> str:
        if self.first == self.last:
            return f"{self.first:%A} {day_words(self.first)}"
        return f"{day_words(self.first)} to {day_words(self.last)}"


def day_words(day: date) -> str:
    """A day as people write it: 24 Nov 2026."""
    return f"{day.day} {day:%b %Y}"


def calendar_of(tenant_id: str | None) -> ZoneInfo:
    """The zone whose days are meant: the chosen tenant's, else the installation's."""
    if tenant_id:
        try:
            zone = Tenant.objects.filter(id=tenant_id).values_list("time_zone", flat=True).first()
        except ValidationError:
            zone = None
        if zone:
            return ZoneInfo(zone)
    return ZoneInfo(settings.TIME_ZONE)


def days_of(given: Mapping[str, Any], zone: ZoneInfo) -> Days | None:
    """The days that an address names; one end alone is a day. None: it names none. Raises ``ValueError``."""
    first, last = given.get(FIRST) or given.get(LAST), given.get(LAST) or given.get(FIRST)
    if not first or not last:
        return None
    days = Days(date.fromisoformat(first), date.fromisoformat(last), zone)
    if days.last < days.first:
        raise ValueError("the last day is before the first")
    return days


def recent_days(zone: ZoneInfo) -> list[tuple[str, Days]]:
    """Today and the days before it, back to the same weekday of last week, as people call them."""
    today = timezone.localdate(timezone=zone)
    found = []
    for back in range(_NAMED_DAYS + 1):
        day = today - timedelta(days=back)
        title = {0: "Today", 1: "Yesterday"}.get(back, f"{day:%a} {day.day} {day:%b}")
        found.append((title, Days(day, day, zone)))
    return found


class DaysFilter(ListFilter):
    """By days, of the chosen tenant's calendar: each of the last week, some lengths, or any from one to another."""

    title = "when"
    template = "admin/audit_days_filter.html"
    #: The row's time.
    field = "created_at"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        for name in (FIRST, LAST):
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]
        self.zone = calendar_of(request.GET.get("tenant_id"))
        try:
            self.days = days_of(self.used_parameters, self.zone)
        except ValueError as error:
            raise IncorrectLookupParameters(str(error)) from error
        #: What else the address says, for the form.
        self.others: list[tuple[str, str]] = []

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [FIRST, LAST]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.days is None:
            return queryset
        return queryset.filter(
            **{f"{self.field}__gte": self.days.since, f"{self.field}__lt": self.days.until}
        )

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        self.others = [
            (name, value)
            for name, values in changelist.filter_params.items()
            for value in values
            if name not in (FIRST, LAST)
        ]
        yield {
            "selected": self.days is None,
            "query_string": changelist.get_query_string(remove=[FIRST, LAST]),
            "display": "Any time",
        }
        today = timezone.localdate(timezone=self.zone)
        spans = [
            *recent_days(self.zone),
            *(
                (f"The last {length} days", Days(today - timedelta(days=length - 1), today, self.zone))
                for length in (7, 31)
            ),
        ]
        for title, days in spans:
            yield {
                "selected": days == self.days,
                "query_string": changelist.get_query_string(days.query),
                "display": title,
            }


class EventDaysFilter(DaysFilter):
    """Of events."""

    field = "at"


class _Choice(SimpleListFilter):
    """By the value of one column."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        try:
            return queryset.filter(**{str(self.parameter_name): value})
        except (ValueError, ValidationError) as error:
            raise IncorrectLookupParameters(str(error)) from error


class TenantFilter(_Choice):
    """By tenant, closed ones included."""

    title = "tenant"
    parameter_name = "tenant_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(pk), name) for pk, name in Tenant.objects.values_list("id", "name")]


class FamilyFilter(SimpleListFilter):
    """By what the actions are about. Batches of assignments are left out of all but the audit's own."""

    title = "what"
    parameter_name = "family"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            *((name, family.title) for name, family in actions.FAMILIES.items()),
            (actions.OTHERS, "Everything else"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """By the names of the actions themselves: an index finds them, however many batches lie between."""
        with_seals = request.GET.get(SealsFilter.parameter_name) == SealsFilter.SHOWN
        family = self.value()
        if family is None and with_seals:
            return queryset
        wanted = actions.chosen(actions.recorded(), family=family, with_seals=with_seals)
        return queryset.filter(action__in=wanted)


class SealsFilter(SimpleListFilter):
    """Whether the events that chain batches of assignments are shown: one a second on a busy installation."""

    title = "batches of assignments"
    parameter_name = "seals"
    SHOWN: Final = "shown"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(self.SHOWN, "Shown")]

    def choices(self, changelist: Any) -> Any:
        hidden, *others = super().choices(changelist)
        yield {**hidden, "display": "Hidden"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """As it is: ``FamilyFilter`` leaves them out."""
        return queryset


class ActorKindFilter(_Choice):
    """By what kind of actor it was."""

    title = "who"
    parameter_name = "actor_kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("user", "A user"),
            ("api_key", "An API key"),
            ("system", "The system, or a command"),
            ("anonymous", "Nobody who had signed in"),
        ]


class LaneGivenFilter(_Choice):
    """Of assignments: by the lane that was given."""

    title = "lane given"
    parameter_name = "given_lane"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in Lane.objects.values_list("name", flat=True)]


class ReasonFilter(_Choice):
    """Of assignments: by why."""

    title = "why"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, str(label).capitalize()) for value, label in AssignmentReason.choices]


class KeyFilter(_Choice):
    """Of assignments: by key, once a tenant is chosen; of all tenants there may be very many."""

    title = "API key"
    parameter_name = "api_key_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        tenant_id = request.GET.get("tenant_id")
        narrowed = {"tenant_id": tenant_id} if tenant_id else {"id": self.value()}
        try:
            keys = ApiKey.objects.filter(**narrowed).order_by("name")
            return [(str(key.id), str(key)) for key in keys[:_MOST_KEYS]]
        except (ValueError, ValidationError) as error:
            raise IncorrectLookupParameters(str(error)) from error
