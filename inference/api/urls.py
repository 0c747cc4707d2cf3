"""The routes below ``/v1``, and the pages that describe them."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern, path, re_path
from drf_spectacular.views import SpectacularAPIView

from inference.api.chat_completions import create_chat_completion
from inference.api.completions import create_completion
from inference.api.documentation import DocumentationPage
from inference.api.generations import cancel_generation, read_events, retrieve_generation
from inference.api.limits import retrieve_limits
from inference.api.middleware import unknown_url
from inference.api.models import list_models, retrieve_model
from inference.api.organization.urls import urlpatterns as organization_urlpatterns
from inference.api.usage import retrieve_usage

urlpatterns: Final[list[URLPattern]] = [
    path("models", list_models),
    path("models/<path:model_id>", retrieve_model),
    path("chat/completions", create_chat_completion),
    path("completions", create_completion),
    path("generations/<str:generation_id>", retrieve_generation),
    path("generations/<str:generation_id>/events", read_events),
    path("generations/<str:generation_id>/cancel", cancel_generation),
    path("limits", retrieve_limits),
    path("usage", retrieve_usage),
    *organization_urlpatterns,
    re_path("", unknown_url),
]

documentation_urlpatterns: Final[list[URLPattern]] = [
    path("api/schema/", SpectacularAPIView.as_view(), name="api-schema"),
    path("api/docs/", DocumentationPage.as_view(url_name="api-schema"), name="api-docs"),
]
