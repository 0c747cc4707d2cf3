"""The prompts that every arm of a benchmark runs: long answers, so that decoding is what is measured."""

from __future__ import annotations

PROMPTS = (
    "Write a long story about a lighthouse keeper who finds a message in a bottle.",
    "Explain in detail how a steam locomotive works, from the fire to the wheels.",
    "Describe a walk through an old forest in autumn, with every sight and sound.",
    "Tell the history of the bicycle from its first forms to the present day, in detail.",
    "Write a long letter from a sailor to his family after a year at sea.",
    "Explain step by step how bread is made, and why each step is needed.",
    "Describe a busy market in a harbour town, its traders and its goods, at length.",
    "Write a long dialogue between a teacher and a student about the stars.",
)

_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")


def chat(prompt: str) -> list[dict[str, str]]:
    """The prompt as chat messages."""
    return [{"role": "user", "content": prompt}]


def long_prompt(tokens: int, seed: int = 0) -> str:
    """A text of about so many tokens, of common words of one token each, ending in a question; no two seeds alike."""
    count = len(_WORDS)
    text = " ".join(_WORDS[(i * 7 + i // count + seed * 5) % count] for i in range(max(0, tokens - 40)))
    return f"{text}.\n\nWhat is this list about? Answer at length."
