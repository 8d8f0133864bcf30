"""Clients ask in their wire's words and read the answer by its codec; they run nothing (contract 53-57, 61, C10)."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import zlib
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

import callgate
import callgate.errors
import callgate.models
from callgate import DefinitionError, Gate, RegistrationError, ToolCall, ToolRegistry, User, tool
from callgate.errors import StreamCut
from callgate.models import successes
from callgate.runtime.models.wire.reply import CallDelta, CallReady, Done, TextDelta
from callgate.tools.arguments.hydration import HydrationResult
from tests.runtime.models.providers import (
    CHAT,
    CITY,
    KEY,
    WEATHER,
    WIRES,
    Pieces,
    Recorder,
    Wire,
    call,
    each_wire,
    failure,
    read,
)

each_form = pytest.mark.parametrize("form", ["registry", "gate", "bound", "tools", "definitions"])
RAN: list[str] = []


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather in a city."""
    RAN.append(city)
    return "sun"


def brief(results: list[HydrationResult]) -> list[tuple[str, bool, Any]]:
    return [(result.call.name, result.success, result.arguments) for result in results]


def asked_of(calls: Iterable[ToolCall]) -> list[tuple[str, Any]]:
    """Names and arguments, the latter parsed where they came as text."""
    given = ((one.name, one.arguments) for one in calls)
    return [(name, json.loads(value) if isinstance(value, str) else value) for name, value in given]


# Translate, dispatch, hydrate


@each_wire
async def test_tool_call_translates_dispatches_and_hydrates(wire: Wire) -> None:
    """Contract 53, 55, 57, C3, C10."""
    provider = Recorder(lambda _: wire.whole("", call(), call(arguments={"city": 7})))
    async with wire.make(provider) as client:
        good, bad = await client.tool_call("What is the weather in Porto?", [get_weather])
    (request,) = provider.requests
    assert str(request.url) == f"https://provider.example/v1/{wire.path}"
    assert request.headers[wire.key_header] == wire.key_value
    assert request.headers["content-type"] == "application/json"
    assert wire.tool_name(json.loads(request.content)) == "get_weather"
    assert "What is the weather in Porto?" in request.content.decode()
    assert (good.success, good.arguments, good.provenance.wire) == (True, {"city": "Porto"}, wire.name)
    assert (bad.success, bad.errors[0].stage) == (False, "validate")
    assert RAN == []


@each_wire
async def test_a_call_that_is_no_good_is_a_failed_result_and_raises_nothing(wire: Wire) -> None:
    """Contract 47, 49, 53, C10, C10a."""
    calls = [call("rm_rf"), call(), call("", {"x": 1}), call(arguments={}), call("get_weather", [1])]
    client = wire.make(lambda _: wire.whole("", *calls))
    results = await client.tool_call("go", [WEATHER])
    assert [result.success for result in results] == [False, True, False, False, False]
    assert successes(results) == [results[1]]
    assert results[0].errors[0].detail == {"code": "unknown_tool"}
    assert [result.errors[0].stage for result in results if not result.success] == [
        "instantiate",
        "instantiate",
        "validate",
        "validate",
    ]
    await client.aclose()


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]", "{'city': NaN}", '{"city": "x", "city": "y"}', "```{}```"])
async def test_arguments_that_are_no_json_are_failed_results(arguments: str) -> None:
    """Contract 45-47, 61, C10d."""
    client = CHAT.make(lambda _: CHAT.whole("", call(arguments=arguments)))
    (result,) = await client.tool_call("go", [WEATHER])
    assert not result.success
    assert result.provenance.original_raw_args == arguments


@each_form
@each_wire
async def test_tools_come_in_every_form_that_a_caller_has(wire: Wire, form: str) -> None:
    """Contract 50, 57."""
    gate = Gate(tools=[get_weather])
    async with gate, gate.session("s", user=User("u1")) as bound:
        forms: dict[str, Any] = {
            "registry": ToolRegistry([get_weather]),
            "gate": gate,
            "bound": bound,
            "tools": [get_weather],
            "definitions": [WEATHER],
        }
        client = wire.make(lambda _: wire.whole("", call(), call("other")))
        results = await client.tool_call("go", forms[form])
        assert brief(results) == [("get_weather", True, {"city": "Porto"}), ("other", False, None)]
        assert (await client.reply("go", forms[form])).calls[0].arguments is not None


