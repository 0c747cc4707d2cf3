"""The neutral pool: what a model answers to prompts that are nobody's. It serves every tenant and is never taught."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from inference.engine.drafting import pool_files
from inference.engine.drafting.pool_files import PoolFileError
from inference.engine.drafting.pool_store import PoolOwner
from inference.engine.drafting.suffix_pool import SuffixPool

_log: Final = logging.getLogger(__name__)

#: The pools that come with the product.
SHIPPED: Final = Path(__file__).with_name("neutral")


def find_neutral(pools_dir: Path, owner: PoolOwner) -> SuffixPool | None:
    """The neutral pool that was built for a model on this machine, else one that comes with the product.

    Only one whose token ids mean what the model's do. What cannot be used is logged.
    """
    for path in (pool_files.neutral_path(pools_dir, owner.model), *sorted(SHIPPED.glob("*.pool"))):
        try:
            content = pool_files.read(path)
        except FileNotFoundError:
            continue
        except PoolFileError as error:
            _log.warning("a neutral pool is not used: %s", error)
            continue
        if content.vocabulary == owner.vocabulary:
            return SuffixPool(content.texts)
    return None


def neutral_prompts() -> list[str]:
    """The prompts that come with the product."""
    lines = (SHIPPED / "prompts.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
