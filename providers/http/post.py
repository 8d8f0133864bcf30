"""A POST whose answer is short: at most 64 kB, not compressed, within a total time. With httpx, imported at the first use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from callgate.errors import StoreError
from callgate.providers.http.bounded import BodyRefused, BoundedBody
from callgate.providers.http.pace import Pace

MAX_ANSWER = 65_536
"""Maximum size of an answer, in bytes."""


class Answer(NamedTuple):
    """The answer to a POST."""

    status: int
    body: bytes


async def post_bounded(
    what: str, url: str, content: str | bytes, headers: Mapping[str, str], seconds: float, client: Any = None
) -> Answer:
    """Send a POST with *client*, an ``httpx.AsyncClient`` that stays open, or with a client for this request.

    A redirect is an answer like any other: a client that follows one reads its whole body, and sends a GET.

    Args:
        what: the receiver, as errors name it.
        url: the address.
        content: the body.
        headers: HTTP headers.
        seconds: time for the request and the whole answer, also with a given client.
        client: a client of the application.

    Raises:
        StoreError: there is no answer in time, or it is larger than ``MAX_ANSWER`` or compressed.
    """
    import httpx

    asked = {**headers, "accept-encoding": "identity"}
    try:
        async with asyncio.timeout(seconds), contextlib.AsyncExitStack() as stack:
            if client is None:
                client = await stack.enter_async_context(httpx.AsyncClient())
            request = client.build_request("POST", url, content=content, headers=asked, timeout=seconds)
            answer = await client.send(request, stream=True, follow_redirects=False)
            stack.push_async_callback(answer.aclose)
            if answer.is_stream_consumed:  # by an event hook of the client
                return Answer(answer.status_code, answer.content[:MAX_ANSWER])
            body = BoundedBody(answer.headers.get("content-encoding"), MAX_ANSWER)
            parts, pace = list[bytes](), Pace()
            async for part in answer.stream:
                parts.append(body.feed(part))
                await pace.turn()
            return Answer(answer.status_code, b"".join(parts))
    except (TimeoutError, httpx.TimeoutException) as error:
        raise StoreError(f"{what} did not answer within {seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StoreError(f"{what} cannot be reached: {type(error).__name__}") from error
    except BodyRefused as refused:
        raise StoreError(f"{what} sent an answer that {refused}; at most {MAX_ANSWER} bytes are read") from None
