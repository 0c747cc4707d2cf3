"""Whether two models mean the same by a token id."""

from __future__ import annotations

import hashlib
from pathlib import Path

from inference.tokenization.tokenizer import Tokenizer, load


def checksum(tokenizer: Tokenizer) -> str:
    """SHA-256 over every token's id and spelling. Ids without a token, with which models are padded, do not count."""
    digest = hashlib.sha256()
    for token, spelling in sorted(tokenizer.vocabulary().items()):
        digest.update(f"{token} {len(spelling)} {spelling}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def difference(model_dir: Path, other_dir: Path) -> str | None:
    """How the vocabularies of two prepared models differ, at the lowest id where they do; None: they are the same.

    Raises ``TokenizerError`` when one of them cannot be read.
    """
    return difference_between(load(model_dir), load(other_dir))


def difference_between(tokenizer: Tokenizer, other: Tokenizer) -> str | None:
    """The same for tokenizers that are loaded."""
    mine, others = tokenizer.vocabulary(), other.vocabulary()
    token = min((token for token, _ in mine.items() ^ others.items()), default=None)
    if token is None:
        return None
    return f"token {token} is {_spelled(mine.get(token))} here and {_spelled(others.get(token))} there"


def _spelled(spelling: str | None) -> str:
    return "missing" if spelling is None else repr(spelling)
