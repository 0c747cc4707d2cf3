"""Events are told by e-mail and to webhooks: every one, once, whatever fails in between."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core import mail
from django.core.cache import cache
from structlog.testing import capture_logs

from accounts import budget_mail, budget_telling
from accounts.models import BudgetEvent, Role, Tenant, WebhookDelivery
from accounts.sole_passes import sole_pass
from accounts.tasks import tell_budget_events
from accounts.tenancy import every_tenant
from accounts.webhooks import deliveries
from signalbox.configuration import configuration
from tests.factories import (
    ApiKeyFactory,
    BudgetEventFactory,
    EntitlementFactory,
    MembershipFactory,
    UserFactory,
    WebhookEndpointFactory,
)
from tests.fixtures.mail_sink import MailSink

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

NOON = datetime(2026, 3, 15, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOON, tick=False) as traveller:
        yield traveller


@pytest.fixture(autouse=True)
def _outbox(settings: Any) -> None:
    """A mail server is named; what is sent lies in ``mail.outbox``."""
    settings.EMAIL_HOST = "mail.example.com"
    settings.DEFAULT_FROM_EMAIL = "Signalbox <signalbox@example.com>"
    budget_telling._say_that_no_mail_is_sent.cache_clear()


@pytest.fixture
def sink(settings: Any) -> Iterator[MailSink]:
    """A real mail server in place of the outbox."""
    sink = MailSink()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", sink.port
    yield sink
    sink.stop()


def event(**fields: Any) -> BudgetEvent:
    """An event of a lane's daily budget, of a tenant with an admin who has an address."""
    entitlement = EntitlementFactory()
    made: BudgetEvent = BudgetEventFactory(
        allowance=entitlement.allowance,
        window__starts_at=datetime(2026, 3, 15, tzinfo=UTC),
        window__ends_at=datetime(2026, 3, 16, tzinfo=UTC),
        **fields,
    )
    admin(made.tenant)
    return made


def admin(tenant: Tenant, email: str | None = None, role: Role = Role.ADMIN, **fields: Any) -> str:
    address = f"{uuid.uuid4().hex[:8]}@example.com" if email is None else email
    active = fields.pop("is_active", True)
    MembershipFactory(tenant=tenant, user=UserFactory(email=address, is_active=active), role=role, **fields)
    return address


def told_at(of: BudgetEvent) -> datetime | None:
    with every_tenant("test"):
        return BudgetEvent.objects.get(id=of.id).told_at


def queued() -> list[WebhookDelivery]:
    with every_tenant("test"):
        return list(WebhookDelivery.objects.select_related("endpoint"))


def test_an_event_is_told_once_by_mail_and_to_every_endpoint() -> None:
    made = event()
    for _ in range(2):
        WebhookEndpointFactory(tenant=made.tenant)
    assert tell_budget_events() == 1
    assert told_at(made) == NOON
    for _ in range(2):
        assert tell_budget_events() == 0
    assert len(mail.outbox) == 1
    assert len(queued()) == 2


def test_owners_and_admins_with_an_address_get_it() -> None:
    made = event()
    owner = admin(made.tenant, role=Role.OWNER)
    for ignored in (
        {"role": Role.MEMBER},
        {"role": Role.VIEWER},
        {"email": ""},
        {"email": "no address"},
        {"ended_at": NOON},
        {"is_active": False},
    ):
        admin(made.tenant, **ignored)  # type: ignore[arg-type]
    admin(event(told_at=NOON).tenant)
    budget_telling.tell()
    [message] = mail.outbox
    assert owner in message.to
    assert len(message.to) == 2


def test_the_mail_says_what_how_much_when_it_resets_and_where_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = configuration().model_copy(update={"site_url": "https://chat.example.com/"})
    monkeypatch.setattr(budget_mail, "configuration", lambda: known)
    made = event(used=812, reserved=40)
    Tenant.objects.filter(id=made.tenant_id).update(name="Rail", slug="rail", time_zone="Asia/Seoul")
    budget_telling.tell()
    [message] = mail.outbox
    assert message.subject == "Rail: 80 % used of the daily token budget of lane normal"
    assert message.from_email == "Signalbox <signalbox@example.com>"
    body = str(message.body)
    assert "812 of 1,000 tokens (81 %), and 40 more are reserved" in body
    assert "Monday 16 March 2026, 09:00 (Asia/Seoul)" in body
    assert "https://chat.example.com/tenant/rail/" in body
    assert message.extra_headers["Message-ID"] == f"<budget-{made.id.hex}@example.com>"


