"""The one way in for people, to the chat and to the admin, and the way out."""

from __future__ import annotations

import math
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import NON_FIELD_ERRORS
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts import log_in_counters, log_ins
from accounts.actors import actor_of, address_of, stranger
from accounts.log_in_counters import TooManyFailures
from accounts.models import User
from inference.api.socket_credentials import recheck_sockets
from signalbox.web_metrics import LOG_INS

_MINUTE_S: Final = 60


class LogInOutcome(StrEnum):
    """What became of a log-in: the metric's label."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    THROTTLED = "throttled"


class SignInForm(AuthenticationForm):
    """User name and password. Which of the two is wrong is not told, nor whether the account is closed.

    ``retry_after_s`` is set where neither was looked at, because too many log-ins have failed.
    """

    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "There is no such user, or this is not their password. Capitals count in both.",
    }
    retry_after_s: int | None = None

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not username or not password or self.request is None:
            return super().clean()
        try:
            attempt = log_in_counters.take(username, address_of(self.request))
        except TooManyFailures as refusal:
            if refusal.reached is not None:
                log_ins.record_refusal(
                    username=username, reached=refusal.reached, actor=stranger(self.request)
                )
            self.retry_after_s = refusal.retry_after_s
            raise forms.ValidationError(come_back(refusal.retry_after_s), code="throttled") from refusal
        try:
            values = super().clean()
        except forms.ValidationError:
            log_ins.record_failure(username=username, actor=stranger(self.request))
            raise
        log_in_counters.give_back(attempt)
        return values


class SignIn(LoginView):
    """Asks for user name and password."""

    authentication_form = SignInForm
    template_name = "signalbox/login.html"
    redirect_authenticated_user = True

    def get_default_redirect_url(self) -> str:
        return reverse("chat")

    def get_success_url(self) -> str:
        user = self.request.user
        if isinstance(user, User) and user.must_change_password:
            return reverse("password")
        return super().get_success_url()

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user = form.get_user()
        with transaction.atomic():
            response = super().form_valid(form)
            log_ins.record_log_in(user=user, actor=actor_of(self.request))
        LOG_INS.labels(outcome=LogInOutcome.SUCCEEDED).inc()
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        if isinstance(form, SignInForm) and form.retry_after_s is not None:
            response.status_code = HTTPStatus.TOO_MANY_REQUESTS
            response["Retry-After"] = str(form.retry_after_s)
            LOG_INS.labels(outcome=LogInOutcome.THROTTLED).inc()
        elif form.has_error(NON_FIELD_ERRORS, "invalid_login"):
            LOG_INS.labels(outcome=LogInOutcome.FAILED).inc()
        return response


class SignOut(LogoutView):
    """Ends the session, and with it its chat sockets."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        user = request.user
        if not isinstance(user, User):
            return super().post(request, *args, **kwargs)
        actor = actor_of(request)
        with transaction.atomic():
            response = super().post(request, *args, **kwargs)
            log_ins.record_log_out(user=user, actor=actor)
        recheck_sockets(user.id)
        return response


def come_back(wait_s: int) -> str:
    """What is told to whoever must wait, in seconds, before another password is looked at."""
    minutes = math.ceil(wait_s / _MINUTE_S)
    when = "in a minute" if minutes == 1 else f"in {minutes} minutes"
    return f"Too many log-ins have failed. Try again {when}."
