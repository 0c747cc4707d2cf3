from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate


class AccountsConfig(AppConfig):
    """Who may do what, how much of it, and the proof."""

    name = "accounts"
    verbose_name = "Accounts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Not before the models are there.
        from accounts.audit.triggers import install_after_migrate, remove_before_migrate

        pre_migrate.connect(remove_before_migrate, sender=self, dispatch_uid="accounts.audit.triggers")
        post_migrate.connect(install_after_migrate, sender=self, dispatch_uid="accounts.audit.triggers")
