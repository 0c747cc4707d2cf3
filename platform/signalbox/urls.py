"""Every route of the site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path

from inference.api.urls import documentation_urlpatterns
from signalbox import health
from signalbox.metrics import metrics
from signalbox.pages import page_urls

urlpatterns = [
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("metrics", metrics),
    re_path(r"^v1(?:/|$)", include("inference.api.urls")),
    *documentation_urlpatterns,
    path("admin/", admin.site.urls),
    *page_urls,
]
