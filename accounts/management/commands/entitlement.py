from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from accounts import approvals, entitlements
from accounts.actors import command_actor
from accounts.allowances import UNLIMITED
from accounts.entitlement_states import LIVE, State, state_of
from accounts.limits import LimitName, Limits
from accounts.models import Approval, Entitlement, Lane, OnExhausted, Tenant, User
from accounts.refusals import ChangeRefused
from accounts.tenancy import every_tenant

#: What takes a limit, an end or a lane to step down to away again.
NONE = "none"


class Command(BaseCommand):
    help = "Grant, list, change and end entitlements, and decide about those that wait for a second operator."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)

        grant = verbs.add_parser("grant", help="Entitle a tenant to a lane.")
        grant.add_argument("--tenant", required=True, help="The tenant's short name.")
        grant.add_argument("--lane", required=True)
        _add_terms(grant)

        listing = verbs.add_parser("list", help="Print the entitlements that are not over.")
        listing.add_argument("--tenant", help="The tenant's short name. Default: every tenant's.")
        listing.add_argument("--waiting", action="store_true", help="Only those that wait for approval.")
        listing.add_argument("--all", action="store_true", help="Those that are over, too.")

        change = verbs.add_parser(
            "change", help="Change what one gives, or how long; the rest stays as it is."
        )
        change.add_argument("id")
        _add_terms(change)

        end = verbs.add_parser("end", help="End one now, or withdraw a request. What runs may finish.")
        end.add_argument("id")

        for verb, help_ in (
            ("approve", "Approve one that is requested, as another operator than whoever asked for it."),
            ("refuse", "Refuse one that is requested, as another operator than whoever asked for it."),
        ):
            decide = verbs.add_parser(verb, help=help_)
            decide.add_argument("id")
            decide.add_argument("--by", required=True, help="Whose decision it is: an operator's user name.")
            decide.add_argument("--reason", required=verb == "refuse", default="", help="For the auditor.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, "_" + options["verb"])(options)
        except ChangeRefused as refusal:
            raise CommandError(refusal.message) from refusal

    def _grant(self, options: Mapping[str, Any]) -> None:
        tenant = _tenant(options["tenant"])
        terms = _terms(options, ZoneInfo(tenant.time_zone), UNLIMITED)
        granted = entitlements.grant(
            tenant=tenant, lane=_lane(options["lane"]), actor=command_actor("entitlement grant"), **terms
        )
        self._say(granted, "Granted")

    def _change(self, options: Mapping[str, Any]) -> None:
        entitlement = _entitlement(options["id"])
        terms = _terms(options, ZoneInfo(entitlement.tenant.time_zone), entitlement.allowance.limits)
        changed = entitlements.change(
            entitlement=entitlement, actor=command_actor("entitlement change"), **terms
        )
        self._say(changed, "Changed")

    def _end(self, options: Mapping[str, Any]) -> None:
        ended = entitlements.end(
            entitlement=_entitlement(options["id"]), actor=command_actor("entitlement end")
        )
        self._say(ended, "Ended")

    def _approve(self, options: Mapping[str, Any]) -> None:
        approved = approvals.approve(
            entitlement=_entitlement(options["id"]),
            decided_by=_user(options["by"]),
            actor=command_actor("entitlement approve"),
            reason=options["reason"],
        )
        self._say(approved, "Approved")

    def _refuse(self, options: Mapping[str, Any]) -> None:
        refused = approvals.refuse(
            entitlement=_entitlement(options["id"]),
            decided_by=_user(options["by"]),
            actor=command_actor("entitlement refuse"),
            reason=options["reason"],
        )
        self._say(refused, "Refused")

    def _list(self, options: Mapping[str, Any]) -> None:
        now = timezone.now()
        with every_tenant("an operator lists entitlements"):
            rows = Entitlement.objects.select_related("tenant", "allowance").order_by(
                "tenant__slug", "lane__rank", "created_at"
            )
            if options["tenant"]:
                rows = rows.filter(tenant=_tenant(options["tenant"]))
            shown = [(row, state_of(row, now)) for row in rows]
        if options["waiting"]:
            shown = [(row, state) for row, state in shown if state is State.REQUESTED]
        elif not options["all"]:
            shown = [(row, state) for row, state in shown if state in LIVE or state is State.REQUESTED]
        if not shown:
            self.stdout.write(
                "There is no such entitlement. `manage.py entitlement grant --tenant SLUG --lane LANE` makes one."
            )
        for row, state in shown:
            end = f" until {row.ends_at:%Y-%m-%d %H:%M}Z" if row.ends_at else ""
            what = f"{row.tenant.slug:<20} {row.lane_id:<10} {state + end:<32}"
            self.stdout.write(f"{row.id}  {what} {_limit_words(row.allowance.limits)}")

    def _say(self, entitlement: Entitlement, done: str) -> None:
        with every_tenant("an operator reads what was written"):
            named = f"{entitlement.tenant.slug} in {entitlement.lane_id}"
        if entitlement.approval == Approval.REQUESTED and entitlement.ended_at is None:
            self.stdout.write(
                f"Requested: {named}, {entitlement.id}. It gives nothing before another operator has approved it: "
                f"manage.py entitlement approve {entitlement.id} --by USER"
            )
            return
        self.stdout.write(f"{done}: {named}, {entitlement.id}.")


def _add_terms(parser: ArgumentParser) -> None:
    for name in LimitName:
        parser.add_argument(
            f"--{name.value.replace('_', '-')}", type=_limit, metavar="N", help=f"A limit; {NONE}: no limit."
        )
    parser.add_argument(
        "--from",
        dest="starts_at",
        metavar="TIME",
        help="Gives nothing before: a date or a time, in the tenant's time zone.",
    )
    parser.add_argument(
        "--until",
        dest="ends_at",
        metavar="TIME",
        help=f"Gives nothing from then on: a date (its first moment) or a time, in the tenant's time zone; {NONE}: "
        "standing.",
    )
    parser.add_argument("--weight", type=int, help="Share of the lane among its tenants.")
    parser.add_argument(
        "--speculation", choices=("on", "off"), help="Whether its streams take turns with the drafter."
    )
    parser.add_argument(
        "--longest-queue-wait-s", type=_limit, metavar="N", help=f"Seconds; {NONE}: no such limit."
    )
    parser.add_argument(
        "--step-down-to", metavar="LANE", help=f"The lane for what does not fit; {NONE}: that is refused."
    )
    parser.add_argument("--reason", help="Why, for the auditor.")
    parser.add_argument(
        "--by", help="Who grants it: an operator's user name. Needed where a second operator has to approve."
    )


def _terms(options: Mapping[str, Any], zone: ZoneInfo, present: Limits) -> dict[str, Any]:
    """What was said on the command line, as the verbs take it; what was not said is left out."""
    given = {name: value for name, value in options.items() if value is not None}
    terms: dict[str, Any] = {name: given[name] for name in ("weight", "reason") if name in given}
    limits = {name.value: _none(given[name.value]) for name in LimitName if name.value in given}
    if limits:
        terms["limits"] = replace(present, **limits)
    for name in ("starts_at", "ends_at"):
        if name in given:
            terms[name] = None if given[name] == NONE else _moment(given[name], zone)
    if "speculation" in given:
        terms["speculation"] = given["speculation"] == "on"
    if "longest_queue_wait_s" in given:
        terms["longest_queue_wait_s"] = _none(given["longest_queue_wait_s"])
    if "step_down_to" in given:
        lower = None if given["step_down_to"] == NONE else _lane(given["step_down_to"])
        terms["step_down_to"] = lower
        terms["on_exhausted"] = OnExhausted.REFUSE if lower is None else OnExhausted.STEP_DOWN
    if "by" in given:
        terms["granted_by"] = _user(given["by"])
    return terms


def _limit(text: str) -> int | str:
    if text == NONE:
        return NONE
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither a whole number nor {NONE!r}") from None


def _none(value: int | str) -> int | None:
    return None if value == NONE else int(value)


def _moment(text: str, zone: ZoneInfo) -> datetime:
    try:
        moment = parse_datetime(text)
    except ValueError as error:
        raise CommandError(f"There is no such time as {text!r}.") from error
    if moment is None:
        raise CommandError(f"{text!r} is neither a date (2026-12-31) nor a time (2026-12-31T18:00).")
    return moment if timezone.is_aware(moment) else moment.replace(tzinfo=zone)


def _limit_words(limits: Limits) -> str:
    said = [f"{name.value}={limit}" for name in LimitName if (limit := limits.of(name)) is not None]
    return " ".join(said) or "no limits"


def _entitlement(text: str) -> Entitlement:
    with every_tenant("an operator names an entitlement by its id"), suppress(ValueError):
        found: Entitlement | None = (
            Entitlement.objects.select_related("tenant", "allowance").filter(id=UUID(text)).first()
        )
        if found is not None:
            return found
    raise CommandError(f"There is no entitlement {text!r}. `manage.py entitlement list --all` prints them.")


def _tenant(slug: str) -> Tenant:
    try:
        return Tenant.objects.get(slug=slug)
    except Tenant.DoesNotExist as error:
        raise CommandError(f"There is no tenant {slug!r}. `manage.py tenant list` prints them.") from error


def _lane(name: str) -> Lane:
    try:
        return Lane.objects.get(name=name)
    except Lane.DoesNotExist as error:
        known = ", ".join(Lane.objects.values_list("name", flat=True))
        raise CommandError(f"There is no lane {name!r}. There are: {known}.") from error


def _user(name: str) -> User:
    try:
        return User.objects.get(username=name)
    except User.DoesNotExist as error:
        raise CommandError(f"There is no user {name!r}. `manage.py user list` prints them.") from error
