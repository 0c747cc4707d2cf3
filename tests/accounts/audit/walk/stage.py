"""What scenarios are made of: somebody who is signed in, a key that administers, commands, and what nobody may find."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from django.core.management import call_command
from django.test import Client, RequestFactory
from django.urls import resolve, reverse

from accounts import pepper
from accounts.authentication import authenticate_key
from accounts.models import Role, Tenant, User
from accounts.tenancy import every_tenant
from inference.api.attachment import Attachment
from inference.api.bodies import read_body
from inference.api.endpoint import Call, Endpoint
from inference.api.limit_headers import CallLimits
from inference.api.resource import endpoints_of
from tests.accounts.audit.chains import assignment
from tests.factories import (
    ApiKeyFactory,
    GenerationFactory,
    MembershipFactory,
    OperatorFactory,
    TenantFactory,
    UserFactory,
)
from tests.fixtures.admin import filled

#: Does what a scenario is about, once everything that it needs is there.
Act = Callable[[], object]
#: What looks like an API key, a webhook's secret.
SECRETS: Final = re.compile(r"sb_[0-9A-Za-z]{12}_[0-9A-Za-z]+|whsec_[0-9A-Za-z+/=]+")
#: A password as a person types it.
TYPED: Final = "typed-9f3a-by-a-person"


@dataclass(frozen=True, slots=True)
class Scenario:
    """How to change something at one place. ``actions``: what has to stand in the chain afterwards, in its order.

    ``prepare`` makes what is needed, past all verbs, and returns the act.
    """

    actions: tuple[str, ...]
    prepare: Callable[[Stage], Act]


@dataclass
class Stage:
    """What a scenario has at hand. ``secrets`` are texts that no record may hold."""

    tmp_path: Path
    tiny_model_dir: Path
    secrets: list[str] = field(default_factory=lambda: [TYPED])

    def __post_init__(self) -> None:
        # Made when it is first asked for, by whoever asks: from here on only a rotation changes it.
        pepper.current_id()
        self.person: Any = OperatorFactory(username="m4rk-operator", email="m4rk-operator@example.com")
        self.operator = _signed_in(self.person)

    def another_operator(self) -> User:
        made: User = OperatorFactory(username="m4rk-another", email="m4rk-another@example.com")
        return made

    def user(self, **fields: Any) -> Any:
        return UserFactory(**{"username": "m4rk-user", "email": "m4rk-user@example.com", **fields})

    def generation(self, **fields: Any) -> Any:
        """One with the lane assignment that it was accepted with."""
        made: Any = GenerationFactory(**fields)
        with every_tenant("the scenario is made past the verbs"):
            assignment(generation_id=made.id).save(force_insert=True)
        return made

    def sends(self, url: str, values: dict[str, Any] | None = None, client: Client | None = None) -> Act:
        """Open the page and send its form, as a browser does; an answer that shows a secret once is noted."""
        browser = client or self.operator

        def send() -> Any:
            answer = browser.post(url, filled(browser, url, values or {}))
            self._note(answer)
            return answer

        return send

    def admin(self, page: str, row: Any = None, /, **values: Any) -> Act:
        """The admin's page of that name, about ``row``."""
        return self.sends(reverse(f"admin:{page}", args=[] if row is None else [row.pk]), values)

    def previewed(self, page: str, row: Any = None, /, **values: Any) -> Act:
        """As ``admin``, for a form whose effect is shown first: what was shown is then saved."""
        url = reverse(f"admin:{page}", args=[] if row is None else [row.pk])

        def send() -> Any:
            preview = self.operator.post(url, values)
            sent: dict[str, list[str]] = {}
            for field_name, value in preview.context["sent"]:
                sent.setdefault(field_name, []).append(value)
            return self.operator.post(
                url, {**sent, preview.context["version_field"]: preview.context["version"]}
            )

        return send

    def answered(self, page: str, row: Any, /, **values: Any) -> Act:
        """As ``admin``, for a question that goes by what it shows."""
        url = reverse(f"admin:{page}", args=[row.pk])

        def send() -> Any:
            shown = self.operator.get(url).context
            return self.operator.post(url, {**values, shown["version_field"]: shown["question"].version})

        return send

    def rail(self, role: Role = Role.OWNER) -> tuple[Tenant, Client]:
        """A tenant, and the browser of somebody who has that role in it."""
        tenant: Any = TenantFactory(slug="rail")
        user = self.user(username="m4rk-owner", email="m4rk-owner@example.com")
        MembershipFactory(tenant=tenant, user=user, role=role)
        return tenant, _signed_in(user)

    def api(self, method: str, path: str, body: dict[str, Any] | None = None, scope: str = "operator") -> Act:
        """A request below ``/v1/organization`` with a key of that scope, in this thread."""
        key: Any = ApiKeyFactory(name="administering", scopes=[scope])
        self.secrets.append(key.raw)
        view, _, arguments = resolve(f"/v1/organization/{path}")
        [endpoint] = [one for one in endpoints_of(view) if one.method == method]
        request = RequestFactory().generic(
            method, f"/v1/organization/{path}", json.dumps(body or {}), content_type="application/json"
        )

        def send() -> object:
            answer: Any = self._called(endpoint, request, key.raw, arguments)
            self.secrets += SECRETS.findall(answer.model_dump_json())
            return answer

        return send

    def command(self, *arguments: object, **options: Any) -> Act:
        """``manage.py`` with these arguments."""

        def run() -> str:
            out = io.StringIO()
            call_command(*map(str, arguments), stdout=out, stderr=io.StringIO(), **options)
            self.secrets += [line for line in out.getvalue().split() if _ONE_TIME_PASSWORD.fullmatch(line)]
            self.secrets += SECRETS.findall(out.getvalue())
            return out.getvalue()

        return run

    def _called(self, endpoint: Endpoint, request: Any, raw: str, arguments: dict[str, Any]) -> object:
        call = Call(request, authenticate_key(raw), Attachment(), CallLimits())
        if endpoint.body is None:
            return endpoint.function(call, **arguments)
        return endpoint.function(call, read_body(request, endpoint.body), **arguments)

    def _note(self, answer: Any) -> None:
        """What an answer shows this once must be nowhere else."""
        context = answer.context or {}
        for shown in (context.get("shown"), context.get("issued")) if context else ():
            if shown is not None:
                self.secrets.append(shown.secret)
        if not answer.streaming:
            self.secrets += SECRETS.findall(answer.content.decode(errors="replace"))


_ONE_TIME_PASSWORD: Final = re.compile(r"(?:[a-z0-9]{5}-){3}[a-z0-9]{5}")


def _signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
