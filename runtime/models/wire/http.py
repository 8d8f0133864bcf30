"""HTTP requests to a model provider with httpx: timeouts, retries and size limits. Loaded with the first client.

No object of httpx leaves this module, and none of its errors is chained: they hold the whole request with its key. A
caller may give a client of httpx2, which has the same classes. They are taken from the module of that client, so that
httpx2 is never imported here.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import httpx

from callgate.errors import ModelError, RegistrationError, StreamCut
from callgate.providers.http.bounded import MAX_NESTING, BodyRefused, BoundedBody
from callgate.providers.http.decompression import ENCODINGS
from callgate.providers.http.pace import Pace
from callgate.providers.logs import LogEvent, emit
from callgate.providers.scrubbing import Scrubber
from callgate.runtime.models.wire.framing import ContentWatch
from callgate.runtime.models.wire.http_request import HttpRequest
from callgate.runtime.models.wire.provider_errors import error_body_message, one_line, retry_delay
from callgate.runtime.models.wire.repeated_timeout import RepeatedTimeout
from callgate.runtime.models.wire.retry_policy import (
    Retries,
    Timeouts,
    is_retryable,
    milliseconds,
    retry_after_seconds,
)
from callgate.runtime.pipeline.shield import under_shield

MAX_RESPONSE = 32 * 1024 * 1024
"""Maximum size in bytes of a response that is not streamed, or is compressed; decompressed."""
MAX_STREAM = 256 * 1024 * 1024
"""Maximum size in bytes of a streamed response that is not compressed."""
MAX_ERROR_RESPONSE = 64 * 1024
"""Maximum number of bytes read of an error response."""
LINGER = 5.0
"""Read timeout in seconds once the end mark of a stream has arrived, for servers that do not close the stream.

It is not shorter because some servers send the mark in every piece, and the usage may follow it."""

_POOL = httpx.Limits(max_connections=1000, max_keepalive_connections=100)


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request failed, or why a response broke off (``cut``).

    ``retryable`` if the same request may succeed later.
    """

    message: str
    status: int | None = None
    retryable: bool = False
    retry_after: float | None = None
    cut: bool = False

    def error(self, provider: str) -> ModelError:
        """Make the exception. Never call it inside an ``except`` block, which would chain the error of httpx."""
        kind = StreamCut if self.cut else ModelError
        wait = milliseconds(self.retry_after)
        return kind(f"{provider}: {self.message}", status=self.status, retry_after=wait, provider=provider)


class ProviderResponse:
    """A response with a success status, whose body is still to be read. ``failure`` is set if it breaks off."""

    __slots__ = (
        "_body",
        "_content",
        "_deadline",
        "_idle",
        "_library",
        "_loop",
        "_pace",
        "_parts",
        "_pieces",
        "_quiet",
        "_read",
        "_response",
        "_scrubber",
        "_timeout",
        "failure",
        "media",
        "received",
        "status",
    )

    def __init__(
        self,
        response: httpx.Response,
        library: ModuleType,
        limits: Timeouts,
        deadline: float | None,
        max_bytes: int,
        sent: HttpRequest,
    ) -> None:
        self.status = response.status_code
        media = response.headers.get("content-type", "").partition(";")[0].lower()
        self.media = one_line(media, sent.scrubber.text)[:100]
        self.failure: Failure | None = None
        read = response.is_stream_consumed  # by an event hook of *http*, which decompressed it as well
        # response.aiter_raw() closes the response at its end; a cancellation at that moment would leave it half closed
        self._parts: AsyncIterator[bytes] = response.aiter_bytes() if read else aiter(_stream(response))
        self._pieces: Iterator[bytes] = iter(())  # of the last part
        self._response, self._library, self._scrubber = response, library, sent.scrubber
        self._read, self._deadline = limits.read, deadline
        self._idle = (limits.idle or limits.read) if sent.streamed else None
        self._quiet = 0.0  # seconds waited since the last content
        self._content = ContentWatch()
        self._loop = asyncio.get_running_loop()
        self.received = 0
        self._timeout, self._pace = RepeatedTimeout(), Pace()
        try:
            encoding = None if read else response.headers.get("content-encoding")
            depth = (
                None if sent.streamed or not response.is_success else MAX_NESTING
            )  # each event is measured by itself
            self._body = BoundedBody(
                encoding, max_bytes, accepted=ENCODINGS, max_depth=depth, max_values=sent.max_values
            )
        except BodyRefused as refused:
            self.failure = Failure(f"the response {refused}", self.status)

    async def read(self) -> bytes:
        """Return the next bytes, decompressed; none at the end, or if the response breaks off and ``failure`` is set."""
        part = b""
        began = self._loop.time()
        limit = _earliest(
            self._deadline,
            None if self._read is None else began + self._read,
            None if self._idle is None else began + self._idle - self._quiet,
        )
        try:
            while not part and self.failure is None:
                found = next(self._pieces, None)
                if found is None:
                    self._pieces = self._body.pieces(await self._timeout.wait(anext(self._parts), limit))
                else:
                    part = found
                await self._pace.turn(len(part))
        except StopAsyncIteration:
            return b""
        except BodyRefused as refused:
            self.failure = Failure(f"the response {refused}", self.status)
            return b""
        except (TimeoutError, OSError, zlib.error, self._library.HTTPError, self._library.StreamError) as error:
            self.failure = _broken(error, self._library, self._scrubber, self.status)
            return b""
        if self._idle is not None:
            self._quiet = 0.0 if self._content.feed(part) else self._quiet + self._loop.time() - began
        self.received += len(part)
        return part

    async def whole(self) -> bytes:
        """Return all remaining bytes."""
        parts: list[bytes] = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def finish(self) -> None:
        """Shorten the timeouts to ``LINGER``: the end mark has arrived."""
        self._read = self._idle = LINGER if self._read is None else min(self._read, LINGER)

    async def close(self) -> None:
        """Close the response under a shield; if it was not read to its end, the connection closes too."""
        self._timeout.close()
        with suppress(self._library.HTTPError, OSError):  # the connection is gone, which is the goal
            await under_shield(self._response.aclose())


