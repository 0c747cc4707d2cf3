from django.apps import AppConfig


class SignalboxConfig(AppConfig):
    """The platform: pages, commands and processes that hold the parts together."""

    name = "signalbox"
    verbose_name = "Signalbox"
