"""Inference as rows: constraints live here, workflows do not."""

from inference.models.conversation import ChatMessage, ChatRole, Conversation
from inference.models.generation import Generation, GenerationOutput, GenerationRequest, GenerationState
from inference.models.generation_run import GenerationRun, RunOutcome
from inference.models.idempotency_key import IdempotencyKey
from inference.models.language_model import DrafterKind, LanguageModel, Speculation
from inference.models.published_prefix import PublishedPrefix
from inference.models.speculation_verdict import SpeculationRuling, SpeculationVerdict
from inference.models.worker import Worker

__all__ = [
    "ChatMessage",
    "ChatRole",
    "Conversation",
    "DrafterKind",
    "Generation",
    "GenerationOutput",
    "GenerationRequest",
    "GenerationRun",
    "GenerationState",
    "IdempotencyKey",
    "LanguageModel",
    "PublishedPrefix",
    "RunOutcome",
    "Speculation",
    "SpeculationRuling",
    "SpeculationVerdict",
    "Worker",
]
