"""Signing in: what fails too often has to wait, nobody learns which accounts there are, and the audit has all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.test import Client
from django.urls import reverse
from redis.exceptions import ConnectionError as StoreUnreachable
from structlog.testing import capture_logs

from accounts import audit, log_in_counters, log_ins
from accounts.audit import verification
from accounts.audit.reading import disclose
from accounts.models import AuditEvent, User
from accounts.tasks import record_failed_log_ins
from signalbox import store
from signalbox.configuration import Configuration, configuration
from tests.factories import PASSWORD, OperatorFactory, UserFactory
from tests.fixtures.stored_text import stored_text

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_admin_pages")]

#: Of the network that is set aside for examples.
ADDRESS, OTHER_ADDRESS = "192.0.2.1", "192.0.2.2"
WRONG = "not the password"

Set = Callable[..., None]


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Few failures are enough here; a test may set further settings."""

    def set_(**values: Any) -> None:
        few = {"log_in_failures_per_account": 3, "log_in_failures_per_address": 6}
        changed = configuration().model_copy(update={**few, **values})
        for module in ("accounts.log_in_counters", "accounts.actors"):
            monkeypatch.setattr(f"{module}.configuration", lambda: changed)

    set_()
    return set_


@pytest.fixture
def ada() -> User:
    made: User = UserFactory(username="ada")
    return made


def sign_in(username: str = "ada", password: str = WRONG, address: str = ADDRESS, **headers: Any) -> Any:
    return Client(REMOTE_ADDR=address, **headers).post(
        reverse("login"), {"username": username, "password": password}
    )


def notice(answer: Any) -> str:
    """What the page tells."""
    return str(answer.context["form"].non_field_errors()[0])


def events(action: str) -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(action=action).order_by("sequence"))


@pytest.mark.usefixtures("ada")
def test_an_account_that_failed_too_often_has_to_wait_even_with_the_right_password() -> None:
    for _ in range(3):
        assert sign_in().status_code == 200
    answer = sign_in(password=PASSWORD)
    assert answer.status_code == 429
    assert 0 < int(answer["Retry-After"]) <= 900
    assert notice(answer) == "Too many log-ins have failed. Try again in 15 minutes."
    assert "sessionid" not in answer.cookies
    # From anywhere, and however it is capitalized.
    assert sign_in("ADA", address=OTHER_ADDRESS).status_code == 429


@pytest.mark.usefixtures("ada")
def test_another_account_from_another_address_does_not_wait() -> None:
    UserFactory(username="bob")
    for _ in range(4):
        sign_in()
    assert sign_in("bob", PASSWORD).status_code == 302
    assert sign_in("bob", PASSWORD, OTHER_ADDRESS).status_code == 302


def test_an_address_that_failed_too_often_has_to_wait_whatever_the_account(ada: User) -> None:
    for attempt in range(6):
        assert sign_in(f"guess-{attempt}").status_code == 200
    assert sign_in("ada", PASSWORD).status_code == 429
    assert sign_in("ada", PASSWORD, OTHER_ADDRESS).status_code == 302


def test_an_address_of_version_6_is_its_network(ada: User) -> None:
    for attempt in range(6):
        sign_in(f"guess-{attempt}", address=f"2001:db8:0:1::{attempt:x}")
    assert sign_in("ada", PASSWORD, "2001:db8:0:1:ffff::1").status_code == 429
    assert sign_in("ada", PASSWORD, "2001:db8:0:2::1").status_code == 302


@pytest.mark.usefixtures("ada")
def test_the_address_is_the_clients_behind_a_trusted_proxy_and_only_there(limits: Set) -> None:
    limits(trusted_proxies=["10.0.0.1"])
    for attempt in range(6):
        sign_in(f"guess-{attempt}", address="10.0.0.1", HTTP_X_FORWARDED_FOR=ADDRESS)
    assert sign_in("ada", PASSWORD, "10.0.0.1", HTTP_X_FORWARDED_FOR=ADDRESS).status_code == 429
    assert sign_in("ada", PASSWORD, "10.0.0.1", HTTP_X_FORWARDED_FOR=OTHER_ADDRESS).status_code == 302
    # Whoever is no proxy gains nothing by claiming another address.
    assert sign_in("ada", PASSWORD, ADDRESS, HTTP_X_FORWARDED_FOR=OTHER_ADDRESS).status_code == 429
    assert {disclose(event).address for event in events("user.log_in_failed")} == {ADDRESS}


