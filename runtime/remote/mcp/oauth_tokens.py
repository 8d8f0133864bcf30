"""``callgate.mcp.OAuthTokens``: tokens of OAuth clients, encrypted, in the gate's store."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from callgate.errors import RegistrationError
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import CacheEntry, Store
from callgate.runtime.remote.mcp.face import Credential
from callgate.tools.calls import User
from callgate.tools.values import hash_of

DAY = 86_400.0


class OAuthTokens:
    """The tokens and client registrations of OAuth clients, by server and user, encrypted in the gate's store.

    They survive a restart, and every process with the same store and keys has them. A row that cannot be decrypted, or
    that was written for another server, user or tenant, counts as absent: the user authorises again.

    Args:
        store: ``gate.store``; it keeps the rows as cached values.
        encryption_keys: secrets of at least 16 bytes, newest first. Remove an old key after *keep* seconds.
        keep: seconds that tokens are kept after they were last issued or refreshed. Default: 90 days.
        clock: returns the time in seconds since the epoch.

    Raises:
        RegistrationError: there is no key, or a key is too short.
    """

    def __init__(
        self,
        store: Store,
        *,
        encryption_keys: Iterable[str | bytes],
        keep: float = 90 * DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        from cryptography.fernet import Fernet, MultiFernet

        given = list(encryption_keys)
        if not given:
            raise RegistrationError("OAuthTokens: write encryption_keys=[KEY]; make one with secrets.token_hex(32)")
        # Signing keys may be used here, too: the key of the cipher is derived, and tells nothing about them.
        derived = [bytes.fromhex(SigningKeys([key]).sign(b"oauth tokens")) for key in given]
        self._cipher = MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in derived])
        self._store, self._keep, self._clock = store, keep, clock

    def __repr__(self) -> str:
        return "<OAuthTokens>"

    def storage(self, server: str, user: User | None = None) -> Any:
        """Return the ``TokenStorage`` for an OAuth client of the SDK; without *user*, that of the connection itself."""
        from callgate.runtime.remote.mcp.oauth_storage import ServerTokens  # the SDK's types

        return ServerTokens(self, *_place(server, user))  # pyright: ignore[reportArgumentType]  # a circle of two modules

    def credential(self, server: str) -> Credential:
        """Return the ``credential=`` of ``McpServer``: the valid access token of a call's user, or None."""

        async def token(user: User) -> str | None:
            found = await self.storage(server, user).get_tokens()
            return None if found is None else found.access_token or None

        return token

    async def dpop_key(self, server: str, user: User | None = None) -> str:
        """Return the private key for ``dpop``, as PEM, for the tokens of ``storage``; make it on the first use.

        It is kept as long as tokens, counted from its last use here.
        """
        from callgate.runtime.remote.mcp.dpop import new_key  # the SDK's types

        tenant, place = _place(server, user)
        found = await self.read(tenant, place, "dpop")
        key = new_key() if found is None else str(json.loads(found[0]))
        await self.write(tenant, place, "dpop", json.dumps(key))
        return key

    async def forget(self, server: str, user: User | None = None) -> bool:
        """Delete the tokens, the registration and the key of a user at a server. Return True if there were any."""
        tenant, place = _place(server, user)
        return await self._store.cache.drop_tags(tenant, [f"oauth:{place}"]) > 0

    async def read(self, tenant: str, place: str, kind: str) -> tuple[str, float | None] | None:
        """Return a value of a kind as JSON, and when it expires, or None."""
        from cryptography.fernet import InvalidToken

        key = f"oauth:{kind}:{place}"
        entry = await self._store.cache.get(tenant, key)
        if entry is None:
            return None
        try:
            where, value, expires_at = json.loads(self._cipher.decrypt(entry.value.strip(b'"')))
            return (value, expires_at) if where == [tenant, key] else None
        except (InvalidToken, ValueError):  # another key, or bytes of another writer
            return None

    async def write(self, tenant: str, place: str, kind: str, value: str, expires_in: float | None = None) -> None:
        """Encrypt and keep a value of a kind, as JSON."""
        now, key = self._clock(), f"oauth:{kind}:{place}"
        expires_at = None if expires_in is None else now + expires_in
        # The place is part of what is encrypted: a row that was moved to another user or server is not read.
        plain = json.dumps([[tenant, key], value, expires_at])
        body = b'"' + self._cipher.encrypt(plain.encode()) + b'"'  # the store keeps JSON
        until = now + self._keep
        await self._store.cache.put(tenant, key, CacheEntry(body, now, until, until, frozenset([f"oauth:{place}"])))

    def left(self, expires_at: float | None) -> int | None:
        """Return the seconds until a time."""
        return None if expires_at is None else int(expires_at - self._clock())


def _place(server: str, user: User | None) -> tuple[str, str]:
    """Return the tenant and the place of a user's tokens in the store."""
    tenant = "" if user is None else user.tenant or ""
    return tenant, hash_of([server, None if user is None else [user.tenant, user.id]])