@pytest.mark.parametrize(
    ("used", "subject", "first"),
    [
        (1000, "nothing left of", "All of the daily token budget"),
        (950, "too little left of", "A request was refused"),
    ],
)
def test_a_budget_that_is_used_up_and_one_that_refused_are_told_apart(
    used: int, subject: str, first: str
) -> None:
    event(percent=100, used=used)
    budget_telling.tell()
    [message] = mail.outbox
    assert subject in message.subject
    assert str(message.body).startswith(first)
    assert "GET /v1/limits" in str(message.body)


def test_people_are_not_told_80_percent_when_all_is_used() -> None:
    made = event()
    final = BudgetEventFactory(allowance=made.allowance, window=made.window, percent=100, used=1000)
    WebhookEndpointFactory(tenant=made.tenant)
    assert budget_telling.tell() == 2
    assert [message.subject.partition(":")[2] for message in mail.outbox] == [
        " nothing left of the daily token budget of lane normal"
    ]
    assert {one.event_type for one in queued()} == {"budget.warning", "budget.exhausted"}
    assert told_at(made) is not None
    assert told_at(final) is not None


def test_a_name_with_a_line_break_makes_no_header_of_its_own() -> None:
    event(subject="API key a\nBcc: everybody@example.com (sb_0123…)")
    budget_telling.tell()
    [message] = mail.outbox
    assert "\n" not in message.subject
    assert message.message()["Bcc"] is None


def test_a_webhook_s_message_says_the_same_in_figures() -> None:
    made = event(reserved=40)
    endpoint = WebhookEndpointFactory(tenant=made.tenant)
    budget_telling.tell()
    [delivery] = queued()
    assert (delivery.endpoint_id, delivery.event_id, delivery.state) == (endpoint.id, made.id, "pending")
    assert delivery.payload["type"] == "budget.warning"
    assert delivery.payload["timestamp"] == "2026-03-15T12:00:00Z"
    data = delivery.payload["data"]
    with every_tenant("test"):
        entitlement = made.allowance.entitlement
    assert data == {
        "tenant_id": str(made.tenant_id),
        "tenant": made.tenant.slug,
        "budget_of": "lane normal",
        "lane": "normal",
        "entitlement_id": str(entitlement.id),
        "api_key_id": None,
        "limit_name": "tokens_per_day",
        "percent": 80,
        "limit": 1000,
        "used": 812,
        "reserved": 40,
        "window_starts_at": "2026-03-15T00:00:00Z",
        "resets_at": "2026-03-16T00:00:00Z",
    }


def test_a_key_s_budget_names_the_key_that_works_by_it_now() -> None:
    old: Any = ApiKeyFactory()
    new: Any = ApiKeyFactory(tenant=old.tenant, allowance=old.allowance, rotated_from=old)
    with every_tenant("test"):
        type(old).objects.filter(id=old.id).update(created_at=NOON - timedelta(days=9))
    made: Any = BudgetEventFactory(allowance=old.allowance)
    with every_tenant("test"):
        assert budget_telling.data_of(made)["api_key_id"] == str(new.id)


def test_a_closed_tenant_is_told_nothing() -> None:
    made = event()
    WebhookEndpointFactory(tenant=made.tenant)
    Tenant.objects.filter(id=made.tenant_id).update(closed_at=NOON)
    assert budget_telling.tell() == 1
    assert (mail.outbox, queued()) == ([], [])


def test_without_a_mail_server_webhooks_are_told_and_it_is_said_once(settings: Any) -> None:
    settings.EMAIL_HOST = ""
    with capture_logs() as log:
        for _ in range(2):
            made = event()
            WebhookEndpointFactory(tenant=made.tenant)
            assert budget_telling.tell() == 1
    assert len(queued()) == 2
    assert mail.outbox == []
    assert [line["event"] for line in log] == ["budget_mail_not_configured"]


class _Died(BaseException):
    """The process ends."""


