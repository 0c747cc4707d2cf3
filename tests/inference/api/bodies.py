"""Request bodies for tests."""

from __future__ import annotations

from typing import Any

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    """A chat whose user says ``contents``."""
    messages = [{"role": "user", "content": content} for content in contents or ("Hello",)]
    return {"model": "tiny/model", "messages": messages, **fields}


def text(prompt: Any = "Once", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny/model", "prompt": prompt, **fields}
