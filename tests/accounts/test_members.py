from __future__ import annotations

import threading

import pytest
from django.db import connection
from django.utils import timezone

from accounts import members
from accounts.models import AuditEvent, Membership, Role
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from tests.factories import ACTOR, MembershipFactory, TenantFactory, UserFactory


@pytest.mark.django_db
def test_a_member_joins_changes_role_leaves_and_joins_again() -> None:
    tenant, user = TenantFactory(), UserFactory()
    MembershipFactory(tenant=tenant, role=Role.OWNER)
    first = members.add(tenant=tenant, user=user, role=Role.MEMBER, actor=ACTOR)
    members.change_role(membership=first, role=Role.VIEWER, actor=ACTOR)
    members.end(membership=first, actor=ACTOR)
    members.end(membership=first, actor=ACTOR)
    again = members.add(tenant=tenant, user=user, role=Role.ADMIN, actor=ACTOR)
    assert again.id != first.id
    assert list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True)) == [
        "membership.add",
        "membership.change_role",
        "membership.end",
        "membership.add",
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setup", "code"),
    [
        (lambda: (TenantFactory(closed_at=timezone.now()), UserFactory()), ChangeRefusal.TENANT_CLOSED),
        (lambda: (TenantFactory(), UserFactory(is_active=False)), ChangeRefusal.USER_CLOSED),
        (lambda: (lambda m: (m.tenant, m.user))(MembershipFactory()), ChangeRefusal.ALREADY_A_MEMBER),
    ],
)
def test_who_cannot_join_is_told_why(setup: object, code: ChangeRefusal) -> None:
    tenant, user = setup()  # type: ignore[operator]
    with pytest.raises(ChangeRefused) as refusal:
        members.add(tenant=tenant, user=user, role=Role.MEMBER, actor=ACTOR)
    assert refusal.value.code == code


@pytest.mark.django_db
def test_a_tenant_keeps_its_last_owner() -> None:
    owner = MembershipFactory(role=Role.OWNER)
    MembershipFactory(tenant=owner.tenant, role=Role.OWNER, ended_at=timezone.now())
    with pytest.raises(ChangeRefused) as refusal:
        members.change_role(membership=owner, role=Role.ADMIN, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.LAST_OWNER
    with pytest.raises(ChangeRefused):
        members.end(membership=owner, actor=ACTOR)
    MembershipFactory(tenant=owner.tenant, role=Role.OWNER)
    assert members.change_role(membership=owner, role=Role.ADMIN, actor=ACTOR).role == Role.ADMIN


@pytest.mark.django_db
def test_an_ended_membership_has_no_role_to_change() -> None:
    ended = MembershipFactory(ended_at=timezone.now())
    with pytest.raises(ChangeRefused) as refusal:
        members.change_role(membership=ended, role=Role.OWNER, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.MEMBERSHIP_ENDED


@pytest.mark.django_db(transaction=True)
def test_two_owners_who_end_each_other_at_once_leave_one() -> None:
    tenant = TenantFactory()
    owners = [MembershipFactory(tenant=tenant, role=Role.OWNER) for _ in range(2)]
    start = threading.Barrier(2)
    refused: list[ChangeRefused] = []

    def end(membership: Membership) -> None:
        start.wait()
        try:
            members.end(membership=membership, actor=ACTOR)
        except ChangeRefused as refusal:
            refused.append(refusal)
        finally:
            connection.close()

    threads = [threading.Thread(target=end, args=[owner]) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with every_tenant("test"):
        assert Membership.objects.filter(ended_at=None).count() == 1
    assert [refusal.code for refusal in refused] == [ChangeRefusal.LAST_OWNER]
