"""Access to Redis: connections, scripts, errors, and keys with their tenant."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlsplit

from callgate.errors import StoreError
from callgate.providers.stores.redis_batches import ANSWER_LIMIT, RedisBatches, redis_errors
from callgate.providers.stores.redis_scripts import RedisScript
from callgate.providers.stores.server_answers import ServerAnswers

_EXTRA = 'this store needs a package that is not installed: pip install "callgate[redis]"'


class RedisConnection:
    """A connection to Redis. A *client* of ``redis.asyncio`` that the caller gives is used unchanged and not closed.

    ``shared`` sends the commands of concurrent callers together. It is None with a *client*, which may belong to a cluster
    and may repeat commands; then each command is sent by itself.
    """

    def __init__(self, url: str, prefix: str, pool_size: int, client: object = None) -> None:
        if find_spec("redis") is None:
            raise StoreError(_EXTRA)
        self.shown = _shown(url)
        self.prefix = prefix
        self._url = url
        self._pool_size = pool_size
        self._given = client
        self._client: Any = client
        self._answers = ServerAnswers("redis")
        self.shared = RedisBatches(self._opened, pool_size) if client is None else None

    async def open(self) -> None:
        """Connect, and check that the server responds."""
        if self._client is not None and self._given is None:
            return
        if self._given is None:
            self._client = self._connect()
        try:
            await self.run("PING")
        except BaseException:
            await self.close()
            raise

    def _connect(self) -> Any:
        from redis.asyncio import Redis

        return Redis.from_pool(pool_at(self._url, self._pool_size, None if self.shared else ANSWER_LIMIT))

    async def close(self) -> None:
        """Disconnect. The connection can be opened again."""
        if self._given is None and self._client is not None:
            if self.shared is not None:
                await self.shared.close()
            client, self._client = self._client, None
            with redis_errors():
                await client.aclose()

    async def run(self, *command: object) -> Any:
        """Run a command, and return its response."""
        async with self._answers.awaited():
            with redis_errors():
                return await self._send(command)

    async def script(
        self, script: RedisScript, keys: Sequence[bytes], *arguments: object, withdraw: bool = False
    ) -> Any:
        """Run a script, and return its response. Its text is sent only if Redis has not loaded it.

        Args:
            script: the script.
            keys: all its keys.
            arguments: its other arguments.
            withdraw: a cancelled caller takes the request back, unless it was sent. Without it the script runs in any case.
        """
        from redis.exceptions import NoScriptError

        rest = (len(keys), *keys, *arguments)
        async with self._answers.awaited():
            with redis_errors():
                try:
                    return await self._send(("EVALSHA", script.sha, *rest), script.text, withdraw=withdraw)
                except NoScriptError:
                    return await self._send(("EVAL", script.text, *rest), withdraw=withdraw)

    async def _send(self, command: Sequence[object], text: str | None = None, *, withdraw: bool = False) -> Any:
        client = self._opened()
        if self.shared is None:
            return await client.execute_command(*command)
        return await self.shared.send(command, text=text, withdraw=withdraw)

    def key(self, tenant: str, kind: str, name: str, namespace: str = "") -> bytes:
        """Return a key. The hash tag in braces puts all keys of a tenant into one slot of a cluster.

        The tenant is quoted, and *kind* and namespaces have no colon, so different arguments never give the same key.
        """
        owner = quote(tenant, safe="", errors="surrogatepass")
        if namespace:
            owner = f"{owner}:{namespace}"
        return f"{self.prefix}:{{t-{owner}}}:{kind}:{name}".encode("utf-8", "surrogatepass")

    def _opened(self) -> Any:
        if self._client is None:
            raise StoreError(
                "the store is not open; use it in `async with Gate(store=...)`, or call `await store.open()`"
            )
        return self._client


def pool_at(url: str, size: int, answer_limit: float | None = ANSWER_LIMIT) -> Any:
    """Return a pool of *size* connections to the Redis at an address, without connecting.

    A connection waits *answer_limit* seconds for each response. None leaves the limit to its user, and saves a task for
    each command.

    Raises:
        StoreError: the address is not a valid URL, or the extra is not installed.
    """
    if find_spec("redis") is None:
        raise StoreError(_EXTRA)
    from redis.asyncio import BlockingConnectionPool

    try:
        return BlockingConnectionPool.from_url(
            url,
            max_connections=size,
            timeout=10,  # seconds to wait for a connection of the pool
            socket_connect_timeout=5,
            socket_timeout=answer_limit,
        )
    except (ValueError, TypeError):  # the text of the error may quote the URL
        raise StoreError("the address of a Redis store is not a valid URL; write it as redis://host:6379/0") from None


def _shown(url: str) -> str:
    """Return the URL without its secrets.

    Raises:
        StoreError: the URL is not valid; the message shows nothing of it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        raise StoreError("the address of a Redis store is not a valid URL; write it as redis://host:6379/0") from None
    if parts.scheme not in {"redis", "rediss"}:
        raise StoreError("a Redis store supports redis:// and rediss:// addresses only")
    return f"{parts.scheme}://{host}:{port}{parts.path}"
