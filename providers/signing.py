"""Signatures (MACs) of stored records: a change by a process without the signing key is detected."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from hashlib import sha256

from callgate.errors import RegistrationError

SHORTEST_KEY = 16
"""Minimum length of a signing key, in bytes."""


class SigningKeys:
    """Keys that sign records with HMAC-SHA256. The first key signs; signatures of all keys are accepted.

    To rotate a key, put the new key first, and remove the old key when no pending record has its signature. Without
    *keys* a random key is made, and its signatures are valid until the process ends. In a *namespace* the keys are
    derived: a record that is moved to another namespace has no valid signature there.

    Raises:
        RegistrationError: a key is not a text or bytes of at least 16 bytes.
    """

    def __init__(self, keys: Iterable[str | bytes] = (), namespace: str = "") -> None:
        self.namespace = namespace
        self._keys = [_key(key) for key in keys]
        self.lasting = bool(self._keys)
        if not self._keys:
            self._keys = [secrets.token_bytes(32)]
        if namespace:
            self._keys = [_mac(key, [b"namespace", namespace.encode()]).encode() for key in self._keys]
        self.ids = [_mac(key, [b"key id"])[:16] for key in self._keys]  # say nothing about a key, but tell keys apart

    def __repr__(self) -> str:
        return f"<{len(self._keys)} signing keys>"

    def sign(self, *parts: bytes) -> str:
        """Return the MAC over these parts, in this order, as 64 hexadecimal digits. Each part is prefixed with its length."""
        return _mac(self._keys[0], parts)

    def verify(self, mac: str, *parts: bytes) -> bool:
        """Return True when one of the keys made *mac* over these parts."""
        given = mac.encode("utf-8", "replace")
        return any(hmac.compare_digest(given, _mac(key, parts).encode()) for key in self._keys)


def _key(given: object) -> bytes:
    key = given.encode() if isinstance(given, str) else given
    if not isinstance(key, bytes) or len(key) < SHORTEST_KEY:
        raise RegistrationError(
            f"a signing key is a secret text or bytes of at least {SHORTEST_KEY} bytes; make one with secrets.token_hex(32)"
        )
    return key


def _mac(key: bytes, parts: Iterable[bytes]) -> str:
    mac = hmac.new(key, digestmod=sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.hexdigest()
