from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import models

from accounts.models import ApiKey, Tenant
from accounts.tenancy import ScopeError, TenantManager, every_tenant, tenant_scope
from inference.models import ChatMessage, Generation, GenerationRequest
from signalbox.configuration import ROOT
from tests.factories import ApiKeyFactory, ConversationFactory, GenerationFactory

OURS = [model for app in ("accounts", "inference") for model in apps.get_app_config(app).get_models()]

#: Rows of the installation, not of a tenant. ``AuditEvent`` names tenants, and is the auditor's, who sees all; a
#: ``PublishedPrefix`` is every tenant's by its meaning.
OF_NO_TENANT = {
    "AuditArchive",
    "AuditCheckpoint",
    "AuditEvent",
    "AuditHead",
    "AuditPersonalValue",
    "AuditSettings",
    "AuditSigningKey",
    "AuditVerification",
    "Lane",
    "LanguageModel",
    "Price",
    "PublishedPrefix",
    "SealedAssignment",
    "SpeculationVerdict",
    "Tenant",
    "User",
    "Worker",
}


def _leads_to_tenant(model: type[models.Model], seen: frozenset[type[models.Model]] = frozenset()) -> bool:
    """Whether a row belongs to a tenant: it has its id, or a foreign key to a row that belongs to one."""
    if model in seen:
        return False
    for field in model._meta.get_fields():
        if getattr(field, "attname", None) == "tenant_id":
            return True
        if isinstance(field, models.ForeignKey):
            target = field.related_model
            if isinstance(target, type) and _leads_to_tenant(target, seen | {model}):
                return True
    return False


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_every_model_that_leads_to_a_tenant_has_the_tenant_manager(model: type[models.Model]) -> None:
    if model.__name__ in OF_NO_TENANT:
        assert not isinstance(model._default_manager, TenantManager)
    else:
        assert _leads_to_tenant(model), (
            f"{model.__name__} belongs to nobody: add it to OF_NO_TENANT and say why"
        )
        assert isinstance(model._default_manager, TenantManager)
        with tenant_scope(uuid.uuid4()):
            # The manager's path leads somewhere: a query can be made of it.
            assert "WHERE" in str(model._default_manager.all().query)


QUERIES: dict[str, Callable[[Any], object]] = {
    "all": lambda objects: list(objects.all()),
    "list": lambda objects: list(objects.get_queryset()),
    "filter": lambda objects: objects.filter(name="x"),
    "exclude": lambda objects: objects.exclude(name="x"),
    "get": lambda objects: objects.get(id=uuid.uuid4()),
    "exists": lambda objects: objects.exists(),
    "count": lambda objects: objects.count(),
    "first": lambda objects: objects.first(),
    "update": lambda objects: objects.update(name="x"),
    "delete": lambda objects: objects.get_queryset().delete(),
    "values": lambda objects: objects.values("id"),
    "in_bulk": lambda objects: objects.in_bulk(),
    "aggregate": lambda objects: objects.aggregate(n=models.Count("id")),
    "iterator": lambda objects: list(objects.iterator()),
    "select_related": lambda objects: objects.select_related("tenant"),
    "subquery": lambda objects: Tenant.objects.filter(api_keys__in=objects.get_queryset()).exists(),
    "using": lambda objects: list(objects.using("default")),
    "index": lambda objects: objects.get_queryset()[0],
}


@pytest.mark.django_db
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_a_query_outside_of_a_scope_raises(query: Callable[[Any], object]) -> None:
    ApiKeyFactory()
    with pytest.raises(ScopeError, match="belong to tenants"):
        query(ApiKey.objects)


@pytest.mark.django_db
def test_a_tenant_s_rows_cannot_be_reached_through_the_tenant_outside_of_a_scope() -> None:
    tenant = ApiKeyFactory().tenant
    with pytest.raises(ScopeError):
        list(tenant.api_keys.all())
    with tenant_scope(tenant.id):
        assert tenant.api_keys.count() == 1