class Sender:
    """Sends the requests of one client, with *http* or with an HTTP client of its own.

    Raises:
        RegistrationError: *http* is not an ``AsyncClient`` of httpx or httpx2.
    """

    def __init__(self, provider: str, http: Any, limits: Timeouts, retries: Retries) -> None:
        self._library = _library_of(http)
        self._given: httpx.AsyncClient | None = http
        self._unused = None if http is not None else _new_client()  # made at once: it may be refused
        self._own: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._is_closed, self._changing = False, threading.Lock()
        self._provider, self._limits, self._retries = provider, limits, retries
        self._timeout = self._library.Timeout(limits.read, connect=limits.connect, pool=None)

    async def close(self) -> None:
        """Close the HTTP client, unless the caller gave it."""
        if self._given is not None:
            return
        self._is_closed, unused = True, self._unused
        own = self._own.pop(asyncio.get_running_loop(), unused)
        self._own.clear()  # those of other loops can only be dropped
        if own is not None:
            await own.aclose()

    def client(self) -> httpx.AsyncClient:
        """Return the HTTP client for the running event loop: a connection belongs to the loop that opened it."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._own.get(loop)
        if client is None:
            with self._changing:  # threads have loops of their own
                client, self._unused = self._unused or _new_client(), None
                self._own = {home: one for home, one in self._own.items() if not home.is_closed()} | {loop: client}
        return client

    @asynccontextmanager
    async def response(self, sent: HttpRequest) -> AsyncGenerator[ProviderResponse, None]:
        """Send a request with retries; the response is closed at the end of the ``async with``.

        Raises:
            ModelError: the request failed, after as many attempts as ``Retries`` allows.
        """
        clock = asyncio.get_running_loop().time
        began, failures, found = clock(), 0, None
        deadline = None if self._limits.total is None else began + self._limits.total
        try:
            while isinstance(found := await self._attempt(sent, deadline), Failure):
                failures += 1
                await self._wait_before_retry(found, failures, deadline)
            try:
                yield found
            finally:
                await found.close()
        finally:
            emit(
                LogEvent.MODEL_EXCHANGE,
                provider=self._provider,
                status=None if found is None else found.status,
                request_bytes=len(sent.body),
                response_bytes=found.received if isinstance(found, ProviderResponse) else 0,
                seconds=round(clock() - began, 6),
                retries=max(0, failures - isinstance(found, Failure)),
            )

    async def _wait_before_retry(self, failure: Failure, failures: int, deadline: float | None) -> None:
        """Wait before the next attempt.

        Raises:
            ModelError: no retry is allowed.
        """
        wait = self._retries.wait(failures, failure.retry_after) if failure.retryable else None
        if wait is None or (deadline is not None and asyncio.get_running_loop().time() + wait >= deadline):
            raise failure.error(self._provider)
        await self._retries.sleep(wait)

    async def _attempt(self, sent: HttpRequest, deadline: float | None) -> ProviderResponse | Failure:
        """Make one attempt. A failure is returned, not raised, so that no error of httpx is chained to it."""
        if self._is_closed or (client := self.client()).is_closed:
            return Failure("the client is closed")
        try:
            async with asyncio.timeout_at(deadline):
                request = client.build_request(
                    "POST", sent.url, content=sent.body, headers=sent.headers, timeout=self._timeout
                )
                response = await client.send(request, stream=True, follow_redirects=False)
        except (TimeoutError, OSError, self._library.HTTPError, self._library.InvalidURL) as error:
            return _no_response(error, self._library, sent.scrubber)
        success = response.is_success
        max_bytes = (
            (MAX_STREAM if sent.streamed and _flows(response) else MAX_RESPONSE) if success else MAX_ERROR_RESPONSE
        )
        body = ProviderResponse(response, self._library, self._limits, deadline, max_bytes, sent)
        if success:
            return body
        try:
            return await self._refused(response, body, sent.scrubber)
        finally:
            await body.close()

    async def _refused(self, response: httpx.Response, body: ProviderResponse, scrubber: Scrubber) -> Failure:
        status = response.status_code
        if response.is_redirect:
            return Failure(
                f"it answered {status}, a redirect, which is not followed because the API key would go with it", status
            )
        content = await body.whole()
        message = error_body_message(content, scrubber.text)
        now, delay = self._retries.now(), retry_delay(content)
        retry_after = retry_after_seconds(response.headers, now, status=status, in_body=delay)
        reason = f"it answered {status}{message and f': {message}'}"
        return Failure(reason, status, is_retryable(status, response.headers), retry_after)


def _new_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(limits=_POOL)  # with the environment's proxies


def _library_of(http: object) -> ModuleType:
    """httpx, or httpx2 if *http* is a client of it.

    Raises:
        RegistrationError: *http* is an object of another kind.
    """
    for library in (httpx, sys.modules.get("httpx2")):
        if library is not None and (http is None or isinstance(http, library.AsyncClient)):
            return library
    raise RegistrationError(f"http must be an httpx.AsyncClient or httpx2.AsyncClient, not {type(http).__name__}")


def _flows(response: httpx.Response) -> bool:
    """Return True for a body that is read as it comes, and that the server pays for: JSON is read when it is whole."""
    headers = response.headers
    whole = headers.get("content-type", "").lower().startswith("application/json")
    return not whole and headers.get("content-encoding", "identity") == "identity"


def _stream(response: httpx.Response) -> httpx.AsyncByteStream:
    return cast("httpx.AsyncByteStream", response.stream)  # a client that is asynchronous has no other


def _earliest(*times: float | None) -> float | None:
    """The earliest of some times on the loop's clock; None if there is none."""
    return min((time for time in times if time is not None), default=None)


