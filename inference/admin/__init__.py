"""The operator's view of inference: what runs, where, and how it is scheduled."""

from inference.admin import generations, models, published_prefixes, speculation_verdicts, workers

__all__ = ["generations", "models", "published_prefixes", "speculation_verdicts", "workers"]
