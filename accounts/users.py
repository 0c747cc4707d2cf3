"""People: created with a one-time password, given a new one, closed. Users are never deleted: the audit names them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import partial

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts import audit, personal_data
from accounts.audit.erasure import erase_values
from accounts.models import User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text
from accounts.signals import sessions_ended

#: No vowels and nothing that reads like something else: a one-time password is copied by hand, and spells nothing.
_PASSWORD_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"  # noqa: S105 — an alphabet
_PASSWORD_GROUPS, _PASSWORD_GROUP_LENGTH = 4, 5

_AUDITED = (
    "username",
    "email",
    "is_active",
    "is_staff",
    "is_superuser",
    "is_auditor",
    "must_change_password",
)


@dataclass(frozen=True, slots=True)
class IssuedPassword:
    """A user and, this once, their one-time password. The password is not in the ``repr``."""

    user: User
    password: str = field(repr=False)


def create(
    *,
    username: str,
    actor: Actor,
    email: str = "",
    is_staff: bool = False,
    is_superuser: bool = False,
    is_auditor: bool = False,
) -> IssuedPassword:
    """Make a user with a one-time password, which opens nothing but the page to change it. Raises ``ChangeRefused``.

    Operators and auditors may open the admin, whatever ``is_staff`` says.
    """
    password = _draw_password()
    with transaction.atomic():
        if User.objects.filter(username__iexact=username).exists():
            raise ChangeRefused(
                ChangeRefusal.NAME_TAKEN, f"There is a user named {username!r} already.", field="username"
            )
        user = User(
            username=username,
            email=email,
            is_staff=is_staff or is_superuser or is_auditor,
            is_superuser=is_superuser,
            is_auditor=is_auditor,
            must_change_password=True,
        )
        user.set_password(password)
        _check(user)
        user.save(force_insert=True)
        audit.record(actor, "user.create", user, None, audit.fields_of(user, *_AUDITED))
    return IssuedPassword(user, password)


def change(
    *,
    user: User,
    username: str,
    email: str,
    is_staff: bool,
    is_superuser: bool,
    actor: Actor,
    is_auditor: bool | None = None,
) -> User:
    """Change who a user is, whether they run the platform, and whether they read its audit (None: as it is).

    Raises ``ChangeRefused`` for the last operator, and for a user who was erased.
    """
    with transaction.atomic():
        user, operators = _locked_with_operators(user)
        _refuse_for_erased(user)
        if not is_superuser:
            _refuse_for_last_operator(user, operators)
        if User.objects.filter(username__iexact=username).exclude(id=user.id).exists():
            raise ChangeRefused(
                ChangeRefusal.NAME_TAKEN, f"There is a user named {username!r} already.", field="username"
            )
        before, email_before = audit.fields_of(user, *_AUDITED), user.email
        user.username, user.email = username, email
        user.is_superuser = is_superuser
        user.is_auditor = user.is_auditor if is_auditor is None else is_auditor
        user.is_staff = is_staff or is_superuser or user.is_auditor
        _check(user)
        after = audit.fields_of(user, *_AUDITED)
        if after != before or user.email != email_before:
            user.save(update_fields=["username", "email", "is_staff", "is_superuser", "is_auditor"])
            audit.record(actor, "user.change", user, before, after)
    return user


def issue_one_time_password(*, user: User, actor: Actor) -> IssuedPassword:
    """Replace a user's password by a one-time one; every session of theirs ends. Raises ``ChangeRefused`` if closed."""
    password = _draw_password()
    with transaction.atomic():
        user = _locked(user)
        if not user.is_active:
            raise ChangeRefused(ChangeRefusal.USER_CLOSED, f"{user} is closed. Reopen the account first.")
        before = audit.fields_of(user, *_AUDITED)
        user.set_password(password)
        user.must_change_password = True
        user.save(update_fields=["password", "must_change_password"])
        audit.record(actor, "user.reset_password", user, before, audit.fields_of(user, *_AUDITED))
        _announce_end_of_sessions(user)
    return IssuedPassword(user, password)


def set_password(*, user: User, password: str, actor: Actor) -> User:
    """Set the password that a user chose for themselves. Raises ``ChangeRefused`` (weak, or the one-time one again)."""
    with transaction.atomic():
        user = _locked(user)
        if user.check_password(password):
            raise ChangeRefused(
                ChangeRefusal.WEAK_PASSWORD,
                "Choose a password that differs from the present one.",
                field="password",
            )
        try:
            validate_password(password, user)
        except ValidationError as error:
            raise ChangeRefused(
                ChangeRefusal.WEAK_PASSWORD, " ".join(error.messages), field="password"
            ) from error
        before = audit.fields_of(user, *_AUDITED)
        user.set_password(password)
        user.must_change_password = False
        user.save(update_fields=["password", "must_change_password"])
        audit.record(actor, "user.set_password", user, before, audit.fields_of(user, *_AUDITED))
    return user


