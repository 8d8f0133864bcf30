"""The wait that a response asks for, in each of the formats that providers use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.errors import ModelError, StreamCut
from callgate.runtime.models.wire.provider_errors import retry_delay
from callgate.runtime.models.wire.retry_policy import MAX_RETRY_AFTER, milliseconds, retry_after_seconds
from tests.runtime.models.providers import WIRES, Wire, each_wire, failure, quick, read, sse

NOW = 1_800_000_000.0
GEMINI = next(wire for wire in WIRES if wire.name == "gemini")


def info(delay: Any = "3.5s") -> dict[str, Any]:
    """Gemini's error, as it documents it."""
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "RequestsPerMinute"}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    return {"error": {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED", "details": details}}


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, UTC).isoformat().replace("+00:00", "Z")


FORMATS: dict[str, tuple[str, float]] = {
    "seconds": ("7", 7.0),
    "fraction": ("11.382867", 11.382867),
    "milliseconds": ("20ms", 0.02),
    "minutes and seconds": ("6m0s", 360.0),
    "fraction of seconds": ("1m26.4s", 86.4),
    "hours": ("1h2m3s", 3723.0),
    "days": ("1d2h", 93_600.0),
    "microseconds": ("250µs", 0.00025),
    "RFC 3339": (rfc3339(30), 30.0),
    "RFC 3339 with a zone": (datetime.fromtimestamp(NOW + 9, timezone(timedelta(hours=-7))).isoformat(), 9.0),
    "HTTP date": (formatdate(NOW + 12, usegmt=True), 12.0),
    "HTTP date of 1994": (datetime.fromtimestamp(NOW + 5, UTC).strftime("%A, %d-%b-%y %H:%M:%S GMT"), 5.0),
    "date of asctime": (datetime.fromtimestamp(NOW + 5, UTC).ctime(), 5.0),
    "date without a zone": (formatdate(NOW + 5), 5.0),
    "epoch": (f"{NOW + 42:.0f}", 42.0),
    "epoch in milliseconds": (f"{(NOW + 42) * 1000:.0f}", 42.0),
}
UNKNOWN = [
    "",
    " ",
    "soon",
    "-3",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "6x",
    "m",
    "s",
    "9" * 400 + "h",
    "Wed, 99 Nov 2026",
    "1s, 2s",
]
HEADERS = [
    "Retry-After",
    "x-ratelimit-reset",
    "X-RateLimit-Reset-Requests",
    "x-ratelimit-reset-tokens-minute",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-input-tokens-reset",
    "ratelimit-reset",
]


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("form", FORMATS)
def test_every_header_is_read_in_every_format(name: str, form: str) -> None:
    text, seconds = FORMATS[form]
    assert retry_after_seconds(httpx.Headers([(name.encode(), text.encode())]), NOW) == pytest.approx(seconds, abs=1e-4)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("text", UNKNOWN)
def test_a_header_in_an_unknown_format_asks_for_nothing(name: str, text: str) -> None:
    assert retry_after_seconds({name: text}, NOW) is None


odd = (
    st.text(max_size=30)
    | st.floats().map(str)
    | st.integers().map(str)
    | st.from_regex(r"\A(\d{1,400}(\.\d*)?(d|h|m|s|ms|us|ns))+\Z")
    | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
    | st.datetimes().map(datetime.isoformat)
    | st.sampled_from(UNKNOWN)
)


@given(
    st.dictionaries(st.sampled_from([*HEADERS, "retry-after-ms", "x-ratelimit-remaining-requests"]), odd),
    st.binary(max_size=60) | odd.map(lambda text: json.dumps(info(text)).encode()),
    st.sampled_from([408, 429, 500, 503]),
)
def test_no_response_makes_a_wait_that_is_negative_endless_or_an_exception(
    headers: dict[str, str], body: bytes, status: int
) -> None:
    found = retry_after_seconds(headers, NOW, status=status, in_body=retry_delay(body))
    assert found is None or 0 <= found < math.inf
    exposed = milliseconds(found)
    assert exposed is None or 0 <= exposed <= MAX_RETRY_AFTER * 1000


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from("h m s ms".split())), min_size=1, max_size=4))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    seconds = sum(number * {"h": 3600, "m": 60, "s": 1, "ms": 0.001}[unit] for number, unit in parts)
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert retry_after_seconds({"retry-after": text}, NOW) == pytest.approx(seconds)