@pytest.mark.django_db
async def test_an_async_query_outside_of_a_scope_raises() -> None:
    with pytest.raises(ScopeError):
        await ApiKey.objects.acount()
    with pytest.raises(ScopeError):
        async for _ in ApiKey.objects.get_queryset():
            pass
    with pytest.raises(ScopeError):
        await ApiKey.objects.aexists()


@pytest.mark.django_db
def test_a_scope_sees_one_tenant_s_rows_whatever_the_query_says() -> None:
    mine, other = ApiKeyFactory(), ApiKeyFactory()
    with tenant_scope(mine.tenant_id):
        assert list(ApiKey.objects.all()) == [mine]
        assert not ApiKey.objects.filter(id=other.id).exists()
        assert not ApiKey.objects.filter(tenant=other.tenant_id).exists()
        assert list(ApiKey.objects.exclude(id=mine.id)) == []
        assert ApiKey.objects.filter(id=other.id).update(name="mine now") == 0
        assert not other.tenant.api_keys.exists()


@pytest.mark.django_db
def test_rows_that_belong_to_a_tenant_through_another_row_are_scoped_too() -> None:
    mine, other = GenerationFactory(), GenerationFactory()
    with every_tenant("test"):
        for generation in (mine, other):
            GenerationRequest.objects.create(generation=generation, task=b"")
        conversation = ConversationFactory()
        ChatMessage.objects.create(conversation=conversation, position=0, role="user", content="hello")
    with tenant_scope(mine.tenant_id):
        assert [request.generation for request in GenerationRequest.objects.all()] == [mine]
        assert not ChatMessage.objects.exists()
        assert not conversation.messages.exists()
    with tenant_scope(conversation.tenant_id):
        assert conversation.messages.get().content == "hello"


@pytest.mark.django_db
def test_every_tenant_sees_all_and_scopes_nest() -> None:
    a, b = ApiKeyFactory(), ApiKeyFactory()
    with every_tenant("test"):
        assert ApiKey.objects.count() == 2
        with tenant_scope(a.tenant_id):
            assert list(ApiKey.objects.all()) == [a]
            with tenant_scope(b.tenant_id):
                assert list(ApiKey.objects.all()) == [b]
            assert list(ApiKey.objects.all()) == [a]
        assert ApiKey.objects.count() == 2
    with pytest.raises(ScopeError):
        ApiKey.objects.count()


@pytest.mark.django_db(transaction=True)
async def test_a_scope_goes_along_into_threads() -> None:
    mine = await sync_to_async(ApiKeyFactory)()
    await sync_to_async(ApiKeyFactory)()
    with tenant_scope(mine.tenant_id):
        assert await ApiKey.objects.acount() == 1
        assert await sync_to_async(lambda: list(ApiKey.objects.all()))() == [mine]
    with pytest.raises(ScopeError):
        await ApiKey.objects.acount()


@pytest.mark.django_db
def test_none_can_be_asked_for_anywhere() -> None:
    assert list(ApiKey.objects.none()) == []


def test_a_scope_needs_an_id_and_a_wider_one_a_reason() -> None:
    with pytest.raises(TypeError), tenant_scope(None):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError), every_tenant(""):
        pass


def _sources() -> Iterator[tuple[str, str]]:
    for package in ("accounts", "inference", "platform/signalbox"):
        for path in (ROOT / package).rglob("*.py"):
            yield str(path.relative_to(ROOT)), path.read_text()


def test_nothing_goes_past_the_one_place() -> None:
    past = re.compile(r"_base_manager|scopes_disabled|django_scopes|objects\.raw\(")
    found = [name for name, text in _sources() if past.search(text) and name != "accounts/tenancy.py"]
    assert found == []


@pytest.mark.django_db
def test_a_foreign_key_is_followed_by_id_and_not_searched() -> None:
    generation = GenerationFactory(api_key=ApiKeyFactory())
    with every_tenant("test"):
        again = Generation.objects.get(id=generation.id)
    assert again.api_key == generation.api_key
