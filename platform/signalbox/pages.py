"""The pages that people see: chat, password, and their tenants' own areas. ``sign_in`` has those before them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, cast

from django import forms
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from accounts import log_in_counters, log_ins, users
from accounts.actors import actor_of, address_of
from accounts.log_in_counters import TooManyFailures
from accounts.models import User
from accounts.refusals import ChangeRefused
from inference.api import chat_conversations
from inference.api.socket_credentials import recheck_sockets
from signalbox.page_policy import strict
from signalbox.sign_in import SignIn, SignOut, come_back


def _user(request: HttpRequest) -> User:
    return cast(User, request.user)


@login_required
def chat(request: HttpRequest, conversation: str = "") -> HttpResponse:
    """The chat page; which conversation is open is the page's own business, once it is loaded."""
    user = _user(request)
    if user.must_change_password:
        return redirect("password")
    return render(request, "signalbox/chat.html", {"options": chat_conversations.choices(user)})


def _password(label: str, autocomplete: str, help_text: str = "") -> forms.CharField:
    return forms.CharField(
        label=label,
        help_text=help_text,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": autocomplete}),
    )


class NewPasswordForm(forms.Form):
    """A password that the user chooses; the present one is asked for unless it was given to them to be replaced."""

    old_password = _password("Present password", "current-password")
    password = _password(
        "New password", "new-password", "At least 10 characters, and not one that many people use."
    )
    again = _password("New password, again", "new-password")

    def __init__(self, *args: Any, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = request
        if _user(request).must_change_password:
            del self.fields["old_password"]

    def clean_old_password(self) -> str:
        """Tried as often as a log-in may be: an open session must not be a way to try passwords."""
        present: str = self.cleaned_data["old_password"]
        user = _user(self._request)
        try:
            attempt = log_in_counters.take(user.get_username(), address_of(self._request))
        except TooManyFailures as refusal:
            if refusal.reached is not None:
                log_ins.record_refusal(
                    username=user.get_username(), reached=refusal.reached, actor=actor_of(self._request)
                )
            raise forms.ValidationError(come_back(refusal.retry_after_s), code="throttled") from refusal
        if not user.check_password(present):
            log_ins.record_failure(username=user.get_username(), actor=actor_of(self._request))
            raise forms.ValidationError("This is not your present password.")
        log_in_counters.give_back(attempt)
        return present

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if {"password", "again"} <= values.keys() and values["password"] != values["again"]:
            self.add_error("again", "The two passwords differ.")
        return values


@login_required
def change_password(request: HttpRequest) -> HttpResponse:
    """Where a user sets their own password: by choice, or because nothing else opens before."""
    user = _user(request)
    form = NewPasswordForm(request.POST if request.method == "POST" else None, request=request)
    if form.is_valid():
        try:
            user = users.set_password(
                user=user, password=form.cleaned_data["password"], actor=actor_of(request)
            )
        except ChangeRefused as refused:
            form.add_error("password" if refused.field == "password" else None, refused.message)
        else:
            # The user's other sessions end with the old password; this one goes on.
            update_session_auth_hash(request, user)
            recheck_sockets(user.id)
            return redirect("chat")
    throttled = form.has_error("old_password", "throttled")
    return render(
        request,
        "signalbox/password.html",
        {"form": form, "forced": user.must_change_password},
        status=HTTPStatus.TOO_MANY_REQUESTS if throttled else HTTPStatus.OK,
    )


def root(request: HttpRequest) -> HttpResponse:
    """The site's address alone leads to the chat."""
    return redirect("chat")


page_urls: list[URLPattern | URLResolver] = [
    path("", root, name="root"),
    path("chat/", strict(chat), name="chat"),
    path("chat/c/<str:conversation>", strict(chat), name="conversation"),
    path("chat/api/", include(chat_conversations.urlpatterns)),
    path("login/", strict(SignIn.as_view()), name="login"),
    path("logout/", strict(SignOut.as_view()), name="logout"),
    path("password/", strict(change_password), name="password"),
    path("tenant/", include("accounts.site.urls")),
    path("tenant", RedirectView.as_view(pattern_name="tenants", query_string=True)),
]
