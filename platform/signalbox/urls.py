"""Every route of the site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from inference.api.urls import documentation_urlpatterns
from signalbox import health
from signalbox.metrics import metrics
from signalbox.pages import page_urls

handler404 = "signalbox.error_pages.page_not_found"
handler403 = "signalbox.error_pages.permission_denied"
handler500 = "signalbox.error_pages.server_error"

admin.autodiscover()

urlpatterns = [
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("metrics", metrics),
    re_path(r"^v1(?:/|$)", include("inference.api.urls")),
    *documentation_urlpatterns,
    path("admin/", admin.site.urls),
    # APPEND_SLASH is off, for the API's sake; these two are what people type.
    path("admin", RedirectView.as_view(pattern_name="admin:index", query_string=True)),
    path("chat", RedirectView.as_view(pattern_name="chat", query_string=True)),
    *page_urls,
]
