from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Who may do what, how much of it, and the proof."""

    name = "accounts"
    verbose_name = "Accounts"
    default_auto_field = "django.db.models.BigAutoField"