@pytest.mark.parametrize("where", ["deliveries.queue", "budget_telling._send", "budget_telling._mark"])
def test_a_crash_in_between_loses_nothing(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    made = event()
    WebhookEndpointFactory(tenant=made.tenant)

    def die(*_: object) -> None:
        raise _Died

    module, name = where.split(".")
    with monkeypatch.context() as patch:
        patch.setattr({"deliveries": deliveries, "budget_telling": budget_telling}[module], name, die)
        with pytest.raises(_Died):
            budget_telling.tell()
    assert told_at(made) is None
    assert budget_telling.tell() == 1
    assert len(queued()) == 1
    # Sent and not yet marked: it comes twice, and can be known by its id.
    assert len({message.extra_headers["Message-ID"] for message in mail.outbox}) == 1


def test_a_pass_beside_another_leaves_the_mail_to_it() -> None:
    made = event()
    WebhookEndpointFactory(tenant=made.tenant)
    with sole_pass("budget-mail", at_most_s=60) as alone:
        assert alone
        assert budget_telling.tell() == 0
    assert (mail.outbox, len(queued())) == ([], 1)
    assert budget_telling.tell() == 1


def test_it_arrives_by_a_real_mail_server_over_one_connection(sink: MailSink) -> None:
    first, second = event(), event(subject="Schlüssel „größer“")
    assert budget_telling.tell() == 2
    assert sink.connections == 1
    assert len(sink.messages) == 2
    assert {message["Message-ID"] for message in sink.messages} == {
        f"<budget-{made.id.hex}@example.com>" for made in (first, second)
    }
    assert any("größer" in message["Subject"] for message in sink.messages)
    assert all("812 of 1,000 tokens" in message.get_content() for message in sink.messages)
    assert all(len(recipients) == 1 for recipients in sink.recipients)


def test_a_mail_server_that_is_away_is_asked_again_after_growing_waits_and_said_once(
    sink: MailSink, clock: time_machine.Traveller
) -> None:
    sink.replies["MAIL"] = "451 try again later"
    made = event()
    waits = []
    with capture_logs() as log:
        for _ in range(4):
            assert budget_telling.tell() == 0
            asked = sink.connections
            assert budget_telling.tell() == 0
            assert sink.connections == asked
            pause = cache.get(budget_telling._PAUSE)
            waits.append(pause["until"] - datetime.now(UTC).timestamp())
            clock.shift(timedelta(seconds=waits[-1]))
        del sink.replies["MAIL"]
        assert budget_telling.tell() == 1
    assert waits == [15, 30, 60, 120]
    assert told_at(made) is not None
    assert len(sink.messages) == 1
    assert [line["event"] for line in log] == ["budget_mail_failed", "budget_mail_works_again"]


def test_webhooks_do_not_wait_for_the_mail_server(settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
    for _ in range(2):
        made = event()
        WebhookEndpointFactory(tenant=made.tenant)
        budget_telling.tell()
    assert len(queued()) == 2


def test_a_password_is_in_no_log(sink: MailSink, settings: Any) -> None:
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "robot", "correct-horse"
    sink.replies["EHLO"] = "250-sink\r\n250 AUTH PLAIN"
    sink.replies["AUTH"] = "535 bad credentials: correct-horse"
    event()
    with capture_logs() as log:
        budget_telling.tell()
    assert [line["error"] for line in log] == ["SMTPAuthenticationError"]
    assert "correct-horse" not in str(log)


def test_one_message_that_is_not_taken_does_not_hold_up_the_others(
    sink: MailSink, clock: time_machine.Traveller
) -> None:
    class Once(dict[str, str]):
        def get(self, command: str, default: Any = None) -> Any:
            return self.pop(command, default)

    first = event()
    clock.shift(timedelta(seconds=1))
    second = event()
    sink.replies = Once(DATA="554 this one not")
    assert budget_telling.tell() == 1
    assert (told_at(first), told_at(second) is not None) == (None, True)
    assert len(sink.messages) == 1


def test_a_tenant_whose_every_address_is_refused_for_good_is_told_no_more(sink: MailSink) -> None:
    sink.replies["RCPT"] = "550 no such user"
    made = event()
    with capture_logs() as log:
        assert budget_telling.tell() == 1
    assert told_at(made) is not None
    assert [line["event"] for line in log] == ["budget_mail_refused"]


def test_what_nobody_can_act_on_any_more_is_given_up(sink: MailSink, clock: time_machine.Traveller) -> None:
    sink.replies["MAIL"] = "451 try again later"
    made = event()
    budget_telling.tell()
    clock.move_to(datetime(2026, 3, 16, 0, 0, 1, tzinfo=UTC))
    with capture_logs() as log:
        budget_telling.tell()
    assert told_at(made) is not None
    assert [line["event"] for line in log] == ["budget_mail_given_up"]