RESETS: dict[str, tuple[dict[str, str], int, float | None]] = {
    "the limit that is used up": (
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "2s",
            "x-ratelimit-remaining-tokens": "9000",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        429,
        2.0,
    ),
    "the later of two that are used up": (
        {
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": rfc3339(5),
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-tokens-reset": rfc3339(50),
        },
        429,
        50.0,
    ),
    "the later of two unknown ones": ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "9s"}, 429, 9.0),
    "one that is not used up": (
        {"x-ratelimit-remaining-requests": "12", "x-ratelimit-reset-requests": "33011.38"},
        429,
        None,
    ),
    "one in the past": ({"x-ratelimit-reset": f"{NOW - 9:.0f}", "x-ratelimit-remaining": "0"}, 429, None),
    "one of a response that failed for another reason": ({"x-ratelimit-reset-tokens": "6m0s"}, 500, None),
    "Retry-After before it": ({"retry-after": "1", "x-ratelimit-reset-tokens": "6m0s"}, 429, 1.0),
    "an odd Retry-After": ({"retry-after": "soon", "x-ratelimit-reset-tokens": "4s"}, 429, 4.0),
}


@pytest.mark.parametrize("name", RESETS)
def test_the_reset_of_a_rate_limit_counts_where_that_limit_refused_the_request(name: str) -> None:
    headers, status, wait = RESETS[name]
    assert retry_after_seconds(headers, NOW, status=status) == wait


BODIES: dict[str, Callable[[Any], bytes]] = {
    "an object": lambda error: json.dumps(error).encode(),
    "a list": lambda error: json.dumps([error], indent=2).encode(),
    "an event": lambda error: b"".join(sse(error)),
    "text in another error": lambda error: json.dumps({"error": {"metadata": {"raw": json.dumps(error)}}}).encode(),
    "text in text": lambda error: json.dumps({"error": json.dumps({"error": json.dumps(error)})}).encode(),
    "the repr of Python": lambda error: json.dumps({"detail": f"upstream said {error}"}).encode(),
}


@pytest.mark.parametrize("form", BODIES)
@each_wire
async def test_a_delay_in_the_body_is_waited_for_and_is_in_the_error(wire: Wire, form: str) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def provider(_: httpx.Request) -> httpx.Response:
        return httpx.Response(429, content=BODIES[form](info()))

    error = await failure(wire.make(provider, retries=quick(1, sleep=sleep)).reply("go"))
    assert (waits, error.retry_after, error.status) == ([3.5], 3500, 429)


@pytest.mark.parametrize("delay", [None, 7, "", "3.5", "-3s", "soon", "nans", "9" * 400 + "s", {"seconds": 3}])
def test_a_delay_in_an_unknown_format_is_none(delay: Any) -> None:
    assert retry_delay(json.dumps(info(delay)).encode()) is None
    assert retry_delay(info(delay)) is None


@pytest.mark.parametrize("before", [0, 1])
async def test_an_error_within_a_stream_names_the_wait_too(before: int) -> None:
    pieces = [*GEMINI.chunks("H", [])[:before], *sse(info("12s"))]
    error = await failure(read(GEMINI.make(lambda _: GEMINI.flowing(pieces)).stream("go")))
    assert isinstance(error, StreamCut)
    assert error.retry_after == 12_000


@each_wire
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_with_status_200_names_the_wait_too(wire: Wire, streamed: bool) -> None:
    client = wire.make(lambda _: httpx.Response(200, json=info("12s")))
    error = await failure(read(client.stream("go")) if streamed else client.reply("go"))
    assert error.retry_after == 12_000


async def test_an_error_names_a_day_at_most() -> None:
    client = GEMINI.make(lambda _: httpx.Response(429, headers={"retry-after": "1e300"}))
    error = await failure(client.reply("go"))
    assert isinstance(error, ModelError)
    assert error.retry_after == 86_400_000
