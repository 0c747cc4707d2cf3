from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts import members, users
from accounts.actors import command_actor
from accounts.models import Role, Tenant, User
from accounts.refusals import ChangeRefused


class Command(BaseCommand):
    help = "Make and list users, and give them a one-time password."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="Make a user and print a one-time password.")
        create.add_argument("username")
        create.add_argument("--email", default="")
        create.add_argument("--operator", action="store_true", help="May run the platform: every right.")
        create.add_argument(
            "--auditor", action="store_true", help="May read all of the audit, and change nothing."
        )
        create.add_argument("--tenant", help="Short name of a tenant to join.")
        create.add_argument("--role", choices=Role.values, default=Role.MEMBER, help="Role in that tenant.")
        password = verbs.add_parser(
            "password", help="Replace a user's password by a one-time one and print it."
        )
        password.add_argument("username")
        erase = verbs.add_parser(
            "erase",
            help="Erase for good who the user of a closed account was: names, addresses, conversations. Records stay.",
        )
        erase.add_argument("username")
        erase.add_argument("--yes", action="store_true", help="Do not ask whether that is meant.")
        verbs.add_parser("list", help="Print the users.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, "_" + options["verb"])(options)
        except ChangeRefused as refusal:
            raise CommandError(refusal.message) from refusal

    def _create(self, options: dict[str, Any]) -> None:
        actor = command_actor("user create")
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if options["tenant"] and tenant is None:
            raise CommandError(
                f"There is no tenant {options['tenant']!r}. `manage.py tenant list` prints them."
            )
        issued = users.create(
            username=options["username"],
            email=options["email"],
            is_superuser=options["operator"],
            is_auditor=options["auditor"],
            actor=actor,
        )
        if tenant is not None:
            members.add(tenant=tenant, user=issued.user, role=Role(options["role"]), actor=actor)
        self._show(issued)

    def _password(self, options: dict[str, Any]) -> None:
        user = self._named(options["username"])
        self._show(users.issue_one_time_password(user=user, actor=command_actor("user password")))

    def _erase(self, options: dict[str, Any]) -> None:
        user = self._named(options["username"])
        if not options["yes"] and not _confirmed(user):
            raise CommandError("Nothing was changed: that is not the name. (--yes does not ask.)")
        erased = users.erase(user=user, actor=command_actor("user erase"))
        self.stdout.write(f"Erased. Records name the account by its id, {erased.id}; lists show {erased}.")
        self.stderr.write(
            "If they ran commands under an account of the operating system: `manage.py audit erase-account ACCOUNT`."
        )

    def _list(self, options: dict[str, Any]) -> None:
        users_there_are = list(User.objects.all())
        if not users_there_are:
            self.stdout.write("There is no user yet. `manage.py user create --help` tells how to make one.")
        for user in users_there_are:
            self.stdout.write(
                f"{user.username:<30} {_rights(user):<10} {'open' if user.is_active else 'closed'}"
            )

    def _named(self, username: str) -> User:
        user = User.objects.filter(username=username).first()
        if user is None:
            raise CommandError(f"There is no user {username!r}. `manage.py user list` prints them.")
        return user

    def _show(self, issued: users.IssuedPassword) -> None:
        self.stdout.write(issued.password)
        self.stderr.write(f"One-time password of {issued.user}: shown once, and changed at the first log-in.")


def _confirmed(user: User) -> bool:
    try:
        typed = input(f"{user} is erased for good: nothing brings the data back. Type the name to go on: ")
    except EOFError:
        return False
    return typed.strip() == user.username


def _rights(user: User) -> str:
    if user.is_superuser:
        return "operator"
    if user.is_auditor:
        return "auditor"
    return "staff" if user.is_staff else "user"
