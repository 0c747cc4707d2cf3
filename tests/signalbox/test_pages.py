"""The ways between the site's pages, and what it says where there is none."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import User
from tests.factories import PASSWORD, UserFactory


@pytest.mark.usefixtures("_admin_pages")
@pytest.mark.parametrize(("typed", "page"), [("/admin", "admin:index"), ("/chat", "chat")])
def test_the_two_addresses_that_people_type_need_no_slash(typed: str, page: str) -> None:
    answer = Client().get(f"{typed}?from=mail")
    assert (answer.status_code, answer["Location"]) == (302, f"{reverse(page)}?from=mail")


@pytest.mark.usefixtures("_admin_pages")
def test_the_api_takes_no_address_for_another() -> None:
    assert Client().get("/v1/models/").status_code == 404
    assert Client().get("/login").status_code == 404


@pytest.mark.usefixtures("_admin_pages")
@pytest.mark.parametrize(("username", "password"), [("nobody", PASSWORD), ("ada", "wrong")])
def test_a_failed_sign_in_does_not_tell_which_of_the_two_was_wrong(username: str, password: str) -> None:
    UserFactory(username="ada")
    page = Client().post(reverse("login"), {"username": username, "password": password}).content.decode()
    assert "There is no such user, or this is not their password." in page


def test_staff_find_back_to_the_admin_from_pages_beside_it(
    as_operator: Client, as_member: Client, operator: User
) -> None:
    for url in ("/nowhere", reverse("password")):
        assert reverse("admin:index") in as_operator.get(url).content.decode(), url
        assert reverse("admin:index") not in as_member.get(url).content.decode(), url


def test_the_admin_leads_to_the_chat_and_the_api_s_pages_lead_back(as_operator: Client) -> None:
    page = as_operator.get(reverse("admin:index")).content.decode()
    assert page.count(f'href="{reverse("chat")}"') == 2
    assert "View site" not in page
    assert f'href="{reverse("chat")}"' in as_operator.get(reverse("api-docs")).content.decode()
