"""What a fresh installation needs to be of use: an operator, a tenant that may use every lane, and a key."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts import keys, members, tenants, users
from accounts.models import ApiKey, Role, Tenant, User
from accounts.principal import Actor
from accounts.tenancy import tenant_scope

OPERATOR = "admin"
TENANT = "default"
KEY_NAME = "first key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """What there is now. The secrets are set on the first run only: they are shown then, and stored nowhere."""

    first_run: bool
    username: str
    must_change_password: bool
    tenant: str
    api_key_prefix: str | None
    one_time_password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)


def bootstrap(actor: Actor) -> Bootstrap:
    """Set up a fresh installation, all or nothing. One that has an operator is left as it is, and described."""
    with transaction.atomic():
        operator = User.objects.filter(is_superuser=True, is_active=True).order_by("date_joined").first()
        if operator is not None:
            return _present(operator)
        issued = users.create(username=OPERATOR, is_superuser=True, actor=actor)
        tenant = tenants.create(name="Default", slug=TENANT, actor=actor, granted_by=issued.user)
        members.add(tenant=tenant, user=issued.user, role=Role.OWNER, actor=actor)
        key = keys.create(tenant=tenant, name=KEY_NAME, created_by=issued.user, actor=actor)
    return Bootstrap(
        first_run=True,
        username=issued.user.username,
        must_change_password=True,
        tenant=tenant.slug,
        api_key_prefix=key.key.prefix,
        one_time_password=issued.password,
        api_key=key.raw,
    )


def _present(operator: User) -> Bootstrap:
    tenant = Tenant.objects.filter(closed_at=None).order_by("created_at").first()
    prefix = None
    if tenant is not None:
        with tenant_scope(tenant.id):
            prefix = (
                ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)
                .order_by("created_at")
                .values_list("prefix", flat=True)
                .first()
            )
    return Bootstrap(
        first_run=False,
        username=operator.username,
        must_change_password=operator.must_change_password,
        tenant=tenant.slug if tenant else TENANT,
        api_key_prefix=prefix,
    )
