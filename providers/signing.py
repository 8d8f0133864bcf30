"""MACs over what lies in a store, so that whoever can write there can change nothing unseen (threat T7, B7)."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from hashlib import sha256

from callgate.errors import RegistrationError

SHORTEST = 16
"""Bytes that a signing key has at least."""


class SigningKeys:
    """HMAC-SHA256 under the first of the *keys*; what any of them has signed is accepted, so that keys can be changed.

    To change a key, put the new one first and take the old one out when nothing that it signed waits any more.
    Without keys there is one that this process makes up: what it signs ends with the process.

    Raises:
        RegistrationError: a key is no text or bytes of at least 16 bytes.
    """

    def __init__(self, keys: Iterable[str | bytes] = ()) -> None:
        self._keys = [_key(key) for key in keys]
        self.lasting = bool(self._keys)
        if not self._keys:
            self._keys = [secrets.token_bytes(32)]

    def __repr__(self) -> str:
        return f"<{len(self._keys)} signing keys>"

    def sign(self, *parts: bytes) -> str:
        """The MAC of these parts, in this order, each with its own bounds; 64 hexadecimal digits."""
        return _mac(self._keys[0], parts)

    def verify(self, mac: str, *parts: bytes) -> bool:
        """Whether one of the keys made *mac* over these parts."""
        told = mac.encode("utf-8", "replace")
        return any(hmac.compare_digest(told, _mac(key, parts).encode()) for key in self._keys)


def _key(given: object) -> bytes:
    key = given.encode() if isinstance(given, str) else given
    if not isinstance(key, bytes) or len(key) < SHORTEST:
        raise RegistrationError(
            f"a signing key is a secret text or bytes, {SHORTEST} bytes at the least, such as secrets.token_hex(32)"
        )
    return key


def _mac(key: bytes, parts: Iterable[bytes]) -> str:
    made = hmac.new(key, digestmod=sha256)
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.hexdigest()
