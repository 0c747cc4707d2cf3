"""What a conversation is called until somebody renames it: its first words, without their markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from inference.conversations.records import Message
from inference.models import ChatRole

TITLE_LENGTH: Final = 60

#: What stands before a line's words: headings, quotes, lists.
_LINE_MARK: Final = re.compile(r"^\s*(?:(?:#{1,6}|>|[-*+]|\d{1,3}[.)])\s+)+")
#: A fence around code, with the code's language; a rule.
_NO_WORDS: Final = re.compile(r"^\s*(?:(?:```|~~~)\S*|(?:[-*_]\s*){3,})\s*$")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
#: Pairs around words. An underscore within a word is the word's own, and a lone star is a star.
_EMPHASIS: Final = re.compile(r"(\*\*|__|\*|_|~~|`)(?=\S)(.+?)(?<=\S)\1(?!\w)")


def title_of(messages: Iterable[Message]) -> str:
    """A title from the first thing the user says: its first line, cut between words."""
    said = next((message.content for message in messages if message.role == ChatRole.USER), "")
    line = next((words for raw in said.splitlines() if (words := _plain(raw))), "")
    if len(line) <= TITLE_LENGTH:
        return line or "New chat"
    cut = line[: TITLE_LENGTH - 1]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut).rstrip(" ,.;:") + "…"


def _plain(line: str) -> str:
    """The line's words, or nothing where it has none."""
    if _NO_WORDS.match(line):
        return ""
    words = _LINK.sub(r"\1", _LINE_MARK.sub("", line))
    while (bare := _EMPHASIS.sub(r"\2", words)) != words:
        words = bare
    return " ".join(words.split())
