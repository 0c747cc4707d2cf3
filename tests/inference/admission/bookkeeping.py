"""What the ledger's machine starts from, knows, and looks at after every step."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import time_machine
from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from accounts import allowances
from accounts.authentication import principal_of_member
from accounts.budget_windows import Period
from accounts.limits import Limits
from accounts.models import Lane, Tenant
from accounts.tenancy import every_tenant, tenant_scope
from inference import recovery
from inference.cancellation import cancel
from inference.messages import CancelReason
from inference.models import Generation, LanguageModel
from inference.models.generation import LIVE_STATES
from signalbox import store
from tests.factories import EntitlementFactory, LanguageModelFactory, MembershipFactory, TenantFactory
from tests.inference.admission.books import checked_books
from tests.inference.admission.shadow import ShadowAllowance, ShadowRight
from tests.inference.dispatch.conftest import let_lease_lapse
from tests.inference.doors import principal_of

#: Without a clock change, with one, of no round offset, and with a clock change of half an hour.
ZONES = ("Asia/Seoul", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")
#: Before clock changes in one of them, and before months' and years' ends.
STARTS = tuple(
    datetime.fromisoformat(day).replace(tzinfo=UTC)
    for day in ("2026-03-07T09", "2026-04-04T03", "2026-10-31T18", "2026-12-31T07", "2027-01-30T22")
)

_tokens = st.none() | st.sampled_from([0, 5, 20, 40, 80, 400])
_counts = st.none() | st.sampled_from([0, 1, 2, 4, 20])
any_limits = st.builds(
    Limits,
    tokens_per_day=_tokens,
    tokens_per_week=_tokens,
    tokens_per_month=_tokens,
    tokens_per_minute=st.none() | st.sampled_from([10, 60, 400]),
    requests_per_minute=_counts,
    concurrency=_counts,
)
some_limits = st.builds(Limits, tokens_per_day=_tokens, tokens_per_month=_tokens, concurrency=_counts)
#: For ``Bookkeeping.pick_of``.
picks = st.integers(0, 1000)

LEASE_S = 3600.0


@dataclass
class Live:
    """A generation that has not ended, as the machine knows it."""

    id: UUID
    prompt: int
    answer: int
    reserved_at: datetime
    allowances: tuple[ShadowAllowance, ...]

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


@dataclass
class Run:
    """A worker's claim: ``epoch``, and what it has published. ``closed``: the end is in the log, nothing is settled."""

    generation: UUID
    epoch: int
    log: list[Any]
    cancel: CancelReason | None
    closed: bool = False

    @property
    def hex(self) -> str:
        """The generation's name in Valkey."""
        return self.generation.hex


