"""The way to Redis: connections, scripts, errors, and keys that hold their tenant."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlsplit

from callgate.errors import StoreError
from callgate.providers.stores.redis_scripts import Script

EXTRA = 'this store needs a package that is not installed: pip install "callgate[redis]"'


class Connection:
    """One Redis; *client*, a ``redis.asyncio`` client of the caller's, is used as it is and not closed."""

    def __init__(self, url: str, prefix: str, pool_size: int, client: Any = None) -> None:
        if find_spec("redis") is None:
            raise StoreError(EXTRA)
        self.shown = _shown(url)
        self.prefix = prefix
        self._url = url
        self._pool_size = pool_size
        self._given = client
        self._client: Any = client

    async def open(self) -> None:
        """Connect, and see that somebody answers."""
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
        """Disconnect; may be opened again."""
        if self._given is None and self._client is not None:
            client, self._client = self._client, None
            with failing():
                await client.aclose()

    async def run(self, *command: Any) -> Any:
        """What a command answers."""
        with failing():
            return await self._opened().execute_command(*command)

    async def script(self, script: Script, keys: Sequence[bytes], *arguments: Any) -> Any:
        """What a script answers; its text goes over the wire where Redis does not know it."""
        from redis.exceptions import NoScriptError

        client = self._opened()
        with failing():
            try:
                return await client.evalsha(script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await client.eval(script.text, len(keys), *keys, *arguments)

    def key(self, tenant: str, kind: str, name: str) -> bytes:
        """A key. All of a tenant's lie in one slot of a cluster, which the braces mark; no two pairs share a key.

        The tenant is quoted, so that it cannot hold what ends it; *kind* is one of a few words and holds no colon.
        """
        owner = quote(tenant, safe="", errors="surrogatepass")
        return f"{self.prefix}:{{t-{owner}}}:{kind}:{name}".encode("utf-8", "surrogatepass")

    def _opened(self) -> Any:
        if self._client is None:
            raise StoreError("the store is not open: use it in `async with Gate(store=...)`, or await store.open()")
        return self._client


def pool_at(url: str, size: int) -> Any:
    """A pool of *size* connections to the Redis at an address, none of them made yet.

    Raises:
        StoreError: the address cannot be read, or the extra is not installed.
    """
    if find_spec("redis") is None:
        raise StoreError(EXTRA)
    from redis.asyncio import BlockingConnectionPool

    try:
        return BlockingConnectionPool.from_url(
            url,
            max_connections=size,
            timeout=10,  # for a connection of the pool
            socket_connect_timeout=5,
            socket_timeout=5,
        )
    except (ValueError, TypeError):  # its text may quote the URL
        raise StoreError("the address of a Redis store is not a URL that can be read") from None


@contextmanager
def failing() -> Generator[None, None, None]:
    """Errors of the client become the store's; only those of the connection are quoted."""
    from redis.exceptions import ConnectionError as NoConnection
    from redis.exceptions import RedisError
    from redis.exceptions import TimeoutError as TooLate

    try:
        yield
    except (NoConnection, TooLate) as error:
        raise StoreError(f"redis: {error}") from error
    except (RedisError, OSError) as error:
        raise StoreError(f"redis: {type(error).__name__}") from error


def _shown(url: str) -> str:
    """The URL without what may be secret.

    Raises:
        StoreError: it is none; the message holds nothing of it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        raise StoreError("the address of a Redis store is not a URL that can be read") from None
    if parts.scheme not in {"redis", "rediss"}:
        raise StoreError("a Redis store speaks redis:// and rediss://")
    return f"{parts.scheme}://{host}:{port}{parts.path}"
