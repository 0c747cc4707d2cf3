"""How well the free drafters guess what the default model says, without running it.

    python -m benchmarks.drafter_replay

The neutral pool's own answers are replayed, as rounds would commit them, against drafters that have not seen them: the
pool is cut into five, and each fifth is guessed by a pool of the other four. What a round yields is counted, and
reckoned against what a drafted token costs (``--token-costs``, in single-token steps; a worker measures its own).

A second table says how the suffix pool does by its size, and by how many rounds of each answer are looked at: what a
worker's profile would find if it looked at no more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import ROOT
from inference.engine.drafting import pool_files
from inference.engine.drafting.drafter import DraftContext, Drafter
from inference.engine.drafting.neutral_pool import SHIPPED, neutral_prompts
from inference.engine.drafting.pool_drafter import PoolDrafter
from inference.engine.drafting.pool_store import PoolOwner, PoolStore
from inference.engine.drafting.prompt_lookup import PromptLookup
from inference.engine.drafting.suffix_pool import SuffixPool, unpack
from inference.tokenization.template import render_chat
from inference.tokenization.tokenizer import load

_FOLDS = 5
#: Answers shorter than this have nothing to guess.
_SHORTEST = 8
_OWNER = PoolOwner("replay", "", "")


@dataclass
class _Seen:
    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--state", type=Path, default=ROOT / ".signalbox")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--answer-tokens", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--token-costs", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=[16, 64, 128], help="looked at, of an answer"
    )
    parser.add_argument("--pool-shares", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    arguments = parser.parse_args()
    texts = pool_files.read(SHIPPED / f"{arguments.model}.pool").texts
    tokenizer = load(arguments.state / "models" / arguments.model)
    prompts = [render_chat(tokenizer, [{"role": "user", "content": prompt}]) for prompt in neutral_prompts()]
    answers = [unpack(text).tolist() for text in texts]
    with tempfile.TemporaryDirectory() as empty:

        def pool_of(others: Sequence[bytes]) -> Drafter:
            return PoolDrafter(PoolStore(Path(empty), _OWNER, SuffixPool(others)))

        drafters: dict[str, Callable[[Sequence[bytes]], Drafter]] = {
            "prompt lookup": lambda _: PromptLookup(),
            "suffix pool, nothing learned": lambda _: pool_of(()),
            "suffix pool": pool_of,
        }

        def row(
            begin: str, make: Callable[[Sequence[bytes]], Drafter], longest: int, share: float, rounds: int
        ) -> None:
            seen = _Seen()
            for fold in range(_FOLDS):
                others = [text for index, text in enumerate(texts) if index % _FOLDS != fold]
                drafter = make(others[: int(share * len(others))])
                for index in range(fold, len(answers), _FOLDS):
                    answer = answers[index][:longest]
                    _replay(drafter, prompts[index], answer, arguments.draft_tokens, rounds, seen)
            yields = seen.tokens / seen.rounds
            gains = [yields / (1 + cost * seen.drafted / seen.rounds) for cost in arguments.token_costs]
            print(
                f"| {begin} | {yields:.2f} | {seen.accepted} of {seen.drafted} | "
                f"{' | '.join(f'{gain:.2f}' for gain in gains)} |",
                flush=True,
            )

        costs = " | ".join(f"at {cost:g} a token" for cost in arguments.token_costs)
        lines = " --- |" * (4 + len(arguments.token_costs))
        print(f"| answers of | drafter | tokens a round | accepted of drafted | {costs} |\n|{lines}")
        for longest in arguments.answer_tokens:
            for name, make in drafters.items():
                row(f"{longest} | {name}", make, longest, 1.0, sys.maxsize)
        longest = max(arguments.answer_tokens)
        print(
            f"\n| pool | rounds looked at of answers of {longest} | tokens a round | accepted of drafted | {costs} |"
            f"\n|{lines}"
        )
        for share in arguments.pool_shares:
            for rounds in (*arguments.rounds, sys.maxsize):
                looked_at = "all" if rounds == sys.maxsize else str(rounds)
                row(f"{share:.0%} | {looked_at}", pool_of, longest, share, rounds)


def _replay(
    drafter: Drafter, prompt: list[int], answer: list[int], most: int, rounds: int, seen: _Seen
) -> None:
    """Guess one answer, and count ``rounds`` rounds of it at most."""
    if len(answer) < _SHORTEST:
        return
    done = 1  # the first token is the prompt's last chunk's
    while done < len(answer) and rounds:
        rounds -= 1
        drafter.bind(DraftContext("replay", None, False, [*prompt, *answer[:done]], len(prompt)))
        guesses = drafter.draft(min(most, len(answer) - done - 1))
        accepted = 0
        while accepted < len(guesses) and guesses[accepted] == answer[done + accepted]:
            accepted += 1
        done += accepted + 1
        seen.rounds += 1
        seen.tokens += accepted + 1
        seen.drafted += len(guesses)
        seen.accepted += accepted
    drafter.finish(DraftContext("replay", None, False, [*prompt, *answer], len(prompt)))


if __name__ == "__main__":
    main()
