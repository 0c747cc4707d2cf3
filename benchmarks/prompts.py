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


def chat(prompt: str) -> list[dict[str, str]]:
    """The prompt as chat messages."""
    return [{"role": "user", "content": prompt}]
