"""Sending a request to a model's provider with httpx: time limits, second attempts, bounds. Loaded with a first client.

Nothing of httpx leaves this module, and no error of it is chained to ours: they hold the whole request, key included.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from callgate.errors import ModelError, RegistrationError
from callgate.providers.scrubbing import Scrubber
from callgate.runtime.call.leases import RELEASE_LIMIT, Carried
from callgate.runtime.models.wire.decompression import PACKED, Unpacker
from callgate.runtime.models.wire.http_request import Outgoing
from callgate.runtime.models.wire.provider_errors import quoted, short
from callgate.runtime.models.wire.repeated_timeout import Watch
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts, asked_for, may_pass

MAX_BODY = 32 * 1024 * 1024
"""Bytes of an answer that is not streamed, unpacked."""
MAX_STREAM = 256 * 1024 * 1024
"""Bytes of a streamed answer, unpacked."""
MAX_ERROR_BODY = 64 * 1024
"""Bytes of an error answer that are read."""
LINGER = 5.0
"""Seconds of silence that end a stream whose end mark has come, where the server does not close it.

Not less: some servers set the mark in every piece; and what still comes, such as the usage, belongs to the answer."""

_POOL = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
_TELLING = (httpx.ConnectError, httpx.ProxyError, httpx.RemoteProtocolError, httpx.DecodingError)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer, or no more of it; ``passing`` says that asking again may help."""

    message: str
    status: int | None = None
    passing: bool = False
    asked: float | None = None

    def error(self, provider: str) -> ModelError:
        """As it is raised. Never inside of an ``except``: httpx's error would hang on to it."""
        wait = None if self.asked is None else round(self.asked * 1000)
        return ModelError(f"{provider}: {self.message}", status=self.status, retry_after=wait, provider=provider)


class Answer:
    """An answer that has begun, with a status of success. ``failure`` is set once it has broken off."""

    __slots__ = (
        "_deadline",
        "_left",
        "_parts",
        "_read",
        "_response",
        "_scrubber",
        "_unpacker",
        "_watch",
        "failure",
        "media",
        "status",
    )

    def __init__(
        self, response: httpx.Response, limits: Timeouts, deadline: float | None, most: int, scrubber: Scrubber
    ) -> None:
        self.status = response.status_code
        self.media = short(response.headers.get("content-type", "").partition(";")[0].lower(), scrubber.text)[:100]
        self.failure: Failure | None = None
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        read = response.is_stream_consumed  # by a hook of *http*: then it is unpacked as well
        # Not by response.aiter_raw(): that closes at the end, and a cancellation just then would leave it half closed.
        self._parts: AsyncIterator[bytes] = response.aiter_bytes() if read else aiter(_stream(response))
        self._unpacker = Unpacker() if packed in PACKED and not read else None
        self._response, self._scrubber = response, scrubber
        self._read, self._deadline, self._left = limits.read, deadline, most
        self._watch = Watch()
        if packed not in PACKED and packed != "identity":
            self.failure = Failure("the answer is packed in a way that was not asked for", self.status)

    async def read(self) -> bytes:
        """The next bytes, unpacked; none at the end, or where it breaks off: then ``failure`` says why."""
        part = b""
        limit = _earlier(self._read, self._deadline)
        try:
            while not part and self.failure is None:
                part = await self._watch.wait(anext(self._parts), limit)
                if self._unpacker is not None:
                    part = self._unpacker.feed(part, self._left)
        except StopAsyncIteration:
            return b""
        except (TimeoutError, httpx.HTTPError, httpx.StreamError, OSError, zlib.error) as error:
            self.failure = _broken(error, self._scrubber, self.status)
            return b""
        self._left -= len(part)
        if self._left < 0:
            self.failure = Failure("the answer is too long", self.status)
            return b""
        return part

    async def whole(self) -> bytes:
        """All bytes that are left."""
        parts: list[bytes] = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def finish(self) -> None:
        """It is complete as it is: what follows is read, but not waited for longer than ``LINGER``."""
        self._read = LINGER if self._read is None else min(self._read, LINGER)

    async def close(self) -> None:
        """Close it, whatever arrives meanwhile; one that was not read to its end closes the connection."""
        self._watch.close()
        closing = Carried(self._response.aclose(), limit=RELEASE_LIMIT)
        try:
            await closing.run()
        except (httpx.HTTPError, OSError):
            pass  # closed is closed
        if closing.held is not None:
            raise closing.held


