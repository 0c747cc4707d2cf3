"""Credentials of others: found by their shapes, and nothing taken for one that is a name, an id or a checksum."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.credential_text import CONTAINS_CREDENTIAL

#: Random digits of each alphabet, which no tool that looks for real ones takes for a credential of somebody.
_MIXED = "q7Zt2Xw9Lr4Kb8Vn3Hc6Jd1Fs5Gp0My" * 4
_UPPER = "Q7ZT2XW9LR4KB8VN"


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _pem(label: str) -> str:
    return f"-----BEGIN {label}-----\nMIIB{_MIXED}\n{_MIXED}\n-----END {label}-----"


CREDENTIALS = {
    "a private key": _pem("PRIVATE KEY"),
    "an RSA key": _pem("RSA PRIVATE KEY"),
    "an OpenSSH key": _pem("OPENSSH PRIVATE KEY"),
    "an encrypted key on one line": _pem("ENCRYPTED PRIVATE KEY").replace("\n", " "),
    "a JSON Web Token": f"{_part({'alg': 'HS256'})}.{_part({'sub': '1'})}.{_MIXED[:43]}",
    "a JSON Web Token without a signature": f"{_part({'alg': 'none'})}.{_part({'sub': '1'})}.",
    "RFC 8959": "secret-token:E92FB7EB-D882-47A4-A265-A0B6135DC842%20foo",
    "OpenAI, of old": f"sk-{_MIXED[:48]}",
    "OpenAI, of a project": f"sk-proj-{_MIXED[:30]}_{_MIXED[:20]}-{_MIXED[:30]}",
    "Anthropic": f"sk-ant-api03-{_MIXED[:40]}-{_MIXED[:40]}AA",
    "OpenRouter": f"sk-or-v1-{hashlib.sha256(b'1').hexdigest()}",
    "Hugging Face": "hf_" + "qZtXwLrKbVnHcJdFsGpMyQzTxWlRkBvNhC",
    "GitHub": f"ghp_{_MIXED[:36]}",
    "GitHub, fine-grained": f"github_pat_{_MIXED[:22]}_{_MIXED[:59]}",
    "GitHub, of an app": f"ghs_{_MIXED[:36]}",
    "GitLab": f"glpat-{_MIXED[:10]}_-{_MIXED[:10]}",
    "Amazon": f"AKIA{_UPPER}",
    "Amazon, of a session": f"ASIA{_UPPER}",
    "Google": f"AIza{_MIXED[:17]}-{_MIXED[:17]}",
    "Slack": f"xoxb-123456789012-123456789012-{_MIXED[:24]}",
    "Stripe": f"sk_live_{_MIXED[:24]}",
    "Stripe, restricted": f"rk_live_{_MIXED[:24]}",
}

NO_CREDENTIALS = [
    "sk-learn-pipeline-for-the-winter-timetable-2",
    "task-forces-of-the-signalling-department",
    "disk-0123456789abcdef0123456789abcdef",
    "hf_models",
    "hf_mirror_of_the_works",
    "mlx-community/SmolLM2-135M-Instruct-4bit",
    "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct-Q4_K_M.gguf",
    "https://example.com/models/a.gguf?download=true",
    "https://grace@example.com/models",
    "grace@example.com",
    "AKIA",
    "the AKIAs of this world",
    "eyJ is how they begin",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----",
    "secret-token: none",
    "2026-11-30T14:00:00.000000+00:00",
    "sb_0123456789ab…",
    "ckpt_0123456789abcdef0123456789abcdef",
    f"gen_{uuid.UUID(int=5).hex}",
    str(uuid.UUID(int=2**127)),
    hashlib.sha256(b"1").hexdigest(),
    "Späte Züge, 信号所",
]


@pytest.mark.parametrize("text", CREDENTIALS.values(), ids=CREDENTIALS)
def test_a_credential_is_found_alone_and_inside_other_text_and_nothing_of_it_is_left(text: str) -> None:
    assert CONTAINS_CREDENTIAL.search(text)
    assert CONTAINS_CREDENTIAL.sub("***", text) == "***"
    assert (
        CONTAINS_CREDENTIAL.sub("***", f"for the depot: {text} since May") == "for the depot: *** since May"
    )


def test_of_a_private_key_that_was_cut_off_all_that_follows_is_taken_for_its_text() -> None:
    cut = _pem("EC PRIVATE KEY")[:80]
    assert CONTAINS_CREDENTIAL.sub("***", f"the depot's {cut} ") == "the depot's ***"


def test_a_password_in_a_url_is_found_and_the_url_is_left() -> None:
    masked = CONTAINS_CREDENTIAL.sub("***", "https://grace:hunter2@example.com:8443/models/a.gguf")
    assert masked == "https://***@example.com:8443/models/a.gguf"


@pytest.mark.parametrize("text", NO_CREDENTIALS)
def test_names_addresses_ids_and_checksums_are_none(text: str) -> None:
    assert not CONTAINS_CREDENTIAL.search(text)


@given(
    st.lists(
        st.sampled_from(["sk-", "a", "eyJ", ".", "-----BEGIN ", "PRIVATE KEY-----", "://", ":", "_", " "])
    )
)
def test_what_only_looks_so_takes_no_long_time(parts: list[str]) -> None:
    text = "".join(parts) * 200
    began = time.process_time()
    CONTAINS_CREDENTIAL.sub("***", text)
    assert time.process_time() - began < 5