def _no_response(error: Exception, library: ModuleType, scrubber: Scrubber) -> Failure:
    """The failure of a request without a response."""
    if isinstance(error, TimeoutError):
        return Failure("the request timed out")
    text = f"no response: {_error_text(error, library, scrubber)}"
    if isinstance(error, library.ReadTimeout):
        return Failure(f"{text}; the request was not repeated, because the provider may have run it")
    permanent = isinstance(error, library.LocalProtocolError | library.UnsupportedProtocol | library.PoolTimeout)
    return Failure(text, retryable=isinstance(error, library.TransportError) and not permanent)


def _broken(error: Exception, library: ModuleType, scrubber: Scrubber, status: int) -> Failure:
    """The failure of a response that broke off."""
    if isinstance(error, zlib.error):
        return Failure("the response does not have its content encoding", status)
    silent = isinstance(error, TimeoutError | library.TimeoutException)
    reason = "the response timed out" if silent else f"the response broke off: {_error_text(error, library, scrubber)}"
    return Failure(reason, status, cut=True)


def _error_text(error: Exception, library: ModuleType, scrubber: Scrubber) -> str:
    """The type of an error, and its text if that cannot contain parts of the request."""
    safe = library.ConnectError | library.ProxyError | library.RemoteProtocolError | library.DecodingError
    text = one_line(str(error), scrubber.text) if isinstance(error, safe) else ""
    return f"{type(error).__name__}{text and f' ({text})'}"
