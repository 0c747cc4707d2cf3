"""Rows for tests, in one place. They are made past the domain's verbs: what is under test calls the verbs itself."""

from __future__ import annotations

import uuid
from datetime import timedelta
from functools import cache
from typing import Any

import factory
from django.contrib.auth.hashers import make_password
from django.utils import timezone
from factory.django import DjangoModelFactory

from accounts import key_text, keys, pepper
from accounts.models import (
    Allowance,
    ApiKey,
    BudgetEvent,
    BudgetWindow,
    Entitlement,
    Lane,
    Membership,
    Role,
    Tenant,
    User,
    WebhookDelivery,
    WebhookEndpoint,
)
from accounts.principal import Actor
from accounts.tenancy import every_tenant
from inference.models import Conversation, Generation, LanguageModel, SpeculationVerdict, Worker

PASSWORD = "correct horse battery staple"

ACTOR = Actor(
    kind="user", id=str(uuid.UUID(int=7)), name="tester", request_id="req_test", address="192.0.2.7"
)


class _TenantOwned(DjangoModelFactory[Any]):
    """Makes rows of tenants, whatever scope the test runs in."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[Any], *args: Any, **kwargs: Any) -> Any:
        with every_tenant("factories make rows for any tenant"):
            return super()._create(model_class, *args, **kwargs)


@cache
def _password_hash() -> str:
    return make_password(PASSWORD)


class UserFactory(DjangoModelFactory[User]):
    class Meta:
        model = User

    username = factory.Sequence(lambda n: f"user{n}")
    password = factory.LazyFunction(lambda: _password_hash())


class OperatorFactory(UserFactory):
    username = factory.Sequence(lambda n: f"operator{n}")
    is_staff = True
    is_superuser = True


class TenantFactory(DjangoModelFactory[Tenant]):
    class Meta:
        model = Tenant

    name = factory.Sequence(lambda n: f"Tenant {n}")
    slug = factory.Sequence(lambda n: f"tenant-{n}")


class MembershipFactory(_TenantOwned):
    class Meta:
        model = Membership

    tenant = factory.SubFactory(TenantFactory)
    user = factory.SubFactory(UserFactory)
    role = Role.MEMBER


class AllowanceFactory(_TenantOwned):
    """Without limits, unless they are given."""

    class Meta:
        model = Allowance

    tenant = factory.SubFactory(TenantFactory)


class EntitlementFactory(_TenantOwned):
    """Limits are those of its allowance: ``EntitlementFactory(allowance__tokens_per_day=1000)``."""

    class Meta:
        model = Entitlement

    tenant = factory.SubFactory(TenantFactory)
    allowance = factory.SubFactory(AllowanceFactory, tenant=factory.SelfAttribute("..tenant"))
    lane = factory.LazyFunction(lambda: Lane.objects.get(name="normal"))


class ApiKeyFactory(_TenantOwned):
    """A key's row. Its text is in ``raw`` of the instance that the factory returns."""

    class Meta:
        model = ApiKey

    tenant = factory.SubFactory(TenantFactory)
    allowance = factory.SubFactory(AllowanceFactory, tenant=factory.SelfAttribute("..tenant"))
    name = factory.Sequence(lambda n: f"key {n}")
    scopes = factory.LazyFunction(lambda: [scope.value for scope in keys.DEFAULT_SCOPES])

    @classmethod
    def _create(cls, model_class: type[ApiKey], *args: Any, **kwargs: Any) -> ApiKey:
        text = key_text.draw()
        pepper_id, digest = pepper.seal(text)
        row: Any = super()._create(
            model_class, *args, prefix=text.prefix, pepper_id=pepper_id, digest=digest, **kwargs
        )
        row.raw = str(text)
        return row


class BudgetWindowFactory(_TenantOwned):
    """A day that lasts on."""

    class Meta:
        model = BudgetWindow

    allowance = factory.SubFactory(AllowanceFactory)
    period = "day"
    starts_at = factory.LazyFunction(lambda: timezone.now() - timedelta(hours=1))
    ends_at = factory.LazyFunction(lambda: timezone.now() + timedelta(hours=23))


class BudgetEventFactory(_TenantOwned):
    class Meta:
        model = BudgetEvent

    allowance = factory.SubFactory(AllowanceFactory)
    tenant = factory.SelfAttribute("allowance.tenant")
    window = factory.SubFactory(BudgetWindowFactory, allowance=factory.SelfAttribute("..allowance"))
    subject = "lane normal"
    percent = 80
    limit = 1000
    used = 812
    reserved = 0
    resets_at = factory.SelfAttribute("window.ends_at")


class WebhookEndpointFactory(_TenantOwned):
    class Meta:
        model = WebhookEndpoint

    tenant = factory.SubFactory(TenantFactory)
    url = factory.Sequence(lambda n: f"https://hooks.example.com/{n}")
    pepper_id = factory.LazyFunction(pepper.current_id)


class WebhookDeliveryFactory(_TenantOwned):
    """Due at once."""

    class Meta:
        model = WebhookDelivery

    endpoint = factory.SubFactory(WebhookEndpointFactory)
    event_id = factory.LazyFunction(uuid.uuid4)
    event_type = "budget.warning"
    payload = factory.LazyAttribute(lambda delivery: {"type": delivery.event_type, "data": {"percent": 80}})
    next_attempt_at = factory.LazyFunction(timezone.now)


class LanguageModelFactory(DjangoModelFactory[LanguageModel]):
    class Meta:
        model = LanguageModel

    name = factory.Sequence(lambda n: f"model-{n}")
    directory = factory.LazyAttribute(lambda model: f"models/{model.name}")
    source = "made for a test"
    architecture = "llama"
    context_length = 2048
    has_chat_template = True
    dtype = "float32"
    size_bytes = 1_000_000
    checksum = "0" * 64


class SpeculationVerdictFactory(DjangoModelFactory[SpeculationVerdict]):
    """A round of 170 ms for 1.2 tokens, against 131 ms a token: it does not pay."""

    class Meta:
        model = SpeculationVerdict

    language_model = factory.SubFactory(LanguageModelFactory)
    drafter = "suffix_pool"
    hardware = "cpu"
    draft_tokens = 4
    verdict = "declined"
    speedup = 0.92
    classic_ms = 131.0
    round_ms = 170.0
    accepted_per_round = 0.2
    samples = 4
    measured_at = factory.LazyFunction(timezone.now)


class WorkerFactory(DjangoModelFactory[Worker]):
    class Meta:
        model = Worker

    model = factory.SubFactory(LanguageModelFactory)
    hostname = "host"
    pid = factory.Sequence(lambda n: 1000 + n)
    device = "cpu"
    started_at = factory.LazyFunction(timezone.now)
    last_seen_at = factory.LazyFunction(timezone.now)


class GenerationFactory(_TenantOwned):
    """A generation's row without anything in Valkey."""

    class Meta:
        model = Generation

    tenant = factory.SubFactory(TenantFactory)
    model = factory.SubFactory(LanguageModelFactory)
    lane = factory.LazyFunction(lambda: Lane.objects.get(name="normal"))
    route = "chat.completions"
    prompt_tokens = 12
    max_tokens = 64


class ConversationFactory(_TenantOwned):
    class Meta:
        model = Conversation

    tenant = factory.SubFactory(TenantFactory)
    user = factory.SubFactory(UserFactory)
    title = factory.Sequence(lambda n: f"Conversation {n}")
    model = factory.SubFactory(LanguageModelFactory)
