"""Why a model could not be prepared: one enumerated reason and one line for a person."""

from __future__ import annotations

from enum import StrEnum


class Problem(StrEnum):
    """Every reason for which a preparation is refused or given up."""

    BAD_NAME = "bad_name"
    NAME_TAKEN = "name_taken"
    BUSY = "busy"
    NOT_FOUND = "not_found"
    NOT_A_MODEL = "not_a_model"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    UNSAFE_WEIGHTS = "unsafe_weights"
    REMOTE_CODE = "remote_code"
    UNSUPPORTED_ARCHITECTURE = "unsupported_architecture"
    UNSUPPORTED_QUANTIZATION = "unsupported_quantization"
    UNSUPPORTED_TOKENIZER = "unsupported_tokenizer"
    INCOMPLETE = "incomplete"
    CHECK_FAILED = "check_failed"
    TOO_LARGE = "too_large"
    NO_SPACE = "no_space"
    UNREACHABLE = "unreachable"
    FILE_SYSTEM = "file_system"


class PreparationError(Exception):
    """A model could not be prepared. The text is one line: what happened, to what, and what to do."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
