"""When a client asks again, how long it waits first, and what it does not wait for; all on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime, formatdate
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate import RegistrationError
from callgate.errors import ModelError, StreamCut
from callgate.runtime.models.wire.retry_policy import Retries, Timeouts, retry_after_seconds
from callgate.testing import VirtualTime
from tests.runtime.models.providers import CHAT, KEY, WIRES, Piece, Pieces, Wire, each_wire, failure, quick, read, sse

NOW = 1_800_000_000.0


class Provider:
    """Gives these answers one after the other, the last for ever."""

    def __init__(self, *answers: httpx.Response | Exception | Callable[[], Any]) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        made: Any = answer() if callable(answer) else answer
        found: httpx.Response = await made if asyncio.iscoroutine(made) else made
        return found

    @property
    def waits(self) -> list[float]:
        return [round(later - earlier, 1) for earlier, later in zip(self.asked, self.asked[1:], strict=False)]


def refused(status: int, **headers: str) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def after(seconds: float, answer: Callable[[], Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def late() -> Any:
        await asyncio.sleep(seconds)
        return answer()

    return late


def virtually(scenario: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, float]:
    """The result of a scenario, and the virtual seconds that it took."""
    with VirtualTime() as time:
        return time.run(scenario()), time.elapsed


def asks(provider: Provider, wire: Wire = CHAT, **options: Any) -> tuple[Any, float]:
    """The reply or the error of one request, and how long it took; chance always says 1."""
    options = {"retries": Retries(random=lambda: 1.0, now=lambda: NOW), **options}

    async def scenario() -> Any:
        try:
            return await wire.make(provider, **options).reply("go")
        except ModelError as error:
            return error

    return virtually(scenario)


def slowly(pieces: Iterable[bytes], seconds: float) -> list[Piece]:
    """Each piece, and so many seconds after it."""
    return [one for piece in pieces for one in (piece, lambda: asyncio.sleep(seconds))]


def streams(wire: Wire, pieces: Iterable[Piece]) -> tuple[Any, float]:
    """The events of a stream that comes in these pieces, and how long it took."""

    async def scenario() -> Any:
        return await read(wire.make(Provider(wire.flowing(pieces))).stream("go"))

    return virtually(scenario)


PASSING = [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("late"),
    httpx.ReadError(""),
    httpx.WriteError(""),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
    httpx.ProxyError("502 Bad Gateway"),
    *(refused(status) for status in (408, 409, 429, 500, 502, 503, 504, 529)),
]
LASTING = [
    httpx.ReadTimeout("late"),
    *(refused(status) for status in (300, 301, 307, 308, 400, 401, 403, 404, 405, 413, 415, 422, 451)),
    refused(429, x_should_retry="false"),
    httpx.UnsupportedProtocol("no"),
    httpx.LocalProtocolError("Illegal header value b'secret'"),
    httpx.TooManyRedirects("no"),
    httpx.DecodingError("no"),
]


def _named(problem: Any) -> str:
    if isinstance(problem, Exception):
        return type(problem).__name__
    answer = problem()
    return f"{answer.status_code}{'-' if answer.headers.get('x-should-retry') else ''}"


@pytest.mark.parametrize("problem", PASSING, ids=map(_named, PASSING))
@each_wire
def test_what_may_pass_is_tried_again_with_growing_waits(wire: Wire, problem: Any) -> None:
    provider = Provider(problem, problem, lambda: wire.whole("yes"))
    found, _ = asks(provider, wire)
    assert found.text == "yes"
    assert provider.waits == [0.5, 1.0]


@pytest.mark.parametrize("problem", PASSING, ids=map(_named, PASSING))
def test_it_gives_up_after_as_many_attempts_as_it_was_given(problem: Any) -> None:
    for times in (0, 1, 5):
        provider = Provider(problem)
        found, _ = asks(provider, retries=Retries(times, random=lambda: 1.0))
        assert isinstance(found, ModelError)
        assert provider.waits == [0.5, 1.0, 2.0, 4.0, 8.0][:times]


@pytest.mark.parametrize("problem", LASTING, ids=map(_named, LASTING))
@each_wire
def test_what_will_not_pass_is_not_tried_again(wire: Wire, problem: Any) -> None:
    provider = Provider(problem)
    found, _ = asks(provider, wire)
    assert isinstance(found, ModelError)
    assert len(provider.asked) == 1
    assert "secret" not in str(found)


@each_wire
def test_a_stream_is_tried_again_before_it_begins_and_never_after(wire: Wire) -> None:
    provider = Provider(refused(503), httpx.ConnectError("no"), lambda: wire.flowing([b"\n", httpx.ReadError("gone")]))

    async def scenario() -> Any:
        with pytest.raises(StreamCut) as cut:
            await read(wire.make(provider).stream("go"))
        return cut.value

    error, _ = virtually(scenario)
    assert len(provider.asked) == 3
    assert "ReadError" in str(error)


def test_a_whole_answer_that_breaks_off_is_not_asked_for_again() -> None:
    provider = Provider(httpx.Response(200, stream=Pieces([b"{", httpx.ReadError("gone")])))
    found, _ = asks(provider)
    assert isinstance(found, ModelError)
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0"}, 0.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "2500", "retry_after": "9"}, 2.5),
        ({"retry_after": formatdate(NOW + 12, usegmt=True)}, 12.0),
        ({"retry_after": formatdate(NOW - 12, usegmt=True)}, 0.0),
        ({"retry_after": "60"}, 60.0),
        *(({"retry_after": text}, 0.5) for text in ("", "soon", "-3", "nan", "inf", "1e999", "Wed, 99 Nov 2026")),
        ({"retry_after_ms": "many", "retry_after": "3"}, 3.0),
    ],
    ids="seconds none fraction ms date past cap empty word negative nan inf huge odd-date odd-ms".split(),
)
def test_the_wait_is_what_the_provider_asks_for(headers: dict[str, str], wait: float) -> None:
    provider = Provider(refused(429, **headers), lambda: CHAT.whole("yes"))
    found, _ = asks(provider)
    assert found.text == "yes"
    assert provider.waits == [wait]


@pytest.mark.parametrize("asked", ["61", "86400", formatdate(NOW + 3600, usegmt=True)], ids=["over", "day", "date"])
def test_a_provider_that_asks_for_a_long_wait_is_not_waited_for_and_the_error_says_how_long(asked: str) -> None:
    provider = Provider(refused(429, retry_after=asked))
    found, took = asks(provider)
    assert (len(provider.asked), took < 1) == (1, True)
    assert found.retry_after >= 61_000
    assert found.status == 429


def test_the_last_error_carries_what_the_provider_asked_for() -> None:
    found, _ = asks(Provider(refused(503, retry_after="2")), retries=1)
    assert (found.status, found.retry_after) == (503, 2000)


def test_back_off_is_random_from_nothing_to_its_bound() -> None:
    drawn = iter([0.0, 0.5, 0.75, 1.0])
    provider = Provider(refused(500))
    asks(provider, retries=Retries(4, random=lambda: next(drawn)))
    assert provider.waits == [0.0, 0.5, 1.5, 4.0]


@given(
    failures=st.integers(1, 10_000),
    times=st.integers(0, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
    asked=st.none() | st.floats(0, 1e6),
)
def test_a_wait_is_never_longer_than_its_bounds(failures: int, times: int, chance: float, asked: float | None) -> None:
    retries = Retries(times, random=lambda: chance)
    wait = retries.wait(failures, asked)
    if failures > times or (asked or 0) > 60:
        assert wait is None
    else:
        assert wait is not None
        assert 0 <= wait <= (8 if asked is None else 60)
        assert asked is None or wait == asked


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_header_of_a_provider_breaks_the_reading_of_it(seconds: str, millis: str) -> None:
    found = retry_after_seconds({"retry-after": seconds, "retry-after-ms": millis}, NOW)
    assert found is None or found >= 0


@given(st.integers(631_152_000, 7_000_000_000), st.integers(-12, 12))
def test_a_date_in_any_zone_is_read(when: int, hours: int) -> None:
    dated = datetime.fromtimestamp(when, timezone(timedelta(hours=hours)))
    assert retry_after_seconds({"retry-after": format_datetime(dated)}, NOW) == max(0.0, when - NOW)


# Time limits


def hangs() -> Coroutine[Any, Any, None]:
    return asyncio.sleep(1e9)


def test_everything_together_has_a_limit() -> None:
    found, took = asks(Provider(hangs), timeout=Timeouts(total=20))
    assert (str(found), round(took)) == ("openai_chat: the request timed out", 20)
    provider = Provider(after(9, refused(503, retry_after="4")))
    found, took = asks(provider, timeout=Timeouts(total=20), retries=Retries(9))
    assert (len(provider.asked), round(took)) == (2, 20), "9 to be refused, 4 to wait, and 7 of the second attempt"
    assert str(found) == "openai_chat: the request timed out"


def test_it_does_not_wait_when_the_wait_would_outlast_the_limit() -> None:
    provider = Provider(refused(429, retry_after="30"))
    found, took = asks(provider, timeout=Timeouts(total=20))
    assert (found.retry_after, took < 1) == (30_000, True)


@each_wire
def test_silence_in_the_middle_of_an_answer_has_a_limit(wire: Wire) -> None:
    def silent() -> httpx.Response:
        return wire.flowing([*wire.chunks("Hmmmm", [])[:3], hangs])

    async def scenario() -> Any:
        with pytest.raises(StreamCut, match="the response timed out") as cut:
            await read(wire.make(Provider(silent), timeout=5).stream("go"))
        return cut.value

    error, took = virtually(scenario)
    assert 5 <= took < 6
    assert error.reply.text in {"H", "Hmm"}


def test_pieces_that_dribble_in_for_ever_end_at_the_limit_for_all() -> None:
    dribbling = httpx.Response(200, stream=Pieces(slowly([b" "] * 1000, 4)))
    found, took = asks(Provider(dribbling), timeout=Timeouts(read=5, total=60))
    assert str(found) == "openai_chat: the response timed out"
    assert 60 <= took < 61


def test_a_slow_stream_that_never_falls_silent_may_take_its_time() -> None:
    events, took = streams(CHAT, slowly(CHAT.chunks("abcdefgh", []), 50))
    assert events[-1].reply.text == "abcdefgh"
    assert 400 <= took < 460  # eight pieces, and the end mark; what comes after it is not waited for so long


@each_wire
def test_a_server_that_keeps_the_connection_open_after_the_end_mark_is_not_waited_for(wire: Wire) -> None:
    if wire.name == "gemini":  # its finish reason may come early: only the end of the body says that nothing follows
        with pytest.raises(StreamCut):
            streams(wire, [*wire.chunks("Hm", []), hangs])
        return
    events, took = streams(wire, [*wire.chunks("Hm", []), hangs])
    assert events[-1].reply.text == "Hm"
    assert took < 6


def test_what_comes_after_an_end_mark_is_read_as_well() -> None:
    """Servers are known that say STOP in every piece."""
    gemini = next(wire for wire in WIRES if wire.name == "gemini")
    parts = [{"content": {"role": "model", "parts": [{"text": letter}]}, "finishReason": "STOP"} for letter in "abcdef"]
    events, took = streams(gemini, slowly(sse(*({"candidates": [part]} for part in parts)), 4))
    assert events[-1].reply.text == "abcdef"
    assert 24 <= took < 25


def test_the_consumer_of_a_stream_is_never_cancelled_by_its_time_limits() -> None:
    async def scenario() -> list[str]:
        seen: list[str] = []
        client = CHAT.make(Provider(CHAT.streamed("ab")), timeout=Timeouts(read=5, total=600))
        async for event in client.stream("go"):
            await asyncio.sleep(100)
            seen.append(type(event).__name__)
        return seen

    seen, took = virtually(scenario)
    assert seen == ["TextDelta", "TextDelta", "Done"]
    assert took >= 300


def test_no_limit_means_none() -> None:
    found, took = asks(Provider(after(1e6, lambda: CHAT.whole("yes"))), timeout=None)
    assert found.text == "yes"
    assert took >= 1e6


@pytest.mark.parametrize("wrong", [0, -1, Timeouts.__new__(Timeouts)], ids=["zero", "negative", "unset"])
def test_limits_that_mean_nothing_are_refused(wrong: Any) -> None:
    if isinstance(wrong, Timeouts):
        with pytest.raises(RegistrationError):
            Timeouts(total=0)
        with pytest.raises(RegistrationError):
            Retries(-1)
        return
    with pytest.raises(RegistrationError):
        CHAT.make(timeout=wrong)


def test_a_number_of_seconds_is_for_silence_and_stretches_the_limit_for_all() -> None:
    assert Timeouts.of(5) == Timeouts(5, 5, 600)
    assert Timeouts.of(3600) == Timeouts(10, 3600, 3600)
    assert Timeouts.of(None) == Timeouts(None, None, None)


async def test_the_key_is_read_anew_for_each_request_and_once_for_all_its_attempts() -> None:
    keys = iter(["key-1", "key-2"])
    sent: list[str] = []

    def provider(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(503) if len(sent) == 1 else CHAT.whole("yes")

    client = CHAT.make(provider, api_key=lambda: next(keys), retries=quick())
    await client.reply("go")
    await client.reply("go")
    assert sent == ["Bearer key-1", "Bearer key-1", "Bearer key-2"]
    assert KEY not in "".join(sent)
    assert isinstance(await failure(CHAT.make(provider, api_key=lambda: 7).reply("go")), ModelError)
