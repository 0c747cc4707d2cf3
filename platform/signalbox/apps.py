from django.apps import AppConfig
from django.contrib.admin import apps as admin_apps


class SignalboxConfig(AppConfig):
    """The platform: pages, commands and processes that hold the parts together."""

    name = "signalbox"
    verbose_name = "Signalbox"
    default = True


class SignalboxAdminConfig(admin_apps.AdminConfig):
    """Django's admin, with our site as the default one."""

    default = False
    default_site = "signalbox.admin_site.SignalboxAdminSite"
