"""The secret that key digests, and webhook secrets, are made with: it lives in a file, never in the database.

Whoever reads the database alone can therefore neither use a key nor test guesses. A pepper's id is derived from it
and stands in each key's row, so that it can be changed: ``rotate`` puts a new one in place for keys made from then
on, and keeps the old file for the keys that name it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from functools import cache

from accounts.key_text import KeyText
from signalbox import secret_files
from signalbox.configuration import configuration

_FILE = "key_pepper"


class PepperMissing(RuntimeError):
    """A key, or a webhook endpoint, names a pepper whose file is gone: it cannot be used until that is restored."""


def seal(key: KeyText) -> tuple[str, str]:
    """The id of the current pepper, and the key's digest under it."""
    pepper = secret_files.read_or_create(_FILE)
    return _id_of(pepper), _digest(pepper, key)


def matches(key: KeyText, pepper_id: str, digest: str) -> bool:
    """Whether ``digest`` is the key's under the pepper ``pepper_id``, in constant time."""
    return hmac.compare_digest(_digest(_by_id(pepper_id), key), digest)


def waste(key: KeyText) -> None:
    """Do the work of a check without one: an unknown key takes as long as a wrong one."""
    hmac.compare_digest(seal(key)[1], "0" * 64)


def current_id() -> str:
    """The id of the current pepper."""
    return _id_of(secret_files.read_or_create(_FILE))


def derive(pepper_id: str, purpose: str) -> bytes:
    """32 bytes that follow from the pepper ``pepper_id`` and ``purpose``: secrets that need not be stored anywhere.

    ``purpose`` is our own text and never begins as a key does. Raises ``PepperMissing``.
    """
    return hmac.new(_by_id(pepper_id).encode(), purpose.encode(), hashlib.sha256).digest()


def rotate(announce: Callable[[str], object] | None = None) -> str:
    """Make a new pepper for new keys, keep the old one for the keys that name it; return the new one's id.

    ``announce`` is told that id before the new pepper is put in place, and keeps it from that by raising. Running
    processes notice by themselves: they look for a pepper by the id in a key's row.
    """
    current = secret_files.read_or_create(_FILE)
    drawn = secrets.token_urlsafe(32)
    if announce is not None:
        announce(_id_of(drawn))
    directory = configuration().secrets_dir
    (directory / _FILE).rename(directory / f"{_FILE}.{_id_of(current)}")
    secret_files.create(_FILE, drawn)
    return _id_of(secret_files.read(_FILE))


@cache
def _by_id(pepper_id: str) -> str:
    current = secret_files.read_or_create(_FILE)
    if _id_of(current) == pepper_id:
        return current
    path = configuration().secrets_dir / f"{_FILE}.{pepper_id}"
    try:
        older = path.read_text().strip()
    except FileNotFoundError as error:
        raise PepperMissing(
            f"No pepper {pepper_id} in {configuration().secrets_dir}: restore {path.name} from your backup, or "
            "revoke the keys, and renew the webhook secrets, that were made with it."
        ) from error
    return older


def _id_of(pepper: str) -> str:
    return hashlib.sha256(pepper.encode()).hexdigest()[:12]


def _digest(pepper: str, key: KeyText) -> str:
    return hmac.new(pepper.encode(), str(key).encode(), hashlib.sha256).hexdigest()
