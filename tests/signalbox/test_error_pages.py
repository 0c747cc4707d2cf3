"""The pages that say that something broke must not need what may be broken."""

from __future__ import annotations

from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import RequestFactory
from django.views.defaults import bad_request, server_error


@pytest.mark.parametrize(
    ("page", "said"), [("500.html", "broke on our side"), ("400.html", "cannot make sense")]
)
def test_an_error_page_needs_no_collected_static_files(page: str, said: str, settings: Any) -> None:
    # No manifest was collected for the tests: a reference to a static file would be a second error.
    assert "StaticFilesStorage" in settings.STORAGES["staticfiles"]["BACKEND"]
    rendered = render_to_string(page)
    assert said in rendered
    assert "/static/" not in rendered


def test_djangos_own_views_answer_with_them() -> None:
    request = RequestFactory().get("/")
    assert b"broke on our side" in server_error(request).content
    assert b"cannot make sense" in bad_request(request, ValueError()).content
