from __future__ import annotations

from collections.abc import Iterator

import pytest

from accounts import key_text, pepper
from accounts.authentication import authenticate_key
from signalbox.configuration import configuration
from tests.factories import ApiKeyFactory


@pytest.fixture
def _own_pepper() -> Iterator[None]:
    """Lets a test change the pepper: keys made meanwhile stay with their own, as in production."""
    pepper._by_id.cache_clear()
    yield
    pepper._by_id.cache_clear()


@pytest.mark.usefixtures("_own_pepper")
def test_a_key_keeps_the_pepper_that_it_was_made_with() -> None:
    old = key_text.draw()
    old_id, old_digest = pepper.seal(old)
    new_id = pepper.rotate()
    pepper._by_id.cache_clear()
    assert new_id != old_id
    assert pepper.seal(key_text.draw())[0] == new_id
    assert pepper.matches(old, old_id, old_digest)
    assert pepper.seal(old)[1] != old_digest
    assert not pepper.matches(key_text.draw(), old_id, old_digest)


@pytest.mark.usefixtures("_own_pepper", "valkey")
@pytest.mark.django_db
def test_keys_work_on_after_the_pepper_was_changed() -> None:
    key = ApiKeyFactory()
    pepper.rotate()
    assert authenticate_key(key.raw).api_key_id == key.id  # type: ignore[attr-defined]


def test_a_lost_pepper_is_named() -> None:
    with pytest.raises(pepper.PepperMissing, match=r"key_pepper\.0123"):
        pepper.matches(key_text.draw(), "0123", "0" * 64)


def test_peppers_are_read_by_their_owner_only() -> None:
    pepper.seal(key_text.draw())
    for path in configuration().secrets_dir.glob("key_pepper*"):
        assert path.stat().st_mode & 0o777 == 0o600
