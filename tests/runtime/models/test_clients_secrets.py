"""An API key is sent where it belongs, and shown nowhere: a canary is looked for in all that a client gives away."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from callgate import RegistrationError, configure_logging
from callgate.errors import ModelError
from callgate.runtime.models.wire.keys import Credentials
from tests.runtime.models.providers import (
    CHAT,
    KEY,
    WEATHER,
    WIRES,
    Pieces,
    Recorder,
    Wire,
    chain,
    each_wire,
    failure,
    quick,
    read,
)

CANARY = "canary"


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Everything that any logger says, at the lowest level."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s %(args)r"))
    root = logging.getLogger()
    names = ["httpx", "httpx2", "httpcore", "httpcore2", "callgate", "asyncio"]
    kept = {name: logging.getLogger(name).level for name in names} | {"": root.level}
    for name in ["", *names]:
        logging.getLogger(name).setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield said
    root.removeHandler(handler)
    for name, level in kept.items():
        logging.getLogger(name).setLevel(level)


def shown(thing: Any) -> str:
    """All that one can see of a thing without prying."""
    parts = [str(thing), repr(thing), repr(getattr(thing, "args", "")), repr(getattr(thing, "__dict__", ""))]
    parts += [repr(getattr(thing, "public", "")), repr(getattr(thing, "__notes__", ""))]
    if isinstance(thing, BaseException):
        parts.append("".join(traceback.format_exception(thing)))
        parts += [shown(one) for one in chain(thing)[1:]]
    return "\n".join(parts)


def echoing(request: httpx.Request) -> str:
    """The response of a careless provider, which repeats the key."""
    return "wrong key: " + " ".join(value for _, value in request.headers.items())


def _raise(error: type[httpx.RequestError]) -> Any:
    def provider(request: httpx.Request) -> httpx.Response:
        raise error(f"Illegal header value {echoing(request)!r}", request=request)

    return provider


PROVIDERS: dict[str, Any] = {
    "json": lambda request: httpx.Response(401, json={"error": {"message": echoing(request)}}),
    "text": lambda request: httpx.Response(403, text=echoing(request)),
    "long": lambda request: httpx.Response(400, text="x" * (490 - len("wrong key: ")) + echoing(request)),
    "well": lambda request: httpx.Response(200, json={"error": {"message": echoing(request)}, "type": "error"}),
    "page": lambda request: httpx.Response(200, text=echoing(request), headers={"content-type": KEY}),
    "redirect": lambda request: httpx.Response(302, headers={"location": f"https://x.example/?{KEY}"}),
    "cut": lambda request: httpx.Response(200, stream=Pieces([httpx.ReadError(echoing(request), request=request)])),
    "busy": lambda request: httpx.Response(503, text=echoing(request)),
    **{
        error.__name__: _raise(error)
        for error in (
            httpx.ConnectError,
            httpx.LocalProtocolError,
            httpx.RemoteProtocolError,
            httpx.ReadTimeout,
            httpx.ProxyError,
            httpx.UnsupportedProtocol,
            httpx.DecodingError,
        )
    },
}


@pytest.mark.parametrize("provider", list(PROVIDERS))
@each_wire
async def test_no_error_log_or_traceback_shows_the_key(wire: Wire, provider: str, logs: io.StringIO) -> None:
    configure_logging()
    client = wire.make(PROVIDERS[provider], headers={"X-Api-Token": f"second-{CANARY}-of-headers"})
    for asking in (client.reply("go"), client.tool_call("go", [WEATHER]), read(client.stream("go"))):
        error = await failure(asking)
        assert CANARY not in shown(error)
        assert chain(error) == [error], "httpx's error holds the request"
        assert CANARY not in shown(pickle.loads(pickle.dumps(error)))
    assert "HTTP Request" in logs.getvalue() or provider[0].isupper()
    assert CANARY not in logs.getvalue()
    assert CANARY not in shown(client) + shown(client._credentials) + shown(client._sender)


@pytest.mark.parametrize("provider", ["ReadTimeout", "empty"])
@each_wire
async def test_no_variable_that_a_debugger_would_print_shows_the_key(wire: Wire, provider: str) -> None:
    answers = {**PROVIDERS, "empty": lambda _: httpx.Response(401)}
    error = await failure(read(wire.make(answers[provider]).stream("go", [WEATHER])))
    frames = traceback.TracebackException.from_exception(error, capture_locals=True).stack
    ours = [frame for frame in frames if "/callgate/" in frame.filename]
    assert len(ours) >= 3
    assert CANARY not in "".join(str(frame.locals) for frame in ours)


async def test_the_control_an_error_of_httpx_does_show_it() -> None:
    """A proof that the test above looks where a key would be."""
    http = httpx.AsyncClient(transport=httpx.MockTransport(PROVIDERS["ConnectError"]))
    with pytest.raises(httpx.ConnectError) as raised:
        await http.post("https://provider.example", headers={"x-api-key": KEY})
    assert CANARY in shown(raised.value)
    assert CANARY in repr(raised.value.request.headers)
    with pytest.raises(ModelError) as unchained:
        try:
            raise ValueError(KEY)
        except ValueError:
            raise ModelError("no answer") from None
    assert CANARY in shown(unchained.value), "what `from None` hides hangs on all the same"


@each_wire
def test_a_client_cannot_be_copied_or_pickled(wire: Wire) -> None:
    client = wire.make()
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        for thing in (client, client._credentials):
            with pytest.raises(TypeError, match="cannot be copied or pickled") as refused:
                act(thing)
            assert CANARY not in shown(refused.value)


@pytest.mark.parametrize(
    "bad",
    [f"{KEY}\n", f"\r{KEY}", f"{KEY}\r\nX-Evil: 1", f"{KEY} ", f"{KEY}\x00", f"{KEY}é", f"{KEY}\u2028", "", "  ", "\t"],
    ids="newline return header blank nul accent separator empty blanks tab".split(),
)
@each_wire
async def test_a_key_that_cannot_be_sent_is_refused_without_quoting_it(wire: Wire, bad: str) -> None:
    with pytest.raises(RegistrationError, match="the API key") as refused:
        wire.make(api_key=bad)
    assert CANARY not in shown(refused.value)

    async def later() -> str:
        return bad

    asked: list[Any] = []
    for source in (lambda: bad, later):
        error = await failure(wire.make(asked.append, api_key=source).reply("go"))
        assert "api_key returned an invalid key" in str(error)
        assert CANARY not in str(error)
    assert asked == []


@pytest.mark.parametrize("wrong", [7, b"key", None], ids=["number", "bytes", "none"])
async def test_a_key_of_another_type_is_refused(wrong: Any) -> None:
    if wrong is not None:
        with pytest.raises(RegistrationError):
            CHAT.make(api_key=wrong)
    error = await failure(CHAT.make(lambda _: CHAT.whole("yes"), api_key=lambda: wrong).reply("go"))
    assert "not a text" in str(error)


@pytest.mark.parametrize(
    "headers",
    [{"X": f"{KEY}\n"}, {"X": "ü"}, {"": "a"}, {"X Y": "a"}, {"X:": "a"}, {"X\n": "a"}, {"X": ""}, {"X": 7}],
    ids="newline accent unnamed blank colon name-newline empty number".split(),
)
def test_a_header_that_cannot_be_sent_is_refused_without_quoting_its_value(headers: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match="header") as refused:
        CHAT.make(headers=headers)
    assert CANARY not in str(refused.value)


async def test_what_the_function_that_gives_keys_raises_is_the_application_s_own() -> None:
    class VaultDownError(Exception):
        pass

    def down() -> str:
        raise VaultDownError

    with pytest.raises(VaultDownError):
        await CHAT.make(lambda _: CHAT.whole("yes"), api_key=down).reply("go")


# Where a key goes


@each_wire
async def test_the_environment_s_key_goes_to_the_provider_s_own_address_only(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wire.variable, KEY)
    provider = Recorder(lambda _: wire.whole("yes"))
    http = httpx.AsyncClient(transport=httpx.MockTransport(provider))
    await wire.client(model="m", http=http).reply("go")
    await wire.client("https://elsewhere.example/v1", model="m", http=http).reply("go")
    own, other = provider.requests
    assert own.headers[wire.key_header] == wire.key_value
    assert str(own.url).startswith(wire.client.default_url)
    assert CANARY not in repr(list(other.headers.items()))


@each_wire
def test_without_a_key_the_provider_s_own_address_is_refused_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in wire.client.key_variables:
        monkeypatch.delenv(name, raising=False)
    if not wire.client.needs_key:
        wire.client(model="m")
        return
    with pytest.raises(RegistrationError, match=wire.variable):
        wire.client(model="m")


def test_gemini_s_other_variable_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    gemini = next(wire for wire in WIRES if wire.name == "gemini")
    assert gemini.client(model="m")._credentials.secret


@pytest.mark.parametrize("base", ["http://g.example/v1", "http://10.0.0.7:8000", "http://localhost.evil.example"])
@each_wire
def test_a_key_is_not_sent_to_another_machine_in_the_clear(wire: Wire, base: str) -> None:
    with pytest.raises(RegistrationError, match="plain http"):
        wire.make(base_url=base)
    with pytest.raises(RegistrationError, match="plain http"):
        wire.make(base_url=base, api_key=None, headers={"Api-Key": KEY})
    with pytest.raises(RegistrationError, match="plain http"):
        wire.make(base_url=base, api_key=lambda: KEY)
    wire.make(base_url=base, insecure=True)
    wire.make(base_url=base, api_key=None)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "app.localhost"])
async def test_this_machine_may_be_asked_in_the_clear(host: str) -> None:
    provider = Recorder(lambda _: CHAT.whole("yes"))
    await CHAT.make(provider, base_url=f"http://{host}:8000/v1").reply("go")
    (request,) = provider.requests
    assert str(request.url) == f"http://{host}:8000/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"


async def test_a_key_in_a_header_of_its_own_serves_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    provider = Recorder(lambda request: httpx.Response(401, text=echoing(request)))
    http = httpx.AsyncClient(transport=httpx.MockTransport(provider))
    base = "https://x.azure.example/openai/deployments/d?api-version=2024-10-21"
    client = CHAT.client(base, model="m", http=http, headers={"api-key": KEY}, retries=quick())
    error = await failure(client.reply("go"))
    (request,) = provider.requests
    assert request.headers["api-key"] == KEY
    assert "authorization" not in request.headers
    assert CANARY not in shown(error)
    assert str(request.url).endswith("/d/chat/completions?api-version=2024-10-21")


async def test_an_async_function_may_give_the_key() -> None:
    async def vault() -> str:
        return KEY

    sent: list[str] = []

    def provider(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return CHAT.whole("yes")

    await CHAT.make(provider, api_key=vault).reply("go")
    assert sent == [f"Bearer {KEY}"]


async def test_a_short_key_is_masked_in_what_a_provider_says_and_one_of_three_letters_is_not_looked_for() -> None:
    for key, masked in (("abcd", True), ("abc", False)):
        client = CHAT.make(lambda _, key=key: httpx.Response(401, text=f"no {key} here"), api_key=key)  # type: ignore[misc]
        assert (key not in str(await failure(client.reply("go")))) is masked


def test_credentials_show_only_whether_there_is_a_key() -> None:
    assert repr(Credentials(KEY, "Authorization", "Bearer ", {})) == "<credentials: a key>"
    assert repr(Credentials(None, "Authorization", "Bearer ", {})) == "<credentials: no key>"
