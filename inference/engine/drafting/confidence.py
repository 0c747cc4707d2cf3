"""When a guess is no longer worth its place in the block that the model verifies."""

from __future__ import annotations

from typing import Final

#: A draft ends where the product of its guesses' confidences falls below this. A token more in a block costs 5 to 20
#: percent of a step, so a guess pays from about every fourth on; above that, since counts of little are too sure.
LEAST_CONFIDENCE: Final = 0.35
#: How far counts are believed that stand behind a context of one, two, … tokens: the shorter it is, the less it says
#: that something followed it once. The best of those tried in `benchmarks/drafter_replay.py`.
TRUST: Final = (0.4, 0.65, 0.8, 0.9)