class Bookkeeping(RuleBasedStateMachine):
    """A tenant with a key, a member and two lanes, its books, and the model of them."""

    tenant: Tenant
    model: LanguageModel

    @initialize(
        zone=st.sampled_from(ZONES),
        start=st.sampled_from(STARTS),
        of_high=any_limits,
        of_normal=some_limits,
        of_key=st.just(Limits()) | any_limits,
        steps_down=st.booleans(),
    )
    def open_the_books(
        self, zone: str, start: datetime, of_high: Limits, of_normal: Limits, of_key: Limits, steps_down: bool
    ) -> None:
        self._travel = time_machine.travel(start, tick=False)
        self.clock = self._travel.start()
        self.client = store.shared_client()
        self.zone = ZoneInfo(zone)
        self.tenant = TenantFactory(time_zone=zone)
        self.model = LanguageModelFactory()
        self.by_key = principal_of(self.tenant)
        assert self.by_key.key_allowance_id is not None
        self.key = ShadowAllowance(self.by_key.key_allowance_id, Limits())
        member = MembershipFactory(tenant=self.tenant)
        self.by_member = principal_of_member(member.user_id, self.tenant.id)
        self.rights: list[ShadowRight] = []
        self.allowances = [self.key]
        self.live: dict[UUID, Live] = {}
        self.ended: dict[UUID, int] = {}
        self.runs: dict[UUID, Run] = {}
        #: Claims that others have taken over, or that were withdrawn.
        self.ghosts: list[Run] = []
        self.cancelled: set[UUID] = set()
        self.grant("high", of_high, step_down_to="normal" if steps_down else None)
        self.grant("normal", of_normal)
        self.change(self.key, of_key)

    def teardown(self) -> None:
        if not hasattr(self, "clock"):
            return
        try:
            for generation in list(self.live):
                self.let_lapse(generation)
                cancel(generation, CancelReason.OPERATOR_REQUESTED)
            recovery.sweep()
            self.observe()
            assert not self.live, "all that was live has ended"
            self.the_books_are_right()
            assert all(window.reserved == 0 for window in self._windows())
        finally:
            self._travel.stop()

    @invariant()
    def the_books_are_right(self) -> None:
        self.observe()
        books = checked_books(self.tenant.id)
        assert books.live == len(self.live)
        for allowance in self.allowances:
            assert books.live_by_allowance[allowance.id] == allowance.live
            for period in Period:
                assert [
                    (window.starts_at, window.ends_at, window.used, window.reserved)
                    for window in books.windows.get((allowance.id, period), [])
                ] == [
                    (window.starts_at, window.ends_at, window.used, window.reserved)
                    for window in allowance.windows[period]
                ]

    def observe(self) -> None:
        """Take note of what has ended. By whom and when is not predicted; that it is settled as it ended is."""
        with every_tenant("the test looks at what it made"):
            found = list(Generation.objects.filter(id__in=list(self.live)).exclude(state__in=LIVE_STATES))
        for generation in found:
            live = self.live.pop(generation.id)
            used = generation.prompt_tokens + generation.completion_tokens
            for allowance in live.allowances:
                allowance.settle(live.tokens, used, live.reserved_at)
            self.ended[generation.id] = used
            run = self.runs.get(generation.id)
            if run is not None and not run.closed:
                self.ghosts.append(self.runs.pop(generation.id))

    def grant(
        self, lane: str, limits: Limits, *, ends_at: datetime | None = None, step_down_to: str | None = None
    ) -> None:
        entitlement = EntitlementFactory(
            tenant=self.tenant,
            lane=Lane.objects.get(name=lane),
            ends_at=ends_at,
            on_exhausted="step_down" if step_down_to else "refuse",
            step_down_to=Lane.objects.get(name=step_down_to) if step_down_to else None,
        )
        allowance = ShadowAllowance(entitlement.allowance_id, Limits())
        self.allowances.append(allowance)
        self.rights.append(ShadowRight(entitlement.id, lane, allowance, ends_at, step_down_to))
        self.change(allowance, limits)

    def change(self, allowance: ShadowAllowance, limits: Limits) -> None:
        with tenant_scope(self.tenant.id), transaction.atomic():
            allowances.change(allowance.id, limits)
        allowance.limits = limits

    def running(self) -> list[Run]:
        """The claims whose end is not written yet, and which nobody has taken away."""
        return [
            run
            for run in self.runs.values()
            if not run.closed and run.generation in self.live and self._owns(run)
        ]

    def _owns(self, run: Run) -> bool:
        held = self.client.hmget(f"dispatch:generation:{run.hex}", "state", "epoch")
        return held == [b"running", str(run.epoch).encode()]

    def let_lapse(self, generation: UUID) -> None:
        if self.client.zscore(f"dispatch:leases:{self.model.name}", generation.hex) is not None:
            let_lease_lapse(self.client, generation.hex, self.model.name)

    def _windows(self) -> list[Any]:
        return [window for of in checked_books(self.tenant.id).windows.values() for window in of]

    def now(self) -> datetime:
        return datetime.now(UTC)

    def pick_of(self, choices: list[Any], pick: int) -> Any:
        return choices[pick % len(choices)]
