"""The addresses of tenants' own area, below ``/tenant/``."""

from __future__ import annotations

from django.urls import URLPattern, include, path

from accounts.site import keys, members, overview, usage, webhooks

_of_tenant: list[URLPattern] = [
    path("", overview.overview, name="tenant"),
    path("usage/", usage.usage_page, name="tenant-usage"),
    path("usage.csv", usage.usage_csv, name="tenant-usage-csv"),
    path("keys/", keys.key_list, name="tenant-keys"),
    path("keys/new/", keys.new_key, name="tenant-key-new"),
    path("keys/<uuid:key_id>/", keys.one_key, name="tenant-key"),
    path("keys/<uuid:key_id>/rotate/", keys.rotate_key, name="tenant-key-rotate"),
    path("keys/<uuid:key_id>/revoke/", keys.revoke_key, name="tenant-key-revoke"),
    path("members/", members.member_list, name="tenant-members"),
    path("webhooks/", webhooks.endpoint_list, name="tenant-webhooks"),
    path("webhooks/new/", webhooks.new_endpoint, name="tenant-webhook-new"),
    path("webhooks/<uuid:endpoint_id>/", webhooks.one_endpoint, name="tenant-webhook"),
    path("webhooks/<uuid:endpoint_id>/secret/", webhooks.renew_secret, name="tenant-webhook-secret"),
    path("webhooks/<uuid:endpoint_id>/end/", webhooks.end_endpoint, name="tenant-webhook-end"),
    path("webhooks/<uuid:endpoint_id>/<uuid:delivery_id>/", webhooks.replay, name="tenant-webhook-replay"),
]

urlpatterns = [
    path("", overview.choose, name="tenants"),
    path("<slug:slug>/", include(_of_tenant)),
]
