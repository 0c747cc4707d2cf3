"""The prompts that every arm of a benchmark runs: long answers, so that decoding is what is measured."""

from __future__ import annotations

from random import Random

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


_HARBOUR = """The harbour of Lowmere was built in 1848, after a storm had destroyed the old wooden pier. Two granite \
arms, each four hundred metres long, enclose a basin that is nine metres deep at low tide. For sixty years herring was \
landed here, salted on the quay and sent inland by rail. When the herring left, the town turned to boat building, and \
today three yards repair fishing boats, ferries and the lifeboats of the whole coast. The light at the end of the \
northern arm can be seen for twenty kilometres. It was lit by oil until 1931, and has needed no keeper since 1986. \
Every August the harbour is closed for a day, and the children of the town race home-made rafts from one arm to the \
other."""
_PROGRAM = """def total_price(items, tax_rate):
    total = 0
    for item in items:
        price = item["price"]
        quantity = item["quantity"]
        total = total + price * quantity
    tax = total * tax_rate
    return total + tax


def print_receipt(items, tax_rate):
    for item in items:
        name = item["name"]
        price = item["price"]
        quantity = item["quantity"]
        print(name, price, quantity, price * quantity)
    print("Total:", total_price(items, tax_rate))
"""

#: Prompts by the kind of their task: what is copied from the prompt, and how much, differs.
TASKS = {
    "free chat": PROMPTS[:4],
    "summarising": (
        f"Summarise this text in a few sentences, with its own words where you can:\n\n{_HARBOUR}",
        f"Repeat the most important sentences of this text:\n\n{_HARBOUR}",
        f"List every year that this text names, each with the sentence it is in:\n\n{_HARBOUR}",
    ),
    "code editing": (
        f"Rename the variable total to amount and give the whole program:\n\n```python\n{_PROGRAM}```",
        f"Add a docstring to each function and give the whole program:\n\n```python\n{_PROGRAM}```",
        f"Give this program again, with the tax printed on a line of its own:\n\n```python\n{_PROGRAM}```",
    ),
}


def chat(prompt: str) -> list[dict[str, str]]:
    """The prompt as chat messages."""
    return [{"role": "user", "content": prompt}]


def long_prompt(tokens: int, seed: int = 0) -> str:
    """A text of about so many tokens, of common words of one token each, ending in a question; no two seeds alike."""
    text = " ".join(Random(seed).choices(_WORDS, k=max(0, tokens - 40)))
    return f"{text}.\n\nWhat is this list about? Answer at length."
