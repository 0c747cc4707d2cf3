"""What a tenant's owners and admins are written when a budget comes to a share of its limit."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.utils.formats import date_format
from django.utils.timezone import localtime

from accounts.budget_windows import Period
from accounts.models import BudgetEvent, Membership, Role, Tenant
from signalbox.configuration import configuration

_PERIOD_WORDS = {Period.DAY: "daily", Period.WEEK: "weekly", Period.MONTH: "monthly"}


def is_configured() -> bool:
    """Whether there is a mail server to hand e-mail to."""
    return bool(settings.EMAIL_HOST)


def message_for(event: BudgetEvent) -> EmailMessage | None:
    """The e-mail about an event, which has its tenant and window with it; None: nobody is to get one."""
    recipients = _recipients(event.tenant)
    if event.tenant.closed_at or not recipients:
        return None
    budget = f"{_PERIOD_WORDS[Period(event.window.period)]} token budget"
    subject = f"{event.tenant}: {_news(event)} the {budget} of {event.subject}"
    sender = settings.DEFAULT_FROM_EMAIL
    return EmailMessage(
        # A name may hold line breaks, which a header must not.
        subject=" ".join(subject.split()),
        body=_body(event, budget),
        from_email=sender,
        to=recipients,
        headers={
            # The same for each attempt, so that a message that came twice can be known.
            "Message-ID": f"<budget-{event.id.hex}@{sender.rpartition('@')[2].rstrip('>') or 'localhost'}>",
            "Auto-Submitted": "auto-generated",
        },
    )


def _recipients(tenant: Tenant) -> list[str]:
    members = Membership.objects.filter(
        tenant=tenant, role__in=(Role.OWNER, Role.ADMIN), ended_at=None, user__is_active=True
    )
    addresses = members.values_list("user__email", flat=True).distinct().order_by("user__email")
    return [address for address in addresses if _is_address(address)]


def _is_address(text: str) -> bool:
    try:
        validate_email(text)
    except ValidationError:
        return False
    return True


def _news(event: BudgetEvent) -> str:
    if event.percent < 100:
        return f"{event.percent} % used of"
    return "nothing left of" if event.used >= event.limit else "too little left of"


def _body(event: BudgetEvent, budget: str) -> str:
    zone = ZoneInfo(event.tenant.time_zone)
    resets = f"{date_format(localtime(event.resets_at, zone), 'l j F Y, H:i')} ({event.tenant.time_zone})"
    held = f", and {event.reserved:,} more are reserved for what runs" if event.reserved else ""
    return "\n".join(
        [
            _what_happened(event, budget),
            "",
            f"Used:    {event.used:,} of {event.limit:,} tokens ({event.used * 100 // event.limit} %){held}",
            f"Resets:  {resets}",
            "",
            "A request that does not fit in what is left goes to a lower lane, where the entitlement says so, and is "
            "refused otherwise (429, insufficient_quota). What runs already may finish.",
            "",
            _where(event),
            "",
            f"You get this because you are an owner or admin of {event.tenant} on this Signalbox.",
            "",
        ]
    )


def _what_happened(event: BudgetEvent, budget: str) -> str:
    whose = f"the {budget} of {event.subject} ({event.tenant})"
    if event.percent < 100:
        return f"{event.percent} % of {whose} is used."
    if event.used >= event.limit:
        return f"All of {whose} is used."
    return f"A request was refused: it did not fit in what is left of {whose}."


def _where(event: BudgetEvent) -> str:
    site = configuration().site_url.rstrip("/")
    if not site:
        return "How it stands now: in your tenant's area of the site, or GET /v1/limits with one of its API keys."
    return f"How it stands now: {site}/tenant/{event.tenant.slug}/"