@pytest.mark.usefixtures("ada")
def test_a_log_in_that_succeeds_counts_as_no_failure() -> None:
    for _ in range(8):
        assert sign_in(password=PASSWORD).status_code == 302
    for _ in range(2):
        sign_in()
    assert sign_in(password=PASSWORD).status_code == 302
    # Nor does it forgive the failures before it, or whoever has one account could try all others from its address.
    assert sign_in().status_code == 200
    assert sign_in(password=PASSWORD).status_code == 429


@pytest.mark.usefixtures("ada")
def test_the_wait_ends_with_the_window_and_is_not_prolonged_by_trying(
    limits: Set, valkey: redis.Redis
) -> None:
    limits(log_in_window_seconds=60)
    for _ in range(3):
        sign_in()
    for counter in valkey.scan_iter("log-ins:account:*"):
        valkey.pexpire(counter, 30_000)
    assert int(sign_in()["Retry-After"]) <= 30
    assert notice(sign_in()) == "Too many log-ins have failed. Try again in a minute."
    # The window's end.
    valkey.delete(*valkey.keys("log-ins:account:*"))
    assert sign_in(password=PASSWORD).status_code == 302


@pytest.mark.usefixtures("ada")
def test_attempts_that_are_under_way_at_once_count_before_any_of_them_has_failed() -> None:
    taken = [log_in_counters.take("ada", ADDRESS) for _ in range(3)]
    with pytest.raises(log_in_counters.TooManyFailures):
        log_in_counters.take("ada", ADDRESS)
    log_in_counters.give_back(taken[0])
    log_in_counters.take("ada", ADDRESS)


def test_what_is_given_back_after_its_window_leaves_no_counter(valkey: redis.Redis) -> None:
    attempt = log_in_counters.take("ada", ADDRESS)
    valkey.flushall()
    log_in_counters.give_back(attempt)
    assert valkey.keys("log-ins:*") == []


class CountingHasher(PBKDF2PasswordHasher):
    """Counts how often a password is worked on: that is what takes the time that could be measured."""

    iterations = 1
    worked = 0

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        type(self).worked += 1
        return super().encode(password, salt, iterations)


