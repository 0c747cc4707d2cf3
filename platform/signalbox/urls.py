"""Every route of the site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from signalbox import health

urlpatterns = [
    path("admin/", admin.site.urls),
    path("health/live", health.live),
]
