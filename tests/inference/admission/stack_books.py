"""What an installation's books say, read from its database past the product, in one statement: one moment's."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from tests.fixtures.live_stack import LiveStack

#: What a busy machine takes beyond the lease.
SLACK_S = 60.0

_BOOKS = """
SELECT
    (SELECT count(*) FROM inference_generation WHERE state IN ('queued', 'running')),
    (SELECT count(*) FROM inference_generation),
    (SELECT count(*) FROM accounts_reservation WHERE settled_at IS NULL),
    (SELECT coalesce(sum(tokens), 0) FROM accounts_reservation WHERE settled_at IS NULL),
    (SELECT coalesce(sum(settled_tokens), 0) FROM accounts_reservation),
    (SELECT count(*) FROM accounts_ledgerentry),
    (SELECT coalesce(sum(prompt_tokens + completion_tokens), 0) FROM accounts_ledgerentry),
    (SELECT group_concat(DISTINCT live) FROM
        (SELECT sum(live_generations) AS live FROM accounts_allowance
            WHERE id IN (SELECT allowance_id FROM accounts_budgetwindow) GROUP BY id IN (:keys))),
    (SELECT group_concat(DISTINCT reserved) FROM
        (SELECT sum(reserved) AS reserved FROM accounts_budgetwindow GROUP BY allowance_id IN (:keys), period)),
    (SELECT group_concat(DISTINCT used) FROM
        (SELECT sum(used) AS used FROM accounts_budgetwindow GROUP BY allowance_id IN (:keys), period))
""".replace(":keys", "SELECT allowance_id FROM accounts_apikey")


@dataclass(frozen=True)
class Books:
    """One moment of the installation's books. Its one key holds what its entitlements to all lanes hold together."""

    live: int
    reserved: int
    used: int


def books(stack: LiveStack) -> Books:
    """What they say now; they add up."""
    with closing(sqlite3.connect(stack.state_dir / "db.sqlite3", timeout=20)) as connection:
        row = connection.execute(_BOOKS).fetchone()
    live, generations, unsettled, held, settled, entries, spent = row[:7]
    assert live == unsettled
    assert entries == generations - live, "one ledger entry for each that has ended"
    assert settled == spent
    if generations:
        assert row[7:] == (str(live), str(held), str(spent)), (
            "key and entitlements say the same of all periods"
        )
    return Books(live, held, spent)


def wait(stack: LiveStack, until: Callable[[Books], bool], seconds: float) -> Books:
    """The books when that is so. At every look on the way they add up."""
    deadline = time.monotonic() + seconds
    while not until(seen := books(stack)):
        assert time.monotonic() < deadline, f"{seen} after {seconds:.0f} s\n{stack.logs()}"
        time.sleep(0.1)
    return seen


def wait_until_nothing_is_live(stack: LiveStack, seconds: float) -> Books:
    settled = wait(stack, lambda seen: seen.live == 0, seconds)
    assert settled.reserved == 0
    return settled
