from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts import tenants
from accounts.actors import command_actor
from accounts.models import Lane, Tenant
from accounts.refusals import ChangeRefused


class Command(BaseCommand):
    help = "Make, list, close and reopen tenants."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="Make a tenant with standing entitlements.")
        create.add_argument("slug", help="Short name, for logs, metrics and commands.")
        create.add_argument("--name", help="Default: the short name.")
        create.add_argument(
            "--lane", action="append", help="A lane it may use; may be repeated. Default: every lane."
        )
        verbs.add_parser("list", help="Print the tenants.")
        for verb, help_ in (
            ("close", "Refuse its keys and members, and cancel what it runs."),
            ("reopen", "Undo close."),
        ):
            verbs.add_parser(verb, help=help_).add_argument("slug")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, "_" + options["verb"])(options)
        except ChangeRefused as refusal:
            raise CommandError(refusal.message) from refusal

    def _create(self, options: dict[str, Any]) -> None:
        tenant = tenants.create(
            name=options["name"] or options["slug"],
            slug=options["slug"],
            lanes=_lanes(options["lane"]) if options["lane"] else None,
            actor=command_actor("tenant create"),
        )
        self.stdout.write(
            f"Made tenant {tenant.slug}. A key for it: manage.py key create --tenant {tenant.slug} --name NAME"
        )

    def _list(self, options: dict[str, Any]) -> None:
        tenants_there_are = list(Tenant.objects.all())
        if not tenants_there_are:
            self.stdout.write("There is no tenant yet. `manage.py tenant create SLUG` makes one.")
        for tenant in tenants_there_are:
            state = f"closed {tenant.closed_at:%Y-%m-%d}" if tenant.closed_at else "open"
            self.stdout.write(f"{tenant.slug:<30} {tenant.name:<40} {state}")

    def _close(self, options: dict[str, Any]) -> None:
        tenant = tenants.close(tenant=_tenant(options["slug"]), actor=command_actor("tenant close"))
        self.stdout.write(f"Closed {tenant.slug}.")

    def _reopen(self, options: dict[str, Any]) -> None:
        tenant = tenants.reopen(tenant=_tenant(options["slug"]), actor=command_actor("tenant reopen"))
        self.stdout.write(f"Reopened {tenant.slug}.")


def _tenant(slug: str) -> Tenant:
    try:
        return Tenant.objects.get(slug=slug)
    except Tenant.DoesNotExist as error:
        raise CommandError(f"There is no tenant {slug!r}. `manage.py tenant list` prints them.") from error


def _lanes(names: list[str]) -> list[Lane]:
    found = {lane.name: lane for lane in Lane.objects.filter(name__in=names)}
    missing = [name for name in names if name not in found]
    if missing:
        raise CommandError(f"There is no lane {missing[0]!r}.")
    return list(found.values())
