"""Access to Redis: connections, scripts, errors, and keys with their tenant."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlsplit

from callgate.errors import StoreError
from callgate.providers.stores.redis_scripts import RedisScript

_EXTRA = 'this store needs a package that is not installed: pip install "callgate[redis]"'


class RedisConnection:
    """A connection to Redis. A *client* of ``redis.asyncio`` that the caller gives is used unchanged and not closed."""

    def __init__(self, url: str, prefix: str, pool_size: int, client: Any = None) -> None:
        if find_spec("redis") is None:
            raise StoreError(_EXTRA)
        self.shown = _shown(url)
        self.prefix = prefix
        self._url = url
        self._pool_size = pool_size
        self._given = client
        self._client: Any = client

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

        return Redis.from_pool(pool_at(self._url, self._pool_size))

    async def close(self) -> None:
        """Disconnect. The connection can be opened again."""
        if self._given is None and self._client is not None:
            client, self._client = self._client, None
            with redis_errors():
                await client.aclose()

    async def run(self, *command: Any) -> Any:
        """Run a command and return its response."""
        with redis_errors():
            return await self._opened().execute_command(*command)

    async def script(self, script: RedisScript, keys: Sequence[bytes], *arguments: Any) -> Any:
        """Run a script and return its response. Its text is sent only if Redis has not loaded it."""
        from redis.exceptions import NoScriptError

        client = self._opened()
        with redis_errors():
            try:
                return await client.evalsha(script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await client.eval(script.text, len(keys), *keys, *arguments)

    def key(self, tenant: str, kind: str, name: str) -> bytes:
        """Return a key. The hash tag in braces puts all keys of a tenant into one slot of a cluster.

        The tenant is quoted and *kind* has no colon, so different arguments never give the same key.
        """
        owner = quote(tenant, safe="", errors="surrogatepass")
        return f"{self.prefix}:{{t-{owner}}}:{kind}:{name}".encode("utf-8", "surrogatepass")

    def _opened(self) -> Any:
        if self._client is None:
            raise StoreError(
                "the store is not open; use it in `async with Gate(store=...)`, or call `await store.open()`"
            )
        return self._client


def pool_at(url: str, size: int) -> Any:
    """Return a pool of *size* connections to the Redis at an address, without connecting.

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
            socket_timeout=5,
        )
    except (ValueError, TypeError):  # the text of the error may quote the URL
        raise StoreError("the address of a Redis store is not a valid URL; write it as redis://host:6379/0") from None


@contextmanager
def redis_errors() -> Generator[None, None, None]:
    """Raise errors of the client as errors of the store. Only connection errors are quoted."""
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import RedisError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    try:
        yield
    except (RedisConnectionError, RedisTimeoutError) as error:
        raise StoreError(f"redis: {error}") from error
    except (RedisError, OSError) as error:
        raise StoreError(f"redis: {type(error).__name__}") from error


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
