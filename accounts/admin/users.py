from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth import admin as _groups  # noqa: F401 — registers what is taken back below
from django.contrib.auth.models import Group
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts import users
from accounts.actors import actor_of
from accounts.admin.base import AlreadyMade, LookInline, Question, ShownOnce, SiteModelAdmin
from accounts.admin.filters import titled
from accounts.audience import Audience
from accounts.form_tickets import taken_once
from accounts.formatting import EMPTY, ago, time_field
from accounts.models import Membership, User

# Rights in the admin are two flags of a user; tenants have roles. There is no third system beside them.
admin.site.unregister(Group)


_STATE_LABELS = {"Open": "success", "Password due": "info", "Closed": "warning", "Erased": "default"}
_SENT_AGAIN = "The same form came again, as when a page is reloaded. Nothing was changed now."
_LOST = "The one-time password was shown once and cannot be shown again: if it is lost, give a new one."


class MembershipsOfUser(LookInline):
    model = Membership
    verbose_name_plural = "memberships"
    fields = readonly_fields = ("tenant", "role", "since", "ended")

    @display(description="Since")
    def since(self, membership: Membership) -> str:
        return ago(membership.created_at)

    @display(description="Ended")
    def ended(self, membership: Membership) -> str:
        return ago(membership.ended_at)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("tenant", "user").order_by("ended_at", "tenant__name")


