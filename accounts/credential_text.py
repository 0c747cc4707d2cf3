"""What credentials of others look like: the few shapes that can be told from any other text, each by who defines it.

People paste them into names and reasons. A credential that is just random digits, as a password, cannot be told from
other words, and is not looked for.
"""

from __future__ import annotations

import re
from typing import Final

from accounts.key_text import CONTAINS_KEY

#: Stands in the place of what is not told.
MASK: Final = "***"

#: Those that begin a word.
_TOKENS: Final = (
    # JSON Web Tokens: RFC 7519, section 3: three parts in base64url, of which the first begins with `{"`.
    r"eyJ[\w-]{10,}\.[\w-]{4,}\.[\w-]*",
    # Tokens that say of themselves that they are secret: RFC 8959.
    r"secret-token:[^\s\"'<>]+",
    # OpenAI's API keys, and those of all who have taken over their shape (Anthropic, DeepSeek, OpenRouter, LiteLLM):
    # `sk-`, and somewhere in it more letters and digits in a row than words have.
    r"sk-[\w-]{0,40}?[0-9A-Za-z]{16,}[\w-]*",
    # Hugging Face, "User access tokens".
    r"hf_[0-9A-Za-z]{20,}",
    # GitHub, "About authentication to GitHub: GitHub's token formats".
    r"gh[pousr]_[0-9A-Za-z]{20,}",
    r"github_pat_\w{20,}",
    # GitLab, "Token overview: token prefixes".
    r"glpat-[\w-]{20,}",
    # Amazon, "IAM identifiers: unique ID prefixes": access keys, and those of a session.
    r"A[KS]IA[0-9A-Z]{16}(?!\w)",
    # Google Cloud, "Manage API keys".
    r"AIza[\w-]{35}",
    # Slack, "Token types".
    r"xox[a-z]-[\w-]{10,}",
    # Stripe, "API keys": secret and restricted ones.
    r"[rs]k_(?:live|test)_[0-9A-Za-z]{16,}",
)
_SHAPES: Final = (
    rf"(?<![\w-])(?:{'|'.join(_TOKENS)})",
    # Private keys in PEM: RFC 7468, section 10 and 11, and what else ends its label so (RSA, EC, OPENSSH). To its end.
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?:(?!-----END ).)*(?:-----END [A-Z0-9 ]*-----)?",
    # A name and password in a URL: RFC 3986, section 3.2.1.
    r"(?<=://)[^\s/?#@:]+:[^\s/?#@]+(?=@)",
)

#: Finds a credential inside other text.
CONTAINS_CREDENTIAL: Final = re.compile("|".join(_SHAPES), re.ASCII | re.DOTALL)


def without_credentials(text: str) -> str:
    """``text`` with all credentials in it masked: API keys of ours, and those of others that have a shape."""
    return CONTAINS_CREDENTIAL.sub(MASK, CONTAINS_KEY.sub(MASK, text))
