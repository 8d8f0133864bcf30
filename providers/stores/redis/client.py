"""Access to Redis: connections, scripts, errors, and keys with their tenant."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from callgate.errors import StoreError
from callgate.providers.concurrency import refuse_other_loop, refuse_trio
from callgate.providers.stores.redis.batches import ANSWER_LIMIT, RedisBatches, redis_errors
from callgate.providers.stores.redis.scripts import RedisScript
from callgate.providers.stores.server_answers import ServerAnswers
from callgate.providers.stores.urls import refuse_empty, split_address, split_password

_INVALID = "the address of a Redis store is not a valid URL; write it as redis://host:6379/0"
_EXTRA = 'this store needs a package that is not installed: pip install "callgate[redis]"'


class RedisConnection:
    """A connection to Redis. A *client* of ``redis.asyncio`` that the caller gives is used unchanged and not closed.

    ``shared`` sends the commands of concurrent callers together. It is None with a *client*, which may belong to a cluster
    and may repeat commands; then each command is sent by itself.
    """

    def __init__(self, url: str, prefix: str, pool_size: int, client: object = None) -> None:
        if find_spec("redis") is None:
            raise StoreError(_EXTRA)
        self._url = read_redis_url(url)
        self.shown = _shown(self._url)
        self.prefix = prefix
        self._pool_size = pool_size
        self._given = client
        self._client: Any = client
        self._home: asyncio.AbstractEventLoop | None = None
        self._answers = ServerAnswers("redis")
        self.shared = RedisBatches(self._opened, pool_size) if client is None else None

    async def open(self) -> None:
        """Connect, and check that the server responds."""
        refuse_trio()
        refuse_other_loop(self._home)
        self._home = asyncio.get_running_loop()
        if self._client is not None and self._given is None:
            return
        if self._given is None:
            self._client = self._connect()
        self._answers = ServerAnswers("redis")  # silence of earlier is no reason not to ask
        try:
            self._refuse_client()
            await self._greet()
        except BaseException:
            await self.close()
            raise

    async def _greet(self) -> None:
        """Check that the server responds, and has the database.

        Raises:
            StoreError: it does not, or it has not. A response to this command quotes no value, so it is shown.
        """
        from redis.exceptions import ResponseError

        try:
            await self.run("PING")
        except StoreError as error:
            if isinstance(error.__cause__, ResponseError):
                raise StoreError(f"redis: {error.__cause__}; check the address") from error
            raise

    def _refuse_client(self) -> None:
        """Refuse a client without ``await``, and a client that decodes responses: values are bytes, and some are no text.

        Raises:
            StoreError: the client is of no use.
        """
        from redis import Redis, RedisCluster

        client = self._client
        if isinstance(client, Redis | RedisCluster) or not callable(getattr(client, "execute_command", None)):
            raise StoreError(
                f"redis: the client is a {type(client).__name__} of {type(client).__module__}, which cannot be awaited; give "
                "a Redis or a RedisCluster of redis.asyncio"
            )
        encoder = getattr(self._client, "get_encoder", None)
        if encoder is not None and encoder().decode_responses:
            raise StoreError(
                "redis: the client decodes responses, and the values of a store are bytes: leave decode_responses out of "
                "the client and of the address"
            )

    def _connect(self) -> object:
        from redis.asyncio import Redis

        return Redis.from_pool(pool_at(self._url, self._pool_size, None if self.shared else ANSWER_LIMIT))

    async def close(self) -> None:
        """Disconnect. The connection can be opened again."""
        self._home = None
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

    async def _send(self, command: Sequence[object], text: str | None = None, *, withdraw: bool = False) -> object:
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
        refuse_other_loop(self._home)
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
    from redis.exceptions import RedisError

    try:
        pool: Any = BlockingConnectionPool.from_url(
            url,
            max_connections=size,
            timeout=10,  # seconds to wait for a connection of the pool
            socket_connect_timeout=5,
            socket_timeout=answer_limit,
        )
        pool.make_connection()  # does not connect; refuses unknown parameters
    except (ValueError, TypeError, RedisError) as error:  # the text of the error may quote the URL
        given = parse_qs(urlsplit(url).query)
        # A flag that is unknown is named by its value alone.
        named = [
            name for name, values in given.items() if repr(name) in str(error) or str(error).endswith(f": {values[-1]}")
        ]
        if named:
            raise StoreError(
                f"redis: the address has the parameter {named[0][:40]!r}, which the client does not know or cannot read; "
                "correct or remove it"
            ) from None
        raise StoreError(_INVALID) from None
    return pool


def read_redis_url(url: str) -> str:
    """Return the address with an escaped password, and the scheme in lower case.

    Raises:
        StoreError: the address is not of one Redis and its database; the message shows nothing of it.
    """
    scheme, rest = split_address(url)
    if scheme not in {"redis", "rediss"}:
        raise StoreError("a Redis store supports redis:// and rediss:// addresses only")
    user, place = split_password(rest)
    refuse_empty("redis", place)
    if "," in re.split(r"[/?#]", place, maxsplit=1)[0]:
        raise StoreError(
            "redis: the address has several hosts; for a cluster or sentinels write RedisStore(url, client=...) with a "
            "client of redis.asyncio"
        )
    try:
        parts = urlsplit(f"{scheme}://{user}{place}")
        port = parts.port
    except ValueError:
        raise StoreError(_INVALID) from None
    if port == 0 or parts.fragment:  # the client would leave them out
        raise StoreError(_INVALID)
    if not re.fullmatch(r"(/\d*)?", parts.path, re.ASCII):
        raise StoreError("redis: the path of the address is the number of a database; write redis://host:6379/0")
    numbers = {*parse_qs(parts.query).get("db", ()), *([parts.path[1:]] if parts.path[1:] else [])}
    if len(numbers) > 1:
        raise StoreError(
            f"redis: the address has the databases {' and '.join(sorted(numbers))[:40]}; give one: redis://host:6379/0"
        )
    place = re.sub(r"(?<=[?&]ssl_cert_reqs=)CERT_(NONE|OPTIONAL|REQUIRED)\b", lambda found: found[1].lower(), place)
    return f"{scheme}://{user}{place}"  # Celery and Python write CERT_NONE, and the client reads none


def _shown(url: str) -> str:
    """Return the URL without its secrets, and with its database."""
    parts = urlsplit(url)
    path = next((f"/{number}" for number in parse_qs(parts.query).get("db", ())), parts.path)
    return f"{parts.scheme}://{parts.hostname or 'localhost'}:{parts.port or 6379}{path}"
