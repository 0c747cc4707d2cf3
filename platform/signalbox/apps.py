from typing import Any

from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps
from django.contrib.admin import autodiscover
from django.core import checks


class SignalboxConfig(AppConfig):
    """The platform: pages, commands and processes that hold the parts together."""

    name = "signalbox"
    verbose_name = "Signalbox"
    default = True


class SignalboxAdminConfig(admin_apps.SimpleAdminConfig):
    """Django's admin, with our site as the default one.

    The site's routes bring the admin's pages, and not every process as it starts: Celery, workers and commands show
    none, and importing them is a third of their start.
    """

    default = False
    default_site = "signalbox.admin_site.SignalboxAdminSite"

    def ready(self) -> None:
        # Before Django's own of the admin, which look at the pages that there are.
        checks.register(_no_pages_are_left_out, checks.Tags.admin)
        super().ready()


def _no_pages_are_left_out(**_: Any) -> list[checks.CheckMessage]:
    autodiscover()
    return []
