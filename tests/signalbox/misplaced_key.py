"""Case A1 in whole processes: an API key sent to wherever it does not belong, and the search for what became of it."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: str
    body: str


def ask(url: str, method: str, path: str, headers: dict[str, str], body: str | None = None) -> Answer:
    """One request of a connection of its own; redirects are not followed."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, str(answer.headers), answer.read().decode(errors="replace"))
    finally:
        connection.close()


def misplace(url: str, key: str, model: str) -> list[int]:
    """Send ``key``, which is valid, in every part of a request that somebody might put it into.

    Returns the statuses. Fails if an answer of the API repeats it.
    """
    everywhere = {
        "Cookie": f"sessionid={key}; csrftoken={key}; other={key}",
        "Origin": f"https://{key}.example",
        "Referer": f"{url}/?key={key}",
        "User-Agent": f"client/{key}",
        "Accept-Language": key,
        "X-Request-ID": key,
        "X-Client-Request-Id": f"job {key}",
        "X-Forwarded-For": key,
        "X-Forwarded-Host": key,
    }
    right = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    question: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "user": key,
        "metadata": {"key": key},
        "safety_identifier": key,
        "prompt_cache_key": key,
    }
    chat = "/v1/chat/completions"
    requests: list[tuple[str, str, dict[str, str], dict[str, Any] | None]] = [
        ("GET", "/v1/models", {**right, **everywhere}, None),
        ("GET", f"/v1/models?key={key}&limit={key}", right, None),
        ("GET", f"/v1/models/{key}", {**right, **everywhere}, None),
        ("GET", f"/v1/generations/{key}", right, None),
        ("GET", f"/v1/{key}", right, None),
        ("GET", "/v1/models", {**everywhere, "x-api-key": f"{key} {key}"}, None),
        ("GET", "/v1/models", {**everywhere, "Authorization": key}, None),
        ("POST", chat, {**right, **everywhere}, question),
        ("POST", chat, {**right, "Idempotency-Key": key}, question),
        ("POST", chat, {**right, "X-Priority": key}, question),
        ("POST", chat, {**right, "Content-Type": key}, question),
        ("POST", chat, right, {**question, "model": key}),
        ("POST", chat, right, {**question, key: key}),
        ("POST", chat, right, {**question, "service_tier": key}),
        ("GET", f"/{key}", everywhere, None),
        ("GET", f"/health/ready?key={key}", everywhere, None),
        ("GET", f"/metrics?key={key}", {**everywhere, "Authorization": f"Bearer {key}"}, None),
        ("GET", f"/chat/?conversation={key}", everywhere, None),
        ("GET", f"/ws/chat/?key={key}", everywhere, None),
    ]
    statuses = []
    for method, path, headers, body in requests:
        answer = ask(url, method, path, headers, None if body is None else json.dumps(body))
        statuses.append(answer.status)
        if path.startswith("/v1"):
            assert secret_of(key) not in answer.headers + answer.body, (method, path, answer)
    return [*statuses, _log_in(url, key)]


def _log_in(url: str, key: str) -> int:
    """With the key as user name and password, both."""
    token = "c" * 32
    form = urlencode({"username": key, "password": key, "csrfmiddlewaretoken": token})
    headers = {"Cookie": f"csrftoken={token}", "Content-Type": "application/x-www-form-urlencoded"}
    return ask(url, "POST", "/login/", headers, form).status


def secret_of(key: str) -> str:
    """The first signs of the part that is secret: a key that was cut short must not be found either."""
    return key.rpartition("_")[2][:10]


def files_with(directory: Path, text: str) -> list[str]:
    """The files below ``directory`` that hold ``text`` in their bytes: of a database, also what was deleted from it."""
    return sorted(
        str(file.relative_to(directory))
        for file in directory.rglob("*")
        if file.is_file() and text.encode() in file.read_bytes()
    )
