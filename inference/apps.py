from django.apps import AppConfig


class InferenceConfig(AppConfig):
    """How a request becomes a generation, and a generation tokens."""

    name = "inference"
    verbose_name = "Inference"
    default_auto_field = "django.db.models.BigAutoField"
