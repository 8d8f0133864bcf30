"""The log event of a request to a model: sizes and timing, and nothing of the content."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from callgate.errors import ModelError
from callgate.models import OpenAIChat
from callgate.providers.logs import configure_logging

ANSWER = {"choices": [{"message": {"role": "assistant", "content": "canary"}, "finish_reason": "stop"}]}


async def exchanged(status: int, body: bytes, *, stream: bool = False) -> list[dict[str, Any]]:
    """The events of one request that is answered with this."""
    events: list[dict[str, Any]] = []
    sent: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(len(request.content))
        return httpx.Response(status, content=body, headers={"content-type": "application/json"})

    configure_logging(events.append)
    try:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            client = OpenAIChat("http://localhost/v1", model="m", api_key="canary", http=http, retries=0)
            try:
                if stream:
                    [event async for event in client.stream("canary")]
                else:
                    await client.reply("canary")
            except ModelError:
                pass
    finally:
        configure_logging()
    for event in events:
        assert event.pop("request_bytes") == sent[0]
        assert event.pop("seconds") >= 0
        event.pop("timestamp")
    return events


@pytest.mark.parametrize("stream", [False, True])
async def test_an_exchange_with_a_model_leaves_one_event_with_sizes_and_timing(stream: bool) -> None:
    """Seed 000: an exchange is logged with sizes and timing."""
    body = json.dumps(ANSWER).encode()
    (event,) = await exchanged(200, body, stream=stream)
    assert event == {
        "event": "model.exchange",
        "level": "info",
        "provider": "openai_chat",
        "status": 200,
        "response_bytes": len(body),
        "retries": 0,
    }


async def test_a_refused_exchange_leaves_its_event_and_no_content() -> None:
    """Seed 000."""
    (event,) = await exchanged(401, b'{"error": {"message": "canary"}}')
    assert (event["event"], event["status"]) == ("model.exchange", 401)
    assert "canary" not in str(event)