@admin.register(User)
class UserAdmin(SiteModelAdmin):
    audience = Audience.STAFF_AND_AUDITORS
    may_add = may_change = True
    already_made = AlreadyMade(title="This user was made already", meaning=[_SENT_AGAIN, _LOST])
    list_display = ("person", "rights", "tenants", "state", "signed_in")
    list_display_links = ("person",)
    list_filter = (
        ("is_active", titled("open", admin.BooleanFieldListFilter)),
        ("is_superuser", titled("operator", admin.BooleanFieldListFilter)),
        ("is_auditor", titled("auditor", admin.BooleanFieldListFilter)),
        ("is_staff", titled("may look", admin.BooleanFieldListFilter)),
        ("last_login", titled("last sign-in", admin.DateFieldListFilter)),
    )
    search_fields = ("username", "email")
    search_help_text = "By user name or e-mail address"
    inlines = (MembershipsOfUser,)
    actions_detail = ("new_password", "close", "reopen", "erase")
    add_fieldsets = (
        (
            None,
            {
                "description": "A person who signs in with a password. They get a one-time password, shown right "
                "after this page, and choose their own when they first sign in.",
                "fields": ("username", "email"),
            },
        ),
        ("In the admin", {"fields": ("is_staff", "is_auditor", "is_superuser")}),
    )
    fieldsets = (
        (None, {"fields": ("username", "email", "state")}),
        (
            "In the admin",
            {
                "fields": ("is_staff", "is_auditor", "is_superuser"),
                "description": "What a person may do in a tenant is their role there.",
            },
        ),
        ("Account", {"fields": ("created_exactly", "signed_in_exactly")}),
    )
    readonly_fields = ("state", "created_exactly", "signed_in_exactly")
    created_exactly = time_field("date_joined", "Created")
    signed_in_exactly = time_field("last_login", "Last sign-in")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        live = Membership.objects.filter(ended_at=None).select_related("tenant").order_by("tenant__name")
        return rows.prefetch_related(Prefetch("memberships", live, to_attr="live_memberships"))

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        formfield = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "username":
            formfield.label = "User name"
            formfield.help_text = "Up to 150 letters and digits, and @ . + - _"
        if db_field.name == "email":
            formfield.label = "E-mail address"
        if db_field.name == "is_staff":
            formfield.label = "May look"
            formfield.help_text = (
                "May open the admin and see everything in it but the audit. An auditor who is no operator sees "
                "the audit instead, and what it leads to."
            )
        if db_field.name == "is_superuser":
            formfield.label, formfield.help_text = "Operator", "May change everything: runs the platform."
        return formfield

    @display(description="User", header=True, ordering="username")
    def person(self, user: User) -> list[str]:
        return [user.get_username(), user.email]

    @display(description="In the admin", label={"Operator": "primary", "Auditor": "info", "May look": "info"})
    def rights(self, user: User) -> str:
        if user.is_superuser:
            return "Operator"
        return "Auditor" if user.is_auditor else "May look" if user.is_staff else ""

    @display(description="Tenants")
    def tenants(self, user: Any) -> str:
        return (
            ", ".join(
                f"{one.tenant.name} ({one.get_role_display().lower()})" for one in user.live_memberships
            )
            or EMPTY
        )

    @display(description="State", label=_STATE_LABELS)
    def state(self, user: User) -> str:
        if user.erased_at is not None:
            return "Erased"
        if not user.is_active:
            return "Closed"
        return "Password due" if user.must_change_password else "Open"

    @display(description="Last sign-in", ordering="last_login")
    def signed_in(self, user: User) -> str:
        return ago(user.last_login, never="never")

    def get_inlines(self, request: HttpRequest, obj: Any) -> tuple[Any, ...]:
        return self.inlines if obj is not None else ()

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        names = ("username", "email", "is_staff", "is_superuser", "is_auditor")
        values = {name: form.cleaned_data[name] for name in names}
        if change:
            users.change(user=obj, **values, actor=actor_of(request))
            return
        with taken_once(request):
            issued = users.create(**values, actor=actor_of(request))
        obj.pk = issued.user.pk
        obj.issued = issued

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return self._show(request, obj.issued)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        user = self.get_object(request, object_id)
        if user is None:
            return []
        if user.erased_at is not None:
            return []
        hidden = {"reopen", "erase"} if user.is_active else {"new_password", "close"}
        return [
            item
            for item in super().get_actions_detail(request, object_id)
            if item.method.original_function_name not in hidden
        ]

    @action(
        description="New one-time password", icon="lock_reset", url_path="password", permissions=["operate"]
    )
    def new_password(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        user = self.object_or_404(request, object_id)
        question = Question(
            title=f"Give {user} a new one-time password?",
            meaning=[
                "Their present password and every session of theirs end now.",
                "The new password opens nothing but the page where they choose their own.",
            ],
            submit="Make and show the password",
            danger=True,
            already_made=AlreadyMade(title="The password was made already", meaning=[_SENT_AGAIN, _LOST]),
        )

        def reset(values: dict[str, Any]) -> HttpResponse:
            return self._show(request, users.issue_one_time_password(user=user, actor=actor_of(request)))

        return self.ask(request, user, question, reset)

    @action(
        description="Close user",
        icon="person_off",
        url_path="close",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def close(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        user = self.object_or_404(request, object_id)
        question = Question(
            title=f"Close {user}'s account?",
            meaning=[
                "Their sessions end, they cannot sign in, and what they run is cancelled within a second.",
                "Nothing is deleted: the audit names them, and the account can be reopened.",
            ],
            submit="Close the account",
            danger=True,
        )

        def close(values: dict[str, Any]) -> str:
            users.close(user=user, actor=actor_of(request))
            return f"{user}'s account is closed."

        return self.ask(request, user, question, close)

    @action(description="Reopen", icon="lock_open", url_path="reopen", permissions=["operate"])
    def reopen(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        user = self.object_or_404(request, object_id)
        question = Question(
            title=f"Reopen {user}'s account?",
            meaning=["They can sign in again, and have the roles that they had."],
            submit="Reopen the account",
        )

        def reopen(values: dict[str, Any]) -> str:
            users.reopen(user=user, actor=actor_of(request))
            return f"{user}'s account is open again."

        return self.ask(request, user, question, reopen)

    @action(
        description="Erase personal data",
        icon="ink_eraser",
        url_path="erase",
        permissions=["operate"],
        variant=ActionVariant.DANGER,
    )
    def erase(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        user = self.object_or_404(request, object_id)
        name = user.get_username()

        class ErasureForm(forms.Form):
            """The name, typed by hand."""

            username = forms.CharField(
                label="User name",
                widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
                help_text=f"Write {name} to say that you mean it.",
            )

            def clean_username(self) -> str:
                """Refuse another name than theirs."""
                typed: str = self.cleaned_data["username"]
                if typed != name:
                    raise forms.ValidationError(f"This is not {name}.")
                return typed

        question = Question(
            title=f"Erase {name}'s personal data?",
            meaning=[
                "Their name, their e-mail address and their conversations are deleted, and so are their name and the "
                "addresses that they came from beside every event of the audit. What they did stays recorded, and the "
                "chain stays provable.",
                "The account stays closed for good. This cannot be undone, and nobody can read the data afterwards, "
                "you included.",
            ],
            submit="Erase it for good",
            form=ErasureForm,
            danger=True,
        )

        def erase(values: dict[str, Any]) -> str:
            users.erase(user=user, actor=actor_of(request))
            return "Their personal data is erased."

        return self.ask(request, user, question, erase)

    def _show(self, request: HttpRequest, issued: users.IssuedPassword) -> HttpResponse:
        return self.show_once(
            request,
            ShownOnce(
                title="The one-time password is ready",
                secret=issued.password,
                name=f"For {issued.user}",
                meaning=[
                    "This is the only time that it is shown. Hand it over in person or over a channel you trust.",
                    "It opens nothing but the page where they choose their own.",
                ],
                next_url=self.url_of(issued.user),
                next_title="I have handed it over",
            ),
        )
