"""What `make up` says at the end: where the site is, how to get in, and a first request."""

from __future__ import annotations

import json
import shlex

from accounts.bootstrap import Bootstrap

_KEY_PLACE = "YOUR_API_KEY"


def welcome(url: str, bootstrap: Bootstrap, model: str | None, logs_dir: str) -> str:
    """The closing lines. Secrets are in them on the first run only, for they are stored nowhere."""
    lines = ["", f"Signalbox runs at {url}", ""]
    lines += [f"  Chat and admin   {url}/   user {bootstrap.username}"]
    if bootstrap.one_time_password:
        lines += [
            f"  Password         {bootstrap.one_time_password}   (works once: you set your own at log-in)"
        ]
    else:
        lines += [
            f"                   new password: .venv/bin/python manage.py user password {bootstrap.username}"
        ]
    lines += _key_lines(bootstrap)
    if model is None:
        lines += [
            "",
            "  No model is served yet. Add one and start again: .venv/bin/python manage.py model add …",
        ]
    else:
        key = bootstrap.api_key or _KEY_PLACE
        lines += ["", "  A first request:", "", *_curl(url, key, model)]
    lines += ["", f"  Logs are in {logs_dir}. Ctrl-C stops everything in order.", ""]
    return "\n".join(lines)


def _key_lines(bootstrap: Bootstrap) -> list[str]:
    if bootstrap.api_key:
        return [f"  API key          {bootstrap.api_key}   (shown this once; tenant {bootstrap.tenant})"]
    new = f"new key: .venv/bin/python manage.py key create --tenant {bootstrap.tenant} --name NAME"
    shown = f"sb_{bootstrap.api_key_prefix}…" if bootstrap.api_key_prefix else "none"
    return [f"  API key          {shown}   {new}"]


def _curl(url: str, key: str, model: str) -> list[str]:
    # Short, and of the likeliest words: a very small model strays otherwise.
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "max_tokens": 64,
            "temperature": 0,
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        }
    )
    return [
        f"  curl -N {url}/v1/chat/completions \\",
        f"    -H {shlex.quote(f'Authorization: Bearer {key}')} -H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(body)}",
    ]
