"""A whole API key on a command line: nothing is done, and what is said shows its prefix only."""

from __future__ import annotations

import subprocess
import sys

import pytest

from accounts import key_text
from signalbox.configuration import ROOT
from signalbox.typed_keys import objection_to


@pytest.mark.parametrize(
    "place", ["{}", "--name={}", "for {} and others", "/models/{}", "sb_0123456789ab,{}", '{{"key": "{}"}}']
)
def test_a_key_is_objected_to_wherever_it_stands_in_what_was_typed(place: str) -> None:
    key = key_text.draw()
    for typed in (str(key), str(key)[:30]):
        said = objection_to(["key", "revoke", place.format(typed)])
        assert said is not None
        assert f"sb_{key.prefix}" in said
        assert key.secret[:10] not in said


@pytest.mark.parametrize(
    "typed", ["sb_0123456789ab", "sb_0123456789ab…", "0123456789ab", "rail", "--lane=high", ""]
)
def test_prefixes_and_everything_else_are_taken(typed: str) -> None:
    assert objection_to(["key", "revoke", typed]) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["tenant", "close", "{}"],
        ["key", "list", "--no-such-option", "{}"],
        ["entitlement", "grant", "--tenant", "rail", "--lane", "low", "--concurrency", "{}"],
        ["{}"],
    ],
)
def test_no_command_sees_it_whatever_its_own_messages_repeat(arguments: list[str]) -> None:
    key = key_text.draw()
    done = subprocess.run(
        [sys.executable, "manage.py", *(argument.format(key) for argument in arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"sb_{key.prefix}" in done.stderr
    assert key.secret not in done.stderr
