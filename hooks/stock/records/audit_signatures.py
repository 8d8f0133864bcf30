"""Signatures of audit rows: the hash of a signed row is ``hash.key.mac``, and enters the hash of the next row.

A hash alone needs no key: an attacker who writes the database can compute the chain anew. The MAC is a keyed BLAKE2b over
the hash. Verification without a key checks the hash, and counts the signatures that it cannot check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import AuditRow


def row_signer(keys: SigningKeys | None, audit: object) -> Callable[[str], str] | None:
    """Return the function that signs the hash of a row of this audit part; None without keys that last."""
    if keys is None or not keys.lasting:
        return None
    tag = keys.tagger(*_origin(namespace_of(audit)))
    return lambda hash: f"{hash}.{tag(_bytes_of(hash))}"


class RowSignatures:
    """Checks the signatures of rows, segment by segment. ``unsigned`` and ``unchecked`` count rows."""

    def __init__(self, keys: SigningKeys | None, namespace: str = "", since: float | None = None) -> None:
        self.unsigned = 0
        self.unchecked = 0
        self._keys = keys
        self._origin = _origin(namespace)
        self._since = since
        self._segment = ""
        self._signed = False

    def problem(self, row: AuditRow) -> str | None:
        """Return the problem with the signature of a row; None if there is none, or no key to find it."""
        hash, _, tag = row.hash.partition(".")
        signed, same = bool(tag), row.segment == self._segment
        mixed, self._segment, self._signed = same and signed != self._signed, row.segment, signed
        if mixed:
            return "a part of the rows of its segment is signed, and a part is not"
        if signed and self._keys is None:
            self.unchecked += 1
        elif signed and self._keys is not None and not self._keys.has_tag(tag, *self._origin, _bytes_of(hash)):
            return "its signature is not valid, or its signing key was not given"
        elif not signed:
            self.unsigned += self._keys is not None
            if self._since is not None and row.at >= self._since:
                return "the row is not signed"
        return None


def namespace_of(audit: object) -> str:
    """Return the namespace of an audit part, which its signatures are bound to."""
    return str(getattr(audit, "namespace", ""))


def plain_hash(row: AuditRow) -> str:
    """Return the hash of a row without its signature."""
    return row.hash.partition(".")[0]


def keys_of(signing_keys: Iterable[str | bytes]) -> SigningKeys | None:
    """Return the keys, or None without keys.

    Raises:
        RegistrationError: a key is shorter than 16 bytes.
    """
    found = list(signing_keys)
    return SigningKeys(found) if found else None


def _origin(namespace: str) -> tuple[bytes, ...]:
    return b"callgate audit row", namespace.encode()


def _bytes_of(hash: str) -> bytes:
    return hash.encode("utf-8", "surrogatepass")  # a row that was changed may have any text
