from __future__ import annotations

from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from accounts import prices
from accounts.actors import command_actor
from accounts.models import PRICED_TOKENS, Lane, Price
from accounts.refusals import ChangeRefused


class Command(BaseCommand):
    help = f"Set and list what {PRICED_TOKENS:,} tokens of a model cost."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="Set the price that holds from now, or from a time, on.")
        add.add_argument("model", help="The model's name, as in requests.")
        add.add_argument("--currency", required=True, help="ISO 4217, as in EUR.")
        add.add_argument("--prompt", required=True, help="Of prompt tokens that were run.")
        add.add_argument("--cached", help="Of prompt tokens from the prefix cache. Default: as --prompt.")
        add.add_argument("--completion", required=True, help="Of the answer's tokens.")
        add.add_argument("--lane", help="Default: every lane that has no price of its own.")
        add.add_argument(
            "--from", dest="valid_from", help="When it begins to hold, as in 2027-01-01T00:00+01:00."
        )
        verbs.add_parser("list", help="Print the prices, newest first for each model and lane.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "list":
            self._list()
            return
        try:
            price = prices.add(
                model=options["model"],
                lane=_lane(options["lane"]),
                currency=options["currency"],
                prompt=_amount(options["prompt"]),
                cached=_amount(options["cached"] or options["prompt"]),
                completion=_amount(options["completion"]),
                valid_from=_time(options["valid_from"]),
                actor=command_actor("price add"),
            )
        except ChangeRefused as refusal:
            raise CommandError(refusal.message) from refusal
        self.stdout.write(f"{price}, from {price.valid_from:%Y-%m-%d %H:%M}Z on.")

    def _list(self) -> None:
        rows = list(Price.objects.all())
        if not rows:
            self.stdout.write("There is no price: usage is counted in tokens only.")
        for price in rows:
            self.stdout.write(
                f"{price.model:<40} {price.lane_id or 'every lane':<12} {price.valid_from:%Y-%m-%d %H:%M}Z  "
                f"prompt {price.prompt}  cached {price.cached}  completion {price.completion}  {price.currency}"
            )


def _lane(name: str | None) -> Lane | None:
    if name is None:
        return None
    try:
        return Lane.objects.get(name=name)
    except Lane.DoesNotExist as error:
        known = ", ".join(Lane.objects.values_list("name", flat=True))
        raise CommandError(f"There is no lane {name!r}. There are: {known}.") from error


def _amount(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise CommandError(f"A price is a number, as in 0.15; this is {text!r}.") from error


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        parsed = parse_datetime(text)
    except ValueError:
        parsed = None
    if parsed is None:
        raise CommandError(f"A time is written as in 2027-01-01T00:00+01:00; this is {text!r}.")
    return parsed if timezone.is_aware(parsed) else timezone.make_aware(parsed)
