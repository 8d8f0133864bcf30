"""Signatures (MACs) of stored records: a change by a process without the signing key is detected."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from hashlib import blake2b, sha256

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
        self._tagging = [bytes.fromhex(_mac(key, [b"tag"])) for key in self._keys]

    def __repr__(self) -> str:
        return f"<{len(self._keys)} signing keys>"

    def sign(self, *parts: bytes) -> str:
        """Return the MAC over these parts, in this order, as 64 hexadecimal digits. Each part is prefixed with its length."""
        return _mac(self._keys[0], parts)

    def verify(self, mac: str, *parts: bytes) -> bool:
        """Return True when one of the keys made *mac* over these parts."""
        given = mac.encode("utf-8", "replace")
        return any(hmac.compare_digest(given, _mac(key, parts).encode()) for key in self._keys)

    def states(self, *parts: bytes) -> dict[str, blake2b]:
        """Return, by the id of each key, the state of a keyed BLAKE2b over these parts, to copy and go on from."""
        return {id: _blake(key, parts, 16) for id, key in zip(self.ids, self._tagging, strict=True)}

    def tagger(self, *parts: bytes) -> Callable[[bytes], str]:
        """Return the function that makes the tag of these parts and a last one, which alone it has to read.

        A tag is ``id.mac``: the id of the first key, and a keyed BLAKE2b. It costs less than ``sign``.
        """
        id, state = self.ids[0], _blake(self._tagging[0], parts, 32)

        def tag(last: bytes) -> str:
            made = state.copy()
            made.update(_framed(last))
            return f"{id}.{made.hexdigest()}"

        return tag

    def has_tag(self, tag: str, *parts: bytes) -> bool:
        """Return True when the key that *tag* names is one of these, and made the tag over these parts."""
        id, _, mac = tag.partition(".")
        if id not in self.ids:
            return False
        made = _blake(self._tagging[self.ids.index(id)], parts, 32).hexdigest()
        return hmac.compare_digest(mac.encode("utf-8", "replace"), made.encode())


def _key(given: object) -> bytes:
    key = given.encode() if isinstance(given, str) else given
    if not isinstance(key, bytes) or len(key) < SHORTEST_KEY:
        raise RegistrationError(
            f"a signing key is a secret text or bytes of at least {SHORTEST_KEY} bytes; make one with secrets.token_hex(32)"
        )
    return key


def _blake(key: bytes, parts: Iterable[bytes], size: int) -> blake2b:
    return blake2b(b"".join(map(_framed, parts)), key=key, digest_size=size)


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part


def _mac(key: bytes, parts: Iterable[bytes]) -> str:
    mac = hmac.new(key, digestmod=sha256)
    for part in parts:
        mac.update(_framed(part))
    return mac.hexdigest()
