"""Requests that come at the same instant, to several web processes: no limit lets one more through than it allows.

The processes are real, and so are their database and Valkey; the same tests run on SQLite and on PostgreSQL. No worker
runs, so that what was accepted stays where it is and can be counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
import redis

from accounts.limits import LimitName
from accounts.models import ApiKey, BudgetWindow, Entitlement, Lane, LaneAssignment, Tenant
from accounts.tenancy import tenant_scope
from inference.cancellation import cancel
from inference.dispatch import keys as dispatch_keys
from inference.dispatch.queue import dispatch_queue
from inference.messages import CancelReason
from inference.models import Generation, LanguageModel
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory
from tests.inference.admission.books import Books, checked_books
from tests.inference.admission.conftest import WebProcess
from tests.inference.admission.stampede import Answer, Ask, stampede

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(600)]

REQUESTS = 200
FIT = 37
PROMPT, ANSWER = 7, 33
TOKENS = PROMPT + ANSWER
#: How often a client comes back that was told to (503).
MOST_RETURNS = 5


def _ask(key: ApiKey, model: LanguageModel, service_tier: str | None = None) -> Ask:
    return Ask(key.raw, model.name, PROMPT, ANSWER, service_tier)  # type: ignore[attr-defined]


def _all_at_once(
    webs: Sequence[WebProcess], asks: Sequence[Ask], watched: UUID | None = None
) -> list[Answer]:
    """Send them, with an eye on what is reserved of the allowance ``watched`` meanwhile."""
    limit = max(ask.tokens for ask in asks) * FIT
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_answered, [web.port for web in webs], asks)
        while not sent.done():
            if watched is not None:
                assert all(0 <= reserved <= limit for reserved in _reserved(watched))
            time.sleep(0.05)
        answers = sent.result()
    assert {answer.port for answer in answers} == {web.port for web in webs}
    unforeseen = [answer for answer in answers if answer.status not in (200, 429)]
    assert not unforeseen, f"{unforeseen[0]}\n" + "\n".join(web.process.tail() for web in webs)
    return answers


def _answered(ports: Sequence[int], asks: Sequence[Ask]) -> list[Answer]:
    """The answers of all. A busy machine's SQLite has not room for so many writers: who is put off comes again."""
    answers = stampede(ports, asks)
    for _ in range(MOST_RETURNS):
        put_off = [answer.ask for answer in answers if answer.status == 503]
        if not put_off:
            break
        answers = [answer for answer in answers if answer.status != 503] + stampede(ports, put_off)
    return answers


def _reserved(allowance_id: UUID) -> list[int]:
    windows = BudgetWindow._base_manager.filter(allowance_id=allowance_id, period="day")
    return list(windows.values_list("reserved", flat=True))


def _codes(answers: Sequence[Answer]) -> Counter[str]:
    return Counter(answer.code for answer in answers)


def _everything_of(tenant: Tenant) -> tuple[list[Generation], list[LaneAssignment], Books]:
    with tenant_scope(tenant.id):
        generations = list(Generation.objects.all())
        assignments = list(LaneAssignment.objects.all())
    assert {one.id for one in generations} == {one.generation_id for one in assignments}
    return generations, assignments, checked_books(tenant.id)


def _cancel_all(tenant: Tenant) -> Books:
    with tenant_scope(tenant.id):
        ids = list(Generation.objects.values_list("id", flat=True))
    for generation_id in ids:
        cancel(generation_id, CancelReason.CLIENT_REQUESTED)
    return checked_books(tenant.id)


def test_of_200_simultaneous_requests_exactly_the_37_that_the_budget_is_for_are_admitted(
    web_processes: list[WebProcess], model: LanguageModel, valkey: redis.Redis
) -> None:
    tenant = TenantFactory()
    # Almost room for one more.
    entitlement = EntitlementFactory(
        tenant=tenant, allowance__tokens_per_day=FIT * TOKENS + TOKENS - 1, allowance__tokens_per_month=10**9
    )
    key = ApiKeyFactory(tenant=tenant)
    asks = [_ask(key, model)] * REQUESTS
    answers = _all_at_once(web_processes, asks, watched=entitlement.allowance_id)
    assert _codes(answers) == {"accepted": FIT, "insufficient_quota": REQUESTS - FIT}
    assert {answer.status for answer in answers if answer.error} == {429}

    generations, _, books = _everything_of(tenant)
    assert len(generations) == books.live == FIT
    for allowance_id in (entitlement.allowance_id, key.allowance_id):
        assert books.reserved(allowance_id) == {FIT * TOKENS}
        assert books.used(allowance_id) == {0}
        assert books.live_by_allowance[allowance_id] == FIT
    assert dispatch_queue().depths(model.name) == {1: FIT}
    assert valkey.zcard(dispatch_keys.places(model.name)) == 0, "no place is left to those who were refused"

    books = _cancel_all(tenant)
    assert books.live == 0
    assert books.reserved(entitlement.allowance_id) == books.used(entitlement.allowance_id) == {0}
    assert books.reserved(key.allowance_id) == books.used(key.allowance_id) == {0}
    assert _codes(_all_at_once(web_processes, [_ask(key, model)] * 2)) == {"accepted": 2}
    _cancel_all(tenant)


