"""What tokens cost: prices for each model and lane, from some time on. A price is followed by another, never changed.

Amounts are exact decimals. What a generation costs is decided once, when it is settled, and stands in its ledger
entry: a later price changes nothing that was used before.
"""

from __future__ import annotations

from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, Final

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from accounts import audit
from accounts.models import PRICED_TOKENS, Lane, Price
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text

#: Costs are kept to this many places: a token at the lowest price that can be set costs 0.000000000001 of a unit.
COST_PLACES: Final = 9
#: The highest price of a million tokens: with it, no settlement can fail because a cost does not fit in its column.
MOST: Final = Decimal(1_000_000)

_PRICE_PLACES: Final = 6
#: More digits than any price times any count of tokens has, so that nothing is rounded but the result.
_EXACT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)
_NANO: Final = Decimal(1).scaleb(-COST_PLACES)


def cost_of(price: Price, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Decimal:
    """What a generation costs at ``price``, in its currency. Pure.

    ``cached_tokens`` are part of the prompt and cost the cached price instead. The sum is exact, and rounded once, half
    to even, to ``COST_PLACES`` places.
    """
    parts = (
        (price.prompt, prompt_tokens - cached_tokens),
        (price.cached, cached_tokens),
        (price.completion, completion_tokens),
    )
    total = Decimal(0)
    for of_many, tokens in parts:
        total = _EXACT.add(total, _EXACT.multiply(of_many, Decimal(tokens)))
    return _EXACT.quantize(_EXACT.divide(total, Decimal(PRICED_TOKENS)), _NANO)


def price_at(model: str, lane: str, at: datetime) -> Price | None:
    """The price of ``model`` in ``lane`` at that time: the lane's own before that of every lane, the newest of either.

    None: it has no price. One query.
    """
    prices = Price.objects.filter(Q(lane_id=lane) | Q(lane=None), model=model, valid_from__lte=at)
    price: Price | None = prices.order_by(F("lane_id").asc(nulls_last=True), "-valid_from").first()
    return price


def add(
    *,
    model: str,
    lane: Lane | None,
    currency: str,
    prompt: Decimal,
    cached: Decimal,
    completion: Decimal,
    actor: Actor,
    valid_from: datetime | None = None,
) -> Price:
    """Set what a million tokens of ``model`` cost, in ``lane`` (None: in every lane without a price of its own).

    ``valid_from`` of None is now; it cannot be in the past, because what was used then has its cost already. Raises
    ``ChangeRefused``.
    """
    currency = currency.strip().upper()
    if not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"A currency is three letters, as in EUR; this is {currency!r}.",
            field="currency",
        )
    amounts = {
        field: _checked_amount(amount, field)
        for field, amount in (("prompt", prompt), ("cached", cached), ("completion", completion))
    }
    with transaction.atomic():
        now = timezone.now()
        if valid_from is not None and valid_from < now:
            raise ChangeRefused(
                ChangeRefusal.INVALID,
                "A price cannot begin in the past: what was used then has its cost. Leave this empty for now.",
                field="valid_from",
            )
        model = checked_text(model, field="model", most=200)
        if Price.objects.filter(model=model, lane=lane, valid_from=valid_from or now).exists():
            raise ChangeRefused(
                ChangeRefusal.NAME_TAKEN,
                f"{model} has a price from that time on already, in {lane or 'every lane'}. Withdraw that one first.",
                field="valid_from",
            )
        price = Price.objects.create(
            model=model, lane=lane, currency=currency, valid_from=valid_from or now, **amounts
        )
        audit.record(actor, "price.add", price, None, _audited(price))
    return price


def withdraw(*, price: Price, actor: Actor) -> None:
    """Take back a price that does not hold yet. Raises ``ChangeRefused`` for one that does: add another instead."""
    with transaction.atomic():
        found = Price.objects.select_for_update().filter(id=price.id).order_by("id").first()
        if found is None:
            return
        if found.valid_from <= timezone.now():
            raise ChangeRefused(
                ChangeRefusal.PRICE_HOLDS,
                "This price holds already, and what was used has its cost by it. Add the price that follows it.",
            )
        audited = _audited(found)
        reference = audit.reference_of(found)
        found.delete()
        audit.record(actor, "price.withdraw", reference, audited, None)


def _checked_amount(amount: Decimal, field: str) -> Decimal:
    try:
        rounded = _EXACT.quantize(amount, Decimal(1).scaleb(-_PRICE_PLACES))
    except InvalidOperation:
        rounded = Decimal("NaN")
    if not (rounded.is_finite() and rounded == amount and 0 <= amount <= MOST):
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"A price of {PRICED_TOKENS:,} tokens is between 0 and {MOST:,}, with at most {_PRICE_PLACES} places; "
            f"this is {amount}.",
            field=field,
        )
    return rounded


def _audited(price: Price) -> dict[str, Any]:
    """As text: an audit event has no numbers that could print in two ways."""
    return {
        "model": price.model,
        "lane": price.lane_id,
        "currency": price.currency,
        "prompt": str(price.prompt),
        "cached": str(price.cached),
        "completion": str(price.completion),
        "valid_from": price.valid_from,
    }
