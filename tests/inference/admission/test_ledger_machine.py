"""Any order of admissions, ends, crashes and changes, in calendars around the world: the books are always right.

The machine calls the product's own functions on the test's database and Valkey, beside a model of the books that
predicts what is let in, where it counts, and which limit keeps the rest out.
"""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from accounts import entitlements
from accounts.budget_windows import Period
from accounts.limits import BUDGETS, LimitName, Limits
from accounts.models import Entitlement, Tenant
from accounts.tenancy import every_tenant
from inference.dispatch.queue import dispatch_queue
from inference.intake import Refused, accept
from inference.models import Generation
from tests.factories import ACTOR
from tests.inference.admission.bookkeeping import ZONES, Live, any_limits, picks, some_limits
from tests.inference.admission.mortal import Death, mortal
from tests.inference.admission.shadow import Prediction, ShadowAllowance, Short, edges, predict
from tests.inference.admission.working import Working
from tests.inference.doors import submission


class _Fault(Exception):
    """Something in the accept transaction goes wrong."""


class LedgerMachine(Working):
    """All of it: admissions, what becomes of them, and what changes around them."""

    @rule(
        lane=st.sampled_from([None, "high", "high", "normal", "low"]),
        prompt=st.integers(1, 12),
        answer=st.integers(1, 12),
        with_key=st.booleans(),
        fate=st.sampled_from(["lives"] * 5 + ["faults", "dies before commit", "dies before enqueueing"]),
    )
    def admit(self, lane: str | None, prompt: int, answer: int, with_key: bool, fate: str) -> None:
        """A request, answered by a process that lives, or dies where ``fate`` says."""
        now, tokens = self.now(), prompt + answer
        key = self.key if with_key else None
        prediction = predict(lane or "normal", tokens, now, key, self.rights)
        asked = submission(self.model, prompt=[5] * prompt, max_tokens=answer, requested_lane=lane)
        with mortal() as die:

            def within(generation: Generation) -> None:
                if fate == "faults":
                    raise _Fault
                if fate != "lives":
                    die()
                if fate == "dies before commit":
                    raise Death

            try:
                accepted = accept(self.by_key if with_key else self.by_member, asked, within=within)
            except Refused as refusal:
                self._was_rightly_refused(refusal, prediction)
                return
            except _Fault:
                assert prediction.right is not None
                return
            except Death:
                # What it took of the rates lapses; nothing else is left.
                self._take_rates(prediction, key, tokens)
                return
        right = prediction.right
        assert right is not None, f"admitted in spite of {sorted(prediction.shorts, key=str)}"
        assert (accepted.admission.lane, accepted.admission.entitlement_id) == (right.lane, right.id)
        assert not any(state.over for state in accepted.limits)
        self._take_rates(prediction, key, tokens)
        held_back_from = (right.allowance, key) if key else (right.allowance,)
        for allowance in held_back_from:
            allowance.reserve(tokens, now, self.zone)
        generation_id = accepted.generation_id
        self.live[generation_id] = Live(generation_id, prompt, answer, now, held_back_from)
        queued = fate == "lives"
        assert dispatch_queue().contains([generation_id.hex]) == ({generation_id.hex} if queued else set())

    def _was_rightly_refused(self, refusal: Refused, prediction: Prediction) -> None:
        assert prediction.right is None, refusal
        if refusal.limit is None:
            assert (refusal.code, prediction.entitled) == ("no_entitlement", False)
            return
        short = Short(refusal.limit.name, refusal.limit.limit, refusal.limit.used)
        assert short in prediction.shorts, f"{short} is not short"
        if short.name in BUDGETS:
            assert refusal.code == "insufficient_quota"
        elif short.name is LimitName.CONCURRENCY:
            assert refusal.code == "concurrency_limit_exceeded"
        else:
            assert refusal.code == "rate_limit_exceeded"

    def _take_rates(self, prediction: Prediction, key: ShadowAllowance | None, tokens: int) -> None:
        assert prediction.right is not None
        prediction.right.allowance.take_rates(tokens)
        if key is not None:
            key.take_rates(tokens)

    @rule(
        by=st.sampled_from([timedelta(seconds=1), timedelta(hours=3), timedelta(days=1), timedelta(days=9)])
    )
    def wait(self, by: timedelta) -> None:
        self.clock.shift(by)

    @rule(
        period=st.sampled_from(list(Period)), late=st.sampled_from([timedelta(microseconds=-1), timedelta()])
    )
    def wait_for_the_edge(self, period: Period, late: timedelta) -> None:
        """Go to the last moment of the calendar's period, or the first of the next one."""
        self.clock.move_to(edges(period, self.now(), self.zone)[1] + late)

    @rule(pick=picks, limits=any_limits | some_limits | st.just(Limits()))
    def change_limits(self, pick: int, limits: Limits) -> None:
        """Also below what is used."""
        self.change(self.pick_of(self.allowances, pick), limits)

    @rule(zone=st.sampled_from(ZONES))
    def move(self, zone: str) -> None:
        """The tenant moves to another time zone: its open windows end when they were to end."""
        Tenant.objects.filter(id=self.tenant.id).update(time_zone=zone)
        self.zone = ZoneInfo(zone)

    @precondition(lambda self: len(self.rights) < 6)
    @rule(lane=st.sampled_from(["high", "normal"]), limits=some_limits, hours=st.sampled_from([1, 30]))
    def grant_for_a_time(self, lane: str, limits: Limits, hours: int) -> None:
        self.grant(lane, limits, ends_at=self.now() + timedelta(hours=hours))

    @rule(pick=picks)
    def end_entitlement(self, pick: int) -> None:
        right = self.pick_of(self.rights, pick)
        with every_tenant("the test ends what it granted"):
            entitlement = Entitlement.objects.get(id=right.id)
        entitlements.end(entitlement=entitlement, actor=ACTOR)
        right.ended = True


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("valkey")
def test_whatever_happens_in_whatever_order_the_books_are_right() -> None:
    # A failure is shown as it was found: shrinking it against real servers takes longer than reading it.
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