def close(*, user: User, actor: Actor) -> User:
    """Close an account: its sessions, log-in and rights end. Memberships stay, for a reopening."""
    return _set_active(user, False, "user.close", actor)


def reopen(*, user: User, actor: Actor) -> User:
    """Undo ``close``. Raises ``ChangeRefused`` for a user who was erased."""
    return _set_active(user, True, "user.reopen", actor)


def erase(*, user: User, actor: Actor) -> User:
    """Erase for good who a closed user was: the row stays, as records name it by its id, and tells nothing of a person.

    Their name becomes ``erased-`` and 8 digits of their id; e-mail address, first and last name, password and last
    log-in go, and with them what the audit keeps of them beside the chain and whatever else keeps data of theirs
    (``accounts.personal_data``: conversations, prompts, outputs). The chain holds as before. It cannot be undone:
    whoever offers it in a page has it confirmed by the user's name, and offers it to operators alone. Does nothing to a
    user who is erased already. Raises ``ChangeRefused`` for one whose account is open (close it first), or whose
    generations have not all ended.
    """
    with transaction.atomic():
        user = _locked(user)
        if user.erased_at is not None:
            return user
        if user.is_active:
            raise ChangeRefused(ChangeRefusal.USER_OPEN, f"{user}'s account is open. Close it first.")
        user.username = _erased_name(user)
        user.email = user.first_name = user.last_name = ""
        user.set_unusable_password()
        user.must_change_password = False
        user.last_login = None
        user.erased_at = timezone.now()
        user.save()
        erased = {"audit_values": erase_values(user.id), **personal_data.erase(user.id)}
        # Without a name: not even the new one needs to be kept as somebody's.
        audit.record(actor, "user.erase", audit.ObjectRef("user", str(user.id)), None, {"erased": erased})
    return user


def _erased_name(user: User) -> str:
    name = f"erased-{user.id.hex[:8]}"
    taken = User.objects.filter(username__iexact=name).exclude(id=user.id).exists()
    return f"erased-{user.id.hex}" if taken else name


def _set_active(user: User, active: bool, action: str, actor: Actor) -> User:
    with transaction.atomic():
        user, operators = _locked_with_operators(user)
        if active:
            _refuse_for_erased(user)
        if user.is_active != active:
            if not active:
                _refuse_for_last_operator(user, operators)
            before = audit.fields_of(user, *_AUDITED)
            user.is_active = active
            user.save(update_fields=["is_active"])
            audit.record(actor, action, user, before, audit.fields_of(user, *_AUDITED))
            if not active:
                _announce_end_of_sessions(user)
    return user


def _refuse_for_erased(user: User) -> None:
    if user.erased_at is not None:
        raise ChangeRefused(
            ChangeRefusal.USER_ERASED, f"{user} was erased, for good. Make a new account instead."
        )


def _announce_end_of_sessions(user: User) -> None:
    # Robust: what is committed must not look failed because a listener was.
    transaction.on_commit(partial(sessions_ended.send_robust, sender=User, user_id=user.id))


def _locked(user: User) -> User:
    return User.objects.select_for_update(no_key=True).get(id=user.id)


def _locked_with_operators(user: User) -> tuple[User, list[User]]:
    """The user and every live operator, locked in primary-key order: two operators cannot close each other at once."""
    rows = list(
        User.objects.select_for_update(no_key=True)
        .filter(Q(id=user.id) | Q(is_superuser=True, is_active=True))
        .order_by("id")
    )
    locked = next(row for row in rows if row.id == user.id)
    return locked, [row for row in rows if row.is_superuser and row.is_active]


def _refuse_for_last_operator(user: User, operators: list[User]) -> None:
    if [operator.id for operator in operators] == [user.id]:
        raise ChangeRefused(
            ChangeRefusal.LAST_OPERATOR,
            f"{user} is the last operator: nobody could run the platform any more.",
        )


def _check(user: User) -> None:
    checked_text(user.username, field="username", most=150)
    checked_text(user.email, field="email", least=0, most=254)
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        raise ChangeRefused(ChangeRefusal.INVALID, " ".join(messages), field=name) from error


def _draw_password() -> str:
    groups = (
        "".join(secrets.choice(_PASSWORD_ALPHABET) for _ in range(_PASSWORD_GROUP_LENGTH))
        for _ in range(_PASSWORD_GROUPS)
    )
    return "-".join(groups)