class Sender:
    """Sends the requests of one client, with *http* or with an HTTP client of its own.

    Raises:
        RegistrationError: *http* is no ``httpx.AsyncClient``.
    """

    def __init__(self, provider: str, http: Any, limits: Timeouts, retries: Retries) -> None:
        if http is not None and not isinstance(http, httpx.AsyncClient):
            raise RegistrationError(f"http is an httpx.AsyncClient, not {type(http).__name__}")
        self._own = http is None
        self._client: httpx.AsyncClient = http or httpx.AsyncClient(limits=_POOL)  # proxies: as the environment says
        self._provider, self._limits, self._retries = provider, limits, retries
        self._timeout = httpx.Timeout(limits.read, connect=limits.connect, pool=None)

    async def close(self) -> None:
        """Close the HTTP client if it is our own."""
        if self._own:
            await self._client.aclose()

    @asynccontextmanager
    async def answer(self, sent: Outgoing) -> AsyncGenerator[Answer, None]:
        """The answer to a request, closed at the end of the ``async with``: with it goes the socket if it is not over.

        Raises:
            ModelError: there is none, after as many attempts as ``Retries`` allows.
        """
        deadline = _earlier(self._limits.total, None)
        failures = 0
        while isinstance(found := await self._once(sent, deadline), Failure):
            failures += 1
            await self._wait(found, failures, deadline)
        try:
            yield found
        finally:
            await found.close()

    async def _wait(self, failure: Failure, failures: int, deadline: float | None) -> None:
        """Wait before the next attempt.

        Raises:
            ModelError: there is none.
        """
        wait = self._retries.wait(failures, failure.asked) if failure.passing else None
        if wait is None or (deadline is not None and asyncio.get_running_loop().time() + wait >= deadline):
            raise failure.error(self._provider)
        await self._retries.sleep(wait)

    async def _once(self, sent: Outgoing, deadline: float | None) -> Answer | Failure:
        """One attempt. It gives its failure instead of raising it, so that nothing hangs on to what httpx raised."""
        if self._client.is_closed:
            return Failure("the client is closed")
        try:
            async with asyncio.timeout_at(deadline):
                request = self._client.build_request(
                    "POST", sent.url, content=sent.body, headers=sent.headers, timeout=self._timeout
                )
                response = await self._client.send(request, stream=True, follow_redirects=False)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return _unanswered(error, sent.scrubber)
        most = MAX_STREAM if sent.streamed else MAX_BODY
        good = response.is_success
        answer = Answer(response, self._limits, deadline, most if good else MAX_ERROR_BODY, sent.scrubber)
        if good:
            return answer
        try:
            return await self._refused(response, answer, sent.scrubber)
        finally:
            await answer.close()

    async def _refused(self, response: httpx.Response, answer: Answer, scrubber: Scrubber) -> Failure:
        status = response.status_code
        if response.is_redirect:
            return Failure(f"it answered {status}, a redirect: not followed, for the API key would go with it", status)
        words = quoted(await answer.whole(), scrubber.text)
        asked = asked_for(response.headers, self._retries.now())
        return Failure(
            f"it answered {status}{words and f': {words}'}", status, may_pass(status, response.headers), asked
        )


def _stream(response: httpx.Response) -> httpx.AsyncByteStream:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream


def _earlier(seconds: float | None, deadline: float | None) -> float | None:
    """The earlier of so many seconds from now and a deadline, as the loop counts time."""
    if seconds is None:
        return deadline
    limit = asyncio.get_running_loop().time() + seconds
    return limit if deadline is None else min(limit, deadline)


def _unanswered(error: Exception, scrubber: Scrubber) -> Failure:
    """Why no answer began."""
    if isinstance(error, TimeoutError):
        return Failure("it did not answer in time")
    passing = not isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol | httpx.PoolTimeout)
    return Failure(f"no answer: {_told(error, scrubber)}", passing=passing and isinstance(error, httpx.TransportError))


def _broken(error: Exception, scrubber: Scrubber, status: int) -> Failure:
    """Why an answer ended before its end."""
    if isinstance(error, zlib.error):
        return Failure("the answer is not packed as it says", status)
    silent = isinstance(error, TimeoutError | httpx.TimeoutException)
    return Failure("the answer stopped coming" if silent else f"the answer broke off: {_told(error, scrubber)}", status)


def _told(error: Exception, scrubber: Scrubber) -> str:
    """The kind of an error, and its text where that can hold nothing of the request."""
    text = short(str(error), scrubber.text) if isinstance(error, _TELLING) else ""
    return f"{type(error).__name__}{text and f' ({text})'}"
