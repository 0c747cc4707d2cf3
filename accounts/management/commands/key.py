from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from accounts import allowances, key_narrowing, keys
from accounts.actors import command_actor
from accounts.management import key_options
from accounts.models import ApiKey, Tenant
from accounts.refusals import ChangeRefused
from accounts.tenancy import every_tenant


class Command(BaseCommand):
    help = "Make, list, change, rotate and revoke API keys. Their text is printed once; later their prefix names them."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)

        create = verbs.add_parser("create", help="Make a key and print it.")
        create.add_argument("--tenant", required=True, help="The tenant's short name.")
        create.add_argument("--name", required=True, help="What the key is for.")
        key_options.add_rights(create)
        create.add_argument("--json", action="store_true", help="Print one JSON object, for programs.")

        listing = verbs.add_parser("list", help="Print the keys, without their text.")
        listing.add_argument("--tenant", help="The tenant's short name. Default: every tenant's.")

        change = verbs.add_parser(
            "change", help="Change what a key may do. What is not named stays as it is."
        )
        change.add_argument("prefix")
        change.add_argument("--name", help="What the key is for.")
        key_options.add_rights(change)

        rotate = verbs.add_parser("rotate", help="Make a successor; both work until the overlap ends.")
        rotate.add_argument("prefix")
        rotate.add_argument("--overlap-hours", type=float, default=24, help="Default: 24.")
        rotate.add_argument("--json", action="store_true", help="Print one JSON object, for programs.")

        revoke = verbs.add_parser("revoke", help="End a key now, and what it runs.")
        revoke.add_argument("prefix")

        verbs.add_parser("rotate-pepper", help="Use a new pepper for new keys; keep the old one for the old.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, "_" + options["verb"].replace("-", "_"))(options)
        except ChangeRefused as refusal:
            raise CommandError(refusal.message) from refusal

    def _create(self, options: dict[str, Any]) -> None:
        issued = keys.create(
            tenant=_tenant(options["tenant"]),
            name=options["name"],
            scopes=options["scope"] or keys.DEFAULT_SCOPES,
            default_lane=key_options.default_lane(options, None),
            **key_options.lists(options),
            limits=key_options.limits(options, allowances.UNLIMITED),
            expires_at=key_options.expires_at(options, None),
            actor=command_actor("key create"),
        )
        self._show(issued, options["json"])

    def _change(self, options: dict[str, Any]) -> None:
        key = _key(options["prefix"])
        changed = keys.change(
            key=key,
            name=key.name if options["name"] is None else options["name"],
            scopes=options["scope"] or key.scopes,
            default_lane=key_options.default_lane(options, key.default_lane),
            **key_options.lists(options),
            limits=key_options.limits(options, key.allowance.limits),
            expires_at=key_options.expires_at(options, key.expires_at),
            actor=command_actor("key change"),
        )
        self.stdout.write(f"Changed {changed}. It holds from the next request on.")

    def _rotate(self, options: dict[str, Any]) -> None:
        issued = keys.rotate(
            key=_key(options["prefix"]),
            overlap=timedelta(hours=options["overlap_hours"]),
            actor=command_actor("key rotate"),
        )
        self._show(issued, options["json"])

    def _revoke(self, options: dict[str, Any]) -> None:
        key = keys.revoke(key=_key(options["prefix"]), actor=command_actor("key revoke"))
        self.stdout.write(f"Revoked {key}. Requests with it are refused from now on.")

    def _list(self, options: dict[str, Any]) -> None:
        with every_tenant("an operator lists keys"):
            rows = ApiKey.objects.select_related("tenant", "allowance").order_by(
                "tenant__slug", "-created_at"
            )
            if options["tenant"]:
                rows = rows.filter(tenant=_tenant(options["tenant"]))
            now = timezone.now()
            if not rows:
                self.stdout.write(
                    "There is no key. `manage.py key create --tenant SLUG --name NAME` makes one."
                )
            for key in rows:
                state = "revoked" if key.revoked_at else "works"
                if not key.revoked_at and key.expires_at:
                    state = f"{'expired' if key.expires_at <= now else 'expires'} {key.expires_at:%Y-%m-%d %H:%M}Z"
                used = f"{key.last_used_at:%Y-%m-%d %H:%M}Z" if key.last_used_at else "never used"
                who = f"sb_{key.prefix}…  {key.tenant.slug:<20} {key.name:<30}"
                line = f"{who} {','.join(key.scopes):<20} {state:<26} {used:<18} {key_narrowing.narrowing_of(key)}"
                self.stdout.write(line.rstrip())

    def _rotate_pepper(self, options: dict[str, Any]) -> None:
        new = keys.rotate_pepper(actor=command_actor("key rotate-pepper"))
        self.stdout.write(
            f"New keys are made with pepper {new}. Keys made before keep theirs until you rotate them."
        )

    def _show(self, issued: keys.IssuedKey, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps({"prefix": issued.key.prefix, "api_key": issued.raw}))
            return
        self.stdout.write(issued.raw)
        self.stderr.write("Keep it now: it is shown once, and stored nowhere.")


def _tenant(slug: str) -> Tenant:
    try:
        return Tenant.objects.get(slug=slug)
    except Tenant.DoesNotExist as error:
        known = ", ".join(Tenant.objects.values_list("slug", flat=True)[:20]) or "none"
        raise CommandError(f"There is no tenant {slug!r}. There are: {known}.") from error


def _key(prefix: str) -> ApiKey:
    wanted = prefix.removeprefix("sb_").rstrip("…")
    if "_" in wanted:
        raise CommandError(
            "Name the key by its prefix only (as `manage.py key list` prints it): a whole key would "
            "stay in your shell's history."
        )
    with every_tenant("an operator names a key by its prefix"):
        key: ApiKey | None = (
            ApiKey.objects.select_related("tenant", "default_lane", "allowance").filter(prefix=wanted).first()
        )
    if key is None:
        raise CommandError(f"There is no key with the prefix {wanted!r}. `manage.py key list` prints them.")
    return key