def test_nobody_learns_from_words_headers_or_work_which_accounts_there_are(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["tests.signalbox.test_sign_in.CountingHasher"]
    UserFactory(username="there")
    UserFactory(username="closed", is_active=False)
    answers: dict[str, list[tuple[int, str, int]]] = {}
    for number, name in enumerate(("there", "closed", "nowhere")):
        for _ in range(4):
            CountingHasher.worked = 0
            answer = sign_in(name, address=f"192.0.2.{number}")
            answers.setdefault(name, []).append((answer.status_code, notice(answer), CountingHasher.worked))
    assert [status for status, _, _ in answers["there"]] == [200, 200, 200, 429]
    assert [worked for _, _, worked in answers["there"]] == [1, 1, 1, 0]
    assert answers["there"] == answers["closed"] == answers["nowhere"]


def test_the_admin_asks_on_the_same_page() -> None:
    OperatorFactory(username="operator")
    asked = Client().get(reverse("admin:login"))
    assert (asked.status_code, asked["Location"].partition("?")[0]) == (302, reverse("login"))
    posted = Client().post(reverse("admin:login"), {"username": "operator", "password": PASSWORD})
    assert posted["Location"].partition("?")[0] == reverse("login")
    assert "sessionid" not in posted.cookies


# The audit


def test_who_comes_in_and_leaves_is_in_the_audit(ada: User) -> None:
    client = Client(REMOTE_ADDR=ADDRESS)
    client.post(reverse("login"), {"username": "ada", "password": PASSWORD})
    client.post(reverse("logout"))
    client.post(reverse("logout"))
    log_in, log_out = AuditEvent.objects.order_by("sequence")
    assert (log_in.action, log_out.action) == ("user.log_in", "user.log_out")
    for event in (log_in, log_out):
        assert (event.actor_kind, event.actor_id, event.object_id) == ("user", str(ada.id), str(ada.id))
        assert (disclose(event).address, event.request_id[:4]) == (ADDRESS, "req_")
    assert verification.verify(from_scratch=True).fault is None


def test_a_log_in_that_cannot_be_recorded_does_not_happen(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwritable(*_: Any, **__: Any) -> None:
        raise audit.AuditError("no head row")

    monkeypatch.setattr(audit, "record", unwritable)
    client = Client(raise_request_exception=False)
    assert client.post(reverse("login"), {"username": "ada", "password": PASSWORD}).status_code == 500
    monkeypatch.undo()
    assert client.get(reverse("chat")).status_code == 302


def test_a_failed_log_in_is_recorded_with_its_reason_and_without_what_was_typed(ada: User) -> None:
    UserFactory(username="closed", is_active=False)
    sign_in()
    sign_in("closed", PASSWORD)
    sign_in("hunter2-typed-in-the-wrong-field")
    failed = events("user.log_in_failed")
    assert [(disclose(event).object_name, event.after) for event in failed] == [
        ("ada", {"reason": "wrong_password"}),
        ("closed", {"reason": "user_closed"}),
        ("", {"reason": "unknown_user"}),
    ]
    assert {(event.actor_kind, event.actor_id, disclose(event).address) for event in failed} == {
        ("anonymous", "", ADDRESS)
    }
    assert verification.verify(from_scratch=True).fault is None
    for typed in (WRONG, PASSWORD, "hunter2"):
        assert typed not in stored_text()


@pytest.mark.usefixtures("ada")
def test_refusals_are_one_event_for_each_limit_and_window() -> None:
    for _ in range(8):
        sign_in()
    for attempt in range(6):
        sign_in(f"guess-{attempt}")
    refused = events("user.log_in_throttled")
    assert [(disclose(event).object_name, event.after, disclose(event).address) for event in refused] == [
        ("ada", {"limit": "account"}, ADDRESS),
        ("", {"limit": "address"}, ADDRESS),
    ]
    assert len(events("user.log_in_failed")) == 6


def test_beyond_a_rate_failures_are_counted_and_become_one_event(
    monkeypatch: pytest.MonkeyPatch, limits: Set
) -> None:
    limits(log_in_failures_per_address=100)
    monkeypatch.setattr(log_in_counters, "EVENTS_A_MINUTE", 2)
    for attempt in range(7):
        sign_in(f"guess-{attempt}")
    assert len(events("user.log_in_failed")) == 2
    assert record_failed_log_ins() == 5
    *_, summed = events("user.log_in_failed")
    assert (summed.actor_kind, summed.after) == ("system", {"further_failures": 5})
    assert record_failed_log_ins() == 0
    assert len(events("user.log_in_failed")) == 3


def test_the_store_holds_neither_names_nor_addresses(valkey: redis.Redis) -> None:
    sign_in("ada")
    kept = b" ".join(valkey.scan_iter("log-ins:*"))
    assert b"log-ins:account:" in kept
    assert b"ada" not in kept.replace(b"address", b"")
    assert ADDRESS.encode() not in kept


# With the store away


@pytest.fixture
def _store_away(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Configuration(valkey_url="unix:///nowhere/valkey.sock")
    client = store.sync_client(nowhere, timeout_s=1.0, retries=0)
    monkeypatch.setattr(log_in_counters, "_client", lambda: client)
    log_in_counters._function.cache_clear()


@pytest.fixture(autouse=True)
def _functions_of_the_real_store() -> Any:
    yield
    log_in_counters._function.cache_clear()


@pytest.mark.usefixtures("_store_away", "ada")
def test_people_sign_in_unthrottled_while_the_store_is_away_and_the_log_says_so() -> None:
    with capture_logs() as lines:
        for _ in range(5):
            assert sign_in().status_code == 200
        assert sign_in(password=PASSWORD).status_code == 302
    assert len(events("user.log_in_failed")) == 5
    assert len(events("user.log_in")) == 1
    said = [line for line in lines if line["event"] == "log_in_not_throttled"]
    assert len(said) == 6
    assert not any(line.get("exc_info") for line in lines)


@pytest.mark.usefixtures("_store_away")
def test_the_task_fails_rather_than_forgetting_while_the_store_is_away() -> None:
    with pytest.raises(StoreUnreachable):
        log_ins.record_count()


def test_the_present_password_is_tried_as_seldom_as_a_log_in(ada: User) -> None:
    client = Client(REMOTE_ADDR=ADDRESS)
    client.force_login(ada)

    def change(present: str) -> Any:
        new = "a new signal every day"
        return client.post(reverse("password"), {"old_password": present, "password": new, "again": new})

    for _ in range(3):
        assert "This is not your present password." in change(WRONG).content.decode()
    answer = change(PASSWORD)
    assert answer.status_code == 429
    assert "Too many log-ins have failed" in answer.content.decode()
    ada.refresh_from_db()
    assert ada.check_password(PASSWORD)
    assert len(events("user.log_in_failed")) == 3
    assert [event.after for event in events("user.log_in_throttled")] == [{"limit": "account"}]
    # It is one count: the form to sign in is closed to them too.
    assert sign_in(password=PASSWORD).status_code == 429