async def test_what_a_gate_s_client_hydrates_the_gate_runs_without_reading_it_again() -> None:
    """Contract 53, 55; design 10.2."""
    async with Gate(tools=[get_weather]) as gate:
        (hydrated,) = await CHAT.make(lambda _: CHAT.whole("", call())).tool_call("go", gate)
        record = gate.registry.get("get_weather")
        assert hydrated.vouched_for(record.definition, gate._plans.of("get_weather").builtins.arguments)
        assert "provenance" not in vars(hydrated), "the provenance is computed on demand only"
        RAN.clear()
        assert (await gate.call(hydrated)).output == "sun"
        assert RAN == ["Porto"]
        RAN.clear()


async def test_a_tool_that_the_user_may_not_see_is_neither_offered_nor_hydrated() -> None:
    """Contract C10a, C29."""
    sent: list[dict[str, Any]] = []

    @tool(effect="read", allowed_roles=["admin"])
    async def purge() -> str:
        """Remove all."""
        return "gone"

    def provider(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return CHAT.whole("", call("purge", {}))

    async with Gate(tools=[get_weather, purge]) as gate:
        client = CHAT.make(provider)
        (hidden,) = await client.tool_call("go", gate, user=User("u1"))
        (shown,) = await client.tool_call("go", gate, user=User("root", roles=("admin",)))
    assert [len(body["tools"]) for body in sent] == [1, 2]
    assert hidden.errors[0].detail == {"code": "unknown_tool"}
    assert shown.success


@each_wire
async def test_a_translation_made_before_is_sent_as_it_is(wire: Wire) -> None:
    """Contract 50, 60."""
    sent: list[dict[str, Any]] = []

    def provider(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return wire.whole("", call())

    client = wire.make(provider)
    translation = client.codec.translate([WEATHER])
    reply = await client.reply("go", translation)
    assert [one.name for one in reply.calls] == ["get_weather"]
    assert sent[0]["tools"] == translation.request["tools"]
    with pytest.raises(TypeError, match="cannot check calls"):
        await client.tool_call("go", translation)
    assert len(sent) == 1


async def test_tools_that_cannot_be_offered_are_refused_before_anything_is_sent() -> None:
    """Contract 13, 19, 30."""
    asked: list[Any] = []
    client = CHAT.make(asked.append)
    with pytest.raises(DefinitionError, match="Duplicate tool names: get_weather"):
        await client.reply("go", [get_weather, WEATHER])
    outside = callgate.ToolDefinition("far", "Refers to another document.", {"$ref": "https://far.example/s.json"})
    with pytest.raises(callgate.errors.SchemaRefused):
        await client.tool_call("go", [outside])
    with pytest.raises(TypeError):
        await client.reply("go", [object()])
    assert asked == []


async def test_a_tool_is_translated_once_however_often_it_is_offered() -> None:
    made: list[int] = []
    client = CHAT.make(lambda _: CHAT.whole("yes"))
    translate = client.codec.translate

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(client.codec, name)

        def translate(self, definitions: Any) -> Any:
            made.append(len(definitions))
            return translate(definitions)

    codec: Any = Counting()
    client._translator._codec = codec
    for _ in range(5):
        await client.reply("go", [get_weather])
        await client.reply("go", [get_weather, WEATHER.__class__("b", "Another.", CITY)])
    assert made == [1, 2, 2, 2, 2, 2]  # the second definition is a new one each time


async def test_a_repairer_is_asked_once_and_what_it_makes_is_not_trusted() -> None:
    """Contract 49, C10c."""
    client = CHAT.make(lambda _: CHAT.whole("", call(arguments={"town": "Porto"})))
    (result,) = await client.tool_call("go", [WEATHER], repair=lambda *_: {"city": "Porto"})
    assert result.success
    assert not result.trusted


# Whole answers and streams


@each_wire
async def test_an_answer_says_the_same_in_one_piece_and_streamed(wire: Wire) -> None:
    """Contract 46, 61."""
    asked: list[str] = []

    def provider(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        streams = json.loads(request.content).get("stream") or "stream" in str(request.url)
        return (wire.streamed if streams else wire.whole)("Look: ", call(), call(arguments={"city": "Faro"}))

    client = wire.make(provider)
    reply = await client.reply("go", [WEATHER])
    events = await read(client.stream("go", [WEATHER]))
    done = events[-1]
    assert isinstance(done, Done)
    assert done.reply.text == reply.text == "Look: "
    assert asked_of(done.reply.calls) == asked_of(reply.calls)
    assert [event.call for event in events if isinstance(event, CallReady)] == list(done.reply.calls)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == reply.text
    assert any(isinstance(event, CallDelta) for event in events)
    assert asked[1] == f"https://provider.example/v1/{wire.stream_path}"


@each_wire
async def test_a_stream_that_ends_too_early_is_cut_and_no_call_of_it_is_ready(wire: Wire) -> None:
    """Contract 47, C10."""
    chunks = wire.chunks("Hm", [call()])
    for kept in range(len(chunks) - 1):
        body = Pieces(chunks[:kept])
        client = wire.make(
            lambda _, body=body: httpx.Response(200, headers={"content-type": wire.media}, stream=body)  # type: ignore[misc]
        )
        events: list[Any] = []
        with pytest.raises(StreamCut) as cut:
            events.extend([event async for event in client.stream("go", [WEATHER])])
        assert cut.value.reply.truncated
        assert all(one.truncated for one in cut.value.reply.calls)
        assert not [event for event in events if isinstance(event, CallReady | Done)]
        assert cut.value.provider == wire.name
        assert cut.value.public == "The model's answer broke off."
        assert body.closed


@each_wire
async def test_a_connection_that_breaks_after_the_end_mark_has_lost_nothing(wire: Wire) -> None:
    pieces: list[Any] = [*wire.chunks("Hm", [call()]), httpx.ReadError("gone")]
    client = wire.make(lambda _: wire.flowing(pieces))
    if wire.name == "gemini":  # it has no mark after which nothing follows
        with pytest.raises(StreamCut):
            await read(client.stream("go", [WEATHER]))
        return
    events = await read(client.stream("go", [WEATHER]))
    assert isinstance(events[-1], Done)
    assert len([event for event in events if isinstance(event, CallReady)]) == 1


@each_wire
async def test_an_answer_in_one_piece_to_a_request_for_a_stream_is_taken(wire: Wire) -> None:
    client = wire.make(lambda _: wire.whole("Hm", call()))
    events = await read(client.stream("go", [WEATHER]))
    assert [type(event) for event in events] == [TextDelta, CallReady, Done]


@each_wire
async def test_a_stream_that_calls_itself_plain_json_is_taken_as_well(wire: Wire) -> None:
    body = Pieces(wire.chunks("Hm", [call()]))
    client = wire.make(lambda _: httpx.Response(200, headers={"content-type": "application/json"}, stream=body))
    events = await read(client.stream("go", [WEATHER]))
    assert isinstance(events[-1], Done)
    assert [event.call.name for event in events if isinstance(event, CallReady)] == ["get_weather"]


@each_wire
async def test_options_model_and_headers_reach_the_provider(wire: Wire) -> None:
    provider = Recorder(lambda _: wire.whole("yes"))
    client = wire.make(provider, options={"temp": 1, "seed": 2}, headers={"X-Team": "blue", "User-Agent": "desk"})
    await client.reply("go", options={"temp": 0, "seed": None}, model="big")
    await client.reply("go")
    seen = provider.requests
    (first, second) = ({"path": request.url.path, **json.loads(request.content)} for request in seen)
    assert (first["temp"], "seed" in first, second["temp"], second["seed"]) == (0, False, 1, 2)
    assert ("big" in json.dumps(first), "big" in json.dumps(second)) == (True, False)
    assert (seen[0].headers["x-team"], seen[0].headers.get_list("user-agent")) == ("blue", ["desk"])


async def test_a_number_that_only_python_can_write_is_sent_as_it_is() -> None:
    seen: list[bytes] = []

    def provider(request: httpx.Request) -> httpx.Response:
        seen.append(request.content)
        return CHAT.whole("yes")

    await CHAT.make(provider).reply("go", options={"big": 2**80, "half": "\ud83d"})
    assert json.loads(seen[0])["big"] == 2**80


async def test_arguments_that_are_large_whole_numbers_stay_whole() -> None:
    """Contract 61."""
    wire = WIRES[2]
    body = json.dumps(wire.body("", [call(arguments={"city": 2**70})])).encode()
    (made,) = (await wire.make(lambda _: httpx.Response(200, content=body)).reply("go", [WEATHER])).calls
    assert made.arguments == {"city": 2**70}


# Addresses


@pytest.mark.parametrize(
    ("base", "asked"),
    [
        ("https://g.example", "https://g.example/{}"),
        ("https://g.example/", "https://g.example/{}"),
        ("https://g.example/v1/", "https://g.example/v1/{}"),
        ("https://g.example:8443/a/b?api-version=2025-04-01", "https://g.example:8443/a/b/{}?api-version=2025-04-01"),
        ("https://g.example/v1?a=1&b=%2F", "https://g.example/v1/{}?a=1&b=%2F"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/{}"),
        ("http://localhost:11434", "http://localhost:11434/{}"),
    ],
    ids=["bare", "slash", "path", "azure", "query", "ipv6", "localhost"],
)
@each_wire
async def test_a_base_address_keeps_its_path_and_its_query(wire: Wire, base: str, asked: str) -> None:
    seen: list[str] = []

    def provider(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(400)

    client = wire.make(provider, base_url=base)
    await failure(client.reply("go"))
    await failure(read(client.stream("go")))
    path, _, query = wire.stream_path.partition("?")
    streamed = asked.format(path)
    streamed += ("&" if "?" in streamed else "?") + query if query else ""
    assert seen == [asked.format(wire.path), streamed]


@pytest.mark.parametrize(
    "base",
    [
        "",
        "g.example",
        "ftp://g.example",
        "https://",
        "https://u:p@g.example",
        "https://g.example/#f",
        "https://g ex.org",
        "https://g.example:port",
        "https://g.example/v1?api_key=s3cr3t",
        "https://g.example?key=s3cr3t",
        "/v1",
    ],
    ids=["empty", "no-scheme", "ftp", "no-host", "user", "fragment", "blank", "port", "api-key", "key", "path"],
)
def test_an_address_that_no_client_should_use_is_refused_without_quoting_it(base: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        CHAT.make(base_url=base)
    assert "base_url" in str(refused.value)
    assert base == "" or base not in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


# What a provider does wrong


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 500, 503, 529])
@each_wire
async def test_a_status_of_failure_raises_and_tells_what_the_provider_said(wire: Wire, status: int) -> None:
    """Contract C10."""
    said = {"error": {"type": "bad", "code": "nope", "message": "No such\x1b[31m model.\nSorry"}}
    client = wire.make(lambda _: httpx.Response(status, json=said))
    for asking in (client.reply("go"), client.tool_call("go", [WEATHER]), read(client.stream("go"))):
        error = await failure(asking)
        assert (error.status, error.provider, error.code) == (status, wire.name, "model")
        assert str(error) == f"{wire.name}: it answered {status}: nope: No such [31m model. Sorry"
        assert error.public == "The model's provider did not answer."


@pytest.mark.parametrize(
    ("body", "quoted"),
    [
        (b'{"error": "model not found"}', "model not found"),
        (b'{"message": "slow down"}', "slow down"),
        (b'{"detail": [{"loc": ["body"], "msg": "missing"}]}', '{"detail": [{"loc": ["body"], "msg": "missing"}]}'),
        (b'[{"error": {"code": 400, "message": "bad key", "status": "INVALID"}}]', "INVALID: bad key"),
        (b"upstream timed out", "upstream timed out"),
        (b"<!DOCTYPE html><html><body>Bad gateway</body></html>", ""),
        (b"", ""),
        (b"\xff\xfe\x00", "��"),
        (b'"' + b"x" * 9000 + b'"', "x" * 500 + "…"),
        (b"[" * 5000, "[" * 500 + "…"),
        (b"null", "null"),
        (b"{}", "{}"),
    ],
    ids=["text", "flat", "list", "gemini", "plain", "page", "none", "binary", "long", "deep", "null", "empty"],
)
async def test_what_a_provider_says_is_quoted_in_one_bounded_line(body: bytes, quoted: str) -> None:
    client = CHAT.make(lambda _: httpx.Response(400, content=body))
    error = await failure(client.reply("go"))
    assert str(error) == f"openai_chat: it answered 400{quoted and f': {quoted}'}"


@each_wire
async def test_an_error_in_an_answer_that_looks_well_raises(wire: Wire) -> None:
    """Contract C10."""
    body: dict[str, Any] = {"error": {"message": "no credits", "code": 402, "type": "billing"}}
    if wire.name == "anthropic":
        body["type"] = "error"
    client = wire.make(lambda _: httpx.Response(200, json=body))
    error = await failure(client.reply("go"))
    assert "no credits" in str(error)
    assert error.status == 200
    assert "no credits" in str(await failure(read(client.stream("go"))))


@pytest.mark.parametrize(
    "body",
    [b"", b"<html></html>", b"[]", b'"yes"', b"{", b"\xff", b"null"],
    ids="none page list text cut binary null".split(),
)
@each_wire
async def test_an_answer_that_is_no_json_object_raises(wire: Wire, body: bytes) -> None:
    """Contract C10."""
    client = wire.make(lambda _: httpx.Response(200, content=body, headers={"content-type": "text/html; charset=x"}))
    error = await failure(client.reply("go"))
    shown = body.decode("utf-8", "replace") or "it is empty"
    assert str(error) == f"{wire.name}: the response is not a JSON object (text/html): {shown}"
    assert "text/html" in str(await failure(read(client.stream("go"))))


@each_wire
async def test_a_redirect_is_not_followed(wire: Wire) -> None:
    asked: list[str] = []

    def provider(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(307, headers={"location": "https://elsewhere.example/"})

    http = httpx.AsyncClient(transport=httpx.MockTransport(provider), follow_redirects=True)
    error = await failure(wire.make(http=http).reply("go"))
    assert asked == ["provider.example"]
    assert error.status == 307
    assert "elsewhere" not in str(error)


async def test_an_answer_is_bounded_packed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.runtime.models.wire.http.MAX_RESPONSE", 1000)
    monkeypatch.setattr("callgate.runtime.models.wire.http.MAX_STREAM", 1000)
    packed = gzip.compress(b" " * 100_000)
    double = gzip.compress(gzip.compress(b"{}"))
    long = "the response is too large"
    for content, headers, said in (
        (b" " * 1001, {}, long),
        (packed, {"content-encoding": "gzip"}, long),
        (double, {"content-encoding": "gzip, gzip"}, "unexpected content encoding"),
        (b"not packed", {"content-encoding": "gzip"}, "does not have its content encoding"),
    ):

        def provider(_: httpx.Request, content: bytes = content, headers: Any = headers) -> httpx.Response:
            return httpx.Response(200, stream=Pieces([content]), headers=headers)

        client = CHAT.make(provider)
        assert said in str(await failure(client.reply("go")))
        assert said in str(await failure(read(client.stream("go"))))
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    deflated = bare.compress(json.dumps(CHAT.body("bare", [])).encode()) + bare.flush()
    client = CHAT.make(
        lambda _: httpx.Response(200, stream=Pieces([deflated]), headers={"content-encoding": "deflate"})
    )
    assert (await client.reply("go")).text == "bare"
    fine = gzip.compress(json.dumps(CHAT.body("yes", [])).encode())
    reply = await CHAT.make(lambda _: httpx.Response(200, content=fine, headers={"content-encoding": "gzip"})).reply(
        "go"
    )
    assert reply.text == "yes"


# One client, many tasks


@each_wire
async def test_a_hundred_calls_at_once_share_one_client_and_get_their_own_answers(wire: Wire) -> None:
    waiting = asyncio.Event()
    asked = 0

    async def provider(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked == 100:
            waiting.set()
        await waiting.wait()
        city = request.content.decode().split("city-")[1].split('"')[0]
        return wire.whole("", call(arguments={"city": city}))

    async with wire.make(provider) as client:
        found = await asyncio.gather(*(client.tool_call(f"city-{number}", [WEATHER]) for number in range(100)))
    assert [result.arguments for (result,) in found] == [{"city": str(number)} for number in range(100)]


async def test_a_client_closes_its_own_http_client_and_leaves_a_given_one_open() -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: CHAT.whole("yes")))
    async with CHAT.make(http=http) as client:
        await client.reply("go")
    assert not http.is_closed
    await http.aclose()
    assert "closed" in str(await failure(client.reply("go")))
    async with CHAT.make() as own, CHAT.make() as unused:
        http = own._sender.client()
    assert http.is_closed
    assert "closed" in str(await failure(unused.reply("go")))
    assert "closed" in str(await failure(own.reply("go")))


def test_an_http_client_of_another_kind_is_refused() -> None:
    with httpx.Client() as http, pytest.raises(RegistrationError, match="not Client"):
        CHAT.make(http=http)


@each_wire
def test_each_wire_has_a_client_and_a_codec_of_one_name(wire: Wire) -> None:
    assert callgate.codec(wire.name) is wire.client.codec
    assert getattr(callgate.models, wire.client.__name__) is wire.client


def test_clients_cover_every_wire() -> None:
    assert sorted(wire.name for wire in WIRES) == list(callgate.models.codecs())


def test_importing_callgate_does_not_load_httpx_and_making_a_client_does() -> None:
    code = "import sys, callgate; a = 'httpx' in sys.modules; callgate.models.Ollama(model='m'); print(a, 'httpx' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["False", "True"]


def test_a_client_shows_where_it_asks_and_nothing_secret() -> None:
    made = CHAT.make(base_url="https://g.example/v1?tenant=t1")
    assert repr(made) == "OpenAIChat('https://g.example/v1', model='m')"
    assert KEY not in repr(vars(made))