def test_q1_of_50_simultaneous_requests_for_100_tokens_exactly_10_fit_in_a_budget_of_1000(
    web_processes: list[WebProcess], model: LanguageModel
) -> None:
    tenant = TenantFactory()
    entitlement = EntitlementFactory(tenant=tenant, allowance__tokens_per_day=1000)
    ask = Ask(ApiKeyFactory(tenant=tenant).raw, model.name, 10, 90)
    assert _codes(_all_at_once(web_processes, [ask] * 50)) == {"accepted": 10, "insufficient_quota": 40}
    *_, books = _everything_of(tenant)
    assert books.live == 10
    assert books.reserved(entitlement.allowance_id) == {1000}
    assert _cancel_all(tenant).reserved(entitlement.allowance_id) == {0}


@pytest.mark.parametrize(
    ("owner", "name", "limit", "code"),
    [
        ("entitlement", LimitName.CONCURRENCY, FIT, "concurrency_limit_exceeded"),
        ("key", LimitName.TOKENS_PER_WEEK, FIT * TOKENS, "insufficient_quota"),
        ("key", LimitName.REQUESTS_PER_MINUTE, FIT, "rate_limit_exceeded"),
        ("entitlement", LimitName.TOKENS_PER_MINUTE, FIT * TOKENS, "rate_limit_exceeded"),
    ],
)
def test_every_other_limit_lets_exactly_as_many_through_whoever_it_belongs_to(
    web_processes: list[WebProcess],
    model: LanguageModel,
    valkey: redis.Redis,
    owner: str,
    name: LimitName,
    limit: int,
    code: str,
) -> None:
    tenant, limits = TenantFactory(), {f"allowance__{name.value}": limit}
    EntitlementFactory(tenant=tenant, **(limits if owner == "entitlement" else {}))
    key = ApiKeyFactory(tenant=tenant, **(limits if owner == "key" else {}))
    answers = _all_at_once(web_processes, [_ask(key, model)] * REQUESTS)
    assert _codes(answers) == {"accepted": FIT, code: REQUESTS - FIT}
    generations, *_ = _everything_of(tenant)
    assert len(generations) == FIT
    assert valkey.zcard(dispatch_keys.places(model.name)) == 0
    assert _cancel_all(tenant).live == 0


def test_who_does_not_fit_in_the_high_lane_steps_down_and_each_has_its_assignment(
    web_processes: list[WebProcess], model: LanguageModel
) -> None:
    tenant = TenantFactory()
    high, normal = Lane.objects.get(name="high"), Lane.objects.get(name="normal")
    first: Entitlement = EntitlementFactory(
        tenant=tenant,
        lane=high,
        on_exhausted="step_down",
        step_down_to=normal,
        allowance__tokens_per_day=FIT * TOKENS,
    )
    second: Entitlement = EntitlementFactory(tenant=tenant, lane=normal)
    key = ApiKeyFactory(tenant=tenant)
    answers = _all_at_once(
        web_processes, [_ask(key, model, "priority")] * REQUESTS, watched=first.allowance_id
    )
    assert Counter(answer.lane for answer in answers) == {"high": FIT, "normal": REQUESTS - FIT}

    _, assignments, books = _everything_of(tenant)
    stepped = [{"lane": "high", "entitlement_id": str(first.id), "limit": "tokens_per_day"}]
    for assignment in assignments:
        assert assignment.requested_lane == "priority"
        if assignment.given_lane == "high":
            assert (assignment.reason, assignment.entitlement_id) == ("requested", first.id)
            assert assignment.step_downs == []
        else:
            assert (assignment.reason, assignment.entitlement_id) == ("stepped_down", second.id)
            assert assignment.step_downs == stepped
    assert Counter(one.given_lane for one in assignments) == {"high": FIT, "normal": REQUESTS - FIT}
    assert books.reserved(first.allowance_id) == {FIT * TOKENS}
    assert books.reserved(second.allowance_id) == {(REQUESTS - FIT) * TOKENS}
    assert books.reserved(key.allowance_id) == {REQUESTS * TOKENS}
    assert _cancel_all(tenant).live == 0


def test_a_tenant_that_asks_for_too_much_takes_nothing_from_another(
    web_processes: list[WebProcess], model: LanguageModel
) -> None:
    greedy, modest = TenantFactory(), TenantFactory()
    EntitlementFactory(tenant=greedy, allowance__tokens_per_day=FIT * TOKENS)
    EntitlementFactory(
        tenant=modest, allowance__tokens_per_day=100 * TOKENS, allowance__requests_per_minute=100
    )
    of_greedy, of_modest = ApiKeyFactory(tenant=greedy), ApiKeyFactory(tenant=modest)
    # Two of each in turn, so that each process hears both.
    asks = [_ask(key, model) for _ in range(50) for key in (of_greedy, of_greedy, of_modest, of_modest)]
    answers = _all_at_once(web_processes, asks)
    by_key = {
        key: _codes([answer for answer in answers if answer.ask.key == key])
        for key in (of_greedy.raw, of_modest.raw)
    }
    assert by_key[of_greedy.raw] == {"accepted": FIT, "insufficient_quota": 100 - FIT}
    assert by_key[of_modest.raw] == {"accepted": 100}
    assert [_everything_of(tenant)[2].live for tenant in (greedy, modest)] == [FIT, 100]
    assert [_cancel_all(tenant).live for tenant in (greedy, modest)] == [0, 0]
