"""A11: no credential was ever committed: in no file, at no time, not even one that was taken out again since."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Final

import pytest

from accounts import key_text
from signalbox.configuration import ROOT

pytestmark = pytest.mark.timeout(300)

#: What is a credential by its very look. Those of tests are made up, and every kind has to be in them somewhere.
_CREDENTIAL: Final = re.compile(
    r"""
    -----BEGIN\ (?:[A-Z]+\ )*PRIVATE\ KEY-----
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                        # Amazon
    | \bgh[opsru]_[0-9A-Za-z]{36}\b | \bgithub_pat_\w{40,} # GitHub
    | \bxox[abprs]-[0-9A-Za-z-]{20,}                       # Slack
    | \bsk-[0-9A-Za-z_-]{32,}                              # OpenAI and others
    | \bhf_[0-9A-Za-z]{30,}\b                              # Hugging Face
    | \bAIza[0-9A-Za-z_-]{35}                              # Google
    | \bglpat-[0-9A-Za-z_-]{20,}                           # GitLab
    | \bnpm_[0-9A-Za-z]{36}\b
    | \bpypi-[0-9A-Za-z_-]{50,}
    | \bwhsec_[0-9A-Za-z+/]{20,}                           # our own webhooks'
    | \beyJ[0-9A-Za-z_-]{15,}\.eyJ[0-9A-Za-z_-]{15,}\.     # a JSON Web Token
    """,
    re.VERBOSE,
)
#: A URL with a password, unless it is one of those that explain what such a URL looks like.
_WITH_PASSWORD: Final = re.compile(
    r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'`<>{}]+:(?!password@)[^\s/:@\"'`<>{}]{3,}@"
)
#: An API key of Signalbox: whole, it has a checksum, which nothing has by chance.
_OWN_KEY: Final = re.compile(rf"sb_[0-9A-Za-z]{{{key_text.PREFIX_LENGTH}}}_[0-9A-Za-z]{{49}}(?![0-9A-Za-z])")
#: Files that hold nothing else, or that a running installation writes.
_SECRET_FILE: Final = re.compile(
    r"(^|/)(\.env(\..*)?|.*\.(pem|p12|pfx|key|keystore|sqlite3|rdb|aof)|id_(rsa|dsa|ecdsa|ed25519)|\.netrc|\.pypirc"
    r"|key_pepper|django_secret_key|metrics_token|secrets/.*)$"
)


def git(*arguments: str) -> str:
    """What it writes. Skips the test where it cannot: in an exported tree, or without git."""
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        pytest.skip("git is not installed: there is no history to look at")
    if ran.returncode:
        pytest.skip(
            f"the tree was exported without its history: git {arguments[0]} says {ran.stderr.strip()!r}"
        )
    return ran.stdout


@pytest.fixture(scope="module")
def _whole_history() -> None:
    if git("rev-parse", "--show-toplevel").strip() != str(ROOT):
        pytest.skip("the tree is a part of somebody else's repository")
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("the clone is shallow: most of the history is not here")


def added_lines() -> Iterator[tuple[str, str]]:
    """Every line that a commit up to this one has added, with its file; and those of the messages, with none."""
    options = (
        "-p",
        "-U0",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--no-renames",
        "--root",
        "--format=%B",
    )
    file = ""
    for line in git("log", *options).splitlines():
        if line.startswith("diff --git "):
            file = "?"
        elif line.startswith("+++ ") and file == "?":
            file = line.removeprefix("+++ b/").removeprefix('+++ "b/')
        elif line.startswith("+") and file:
            yield file, line[1:]
        elif not line.startswith(
            ("-", "@@", "index ", "new file", "deleted file", "Binary", "\\", "old mode", "new mode")
        ):
            file = ""
            yield "", line


def credentials(lines: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Where one is. The credential itself is not repeated."""
    for file, line in lines:
        if any(key_text.parse(found.group()) for found in _OWN_KEY.finditer(line)):
            yield f"{file or 'a message'}: an API key of Signalbox"
        elif not file.startswith("tests/") and (_CREDENTIAL.search(line) or _WITH_PASSWORD.search(line)):
            yield f"{file or 'a message'}: a credential, or a URL with a password"


@pytest.mark.slow
@pytest.mark.usefixtures("_whole_history")
def test_a11_no_commit_has_ever_added_a_credential() -> None:
    assert sorted(set(credentials(added_lines()))) == []


@pytest.mark.usefixtures("_whole_history")
def test_a11_no_file_of_secrets_was_ever_committed() -> None:
    names = set(git("log", "--format=", "--name-only", "--no-renames").splitlines())
    assert "pyproject.toml" in names
    assert sorted(name for name in names if _SECRET_FILE.search(name)) == []


@pytest.mark.parametrize(
    "line",
    [
        str(key_text.draw()),
        "token = 'ghp_" + "aB3" * 12 + "'",
        "AKIA" + "ABCD" * 4,
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "OPENAI_API_KEY=sk-proj-" + "abcdefgh" * 5,
        "whsec_" + "c2VjcmV0" * 4,
        "DATABASE_URL=postgres://signalbox:" + "hunter2" + "@db.internal/signalbox",
    ],
    ids=["ours", "GitHub", "Amazon", "private key", "OpenAI", "webhook secret", "database URL"],
)
def test_a_credential_is_known_by_its_look(line: str) -> None:
    assert [*credentials(iter([("docs/x.md", f"say {line} here")]))]
    assert [*credentials(iter([("", line)]))], "in a message, too"


@pytest.mark.parametrize(
    "line",
    [
        "postgres://user:password@host/name",
        "sb_0123456789ab_" + "x" * 49,
        "sb_<prefix>_<secret><checksum>",
        "a task-based and disk-0123456789abcdef0123456789abcdef thing",
        "https://example.com:8443/a@b",
    ],
)
def test_what_only_looks_like_one_is_none(line: str) -> None:
    assert not [*credentials(iter([("docs/x.md", line)]))]
