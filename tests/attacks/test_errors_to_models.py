"""A careless author whose validators write values into their errors: no model and no client reads them.

The text of an exception has the value backwards, and an internal one: so an echo of the arguments is no finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NoReturn

import pydantic
import pytest
from pydantic_core import PydanticCustomError, PydanticKnownError

import callgate
import callgate.mcp
from callgate import Effects, Gate, Invalid, User, codec, converse, tool
from callgate.runtime.hosts.a2a import agent
from callgate.tools.arguments import conversion
from callgate.tools.schemas.engines.fast import FastEngine
from tests.attacks.fuzz_hosts import VERSION, exchange, http
from tests.runtime.conversation.conversing import FakeModel, asks, call, says, told
from tests.runtime.models.wires import WIRES

ANN = User("ann")
GIVEN, OWNER = "hunter2", "of Bob"
FOUND = ("2retnuh", OWNER)
CODES = ("invalid_arguments", "hook_failed", "instantiate")
FAST = "in process, fastjsonschema"
Check = Callable[[str], None]


def text_of(value: str) -> str:
    """What an author writes into an error."""
    return f"{value[::-1]} is {OWNER}"


class Raising(ValueError):
    """An error whose text for the model cannot be read."""

    @property
    def public(self) -> NoReturn:
        raise RuntimeError(self.args[0])


class Unprintable(ValueError):
    """An error without a text."""

    def __str__(self) -> NoReturn:
        raise RuntimeError(self.args[0])


def asserting(value: str) -> None:
    """Fail as a statement does."""
    assert not value, text_of(value)


def raising(make: Callable[[str], Exception]) -> Check:
    """A check that raises such an error."""

    def check(value: str) -> None:
        if value == GIVEN:
            raise make(text_of(value))

    return check


def formatted(text: Any) -> Exception:
    """The error with a value in its template, of which pyright allows literals only."""
    return PydanticCustomError("owner", text)


CHECKS: dict[str, Check] = {
    "ValueError": raising(ValueError),
    "AssertionError": raising(AssertionError),
    "assert": asserting,
    "PydanticCustomError with a context": raising(lambda text: PydanticCustomError("x", "text {v}", {"v": text})),
    "PydanticCustomError with a formatted text": raising(formatted),
    "PydanticKnownError": raising(lambda text: PydanticKnownError("string_pattern_mismatch", {"pattern": text})),
    "Invalid": raising(Invalid),
    "KeyError": raising(KeyError),
    "OSError": raising(OSError),
    "a public text that raises": raising(Raising),
    "a text that raises": raising(Unprintable),
    "ExceptionGroup": raising(lambda text: ExceptionGroup(text, [ValueError(text)])),
    "an error with a cause": raising(lambda text: _caused(ValueError("no"), text)),
}
SPEAKING = {"ValueError", "AssertionError", "assert", "PydanticCustomError with a formatted text"}
"""Errors whose text pydantic shows in its own message."""


def _caused(error: Exception, text: str) -> Exception:
    error.__cause__ = KeyError(text)
    return error


def parameter(check: Check) -> Any:
    """A parameter with the check."""

    def checked(value: str) -> str:
        check(value)
        return value

    return Annotated[str, pydantic.AfterValidator(checked)]


def model(check: Check) -> Any:
    """A model with the check."""

    class Order(pydantic.BaseModel):
        code: str

        @pydantic.model_validator(mode="after")
        def _checked(self) -> Order:
            check(self.code)
            return self

    return Order


def record(check: Check) -> Any:
    """A dataclass with the check."""

    @dataclasses.dataclass
    class Order:
        code: str

        def __post_init__(self) -> None:
            check(self.code)

    return Order


PLACES: dict[str, tuple[Callable[[Check], Any], Any]] = {
    "a parameter": (parameter, GIVEN),
    "a list": (lambda check: list[parameter(check)], [GIVEN]),  # type: ignore[misc]
    "a model": (model, {"code": GIVEN}),
    "a dataclass": (record, {"code": GIVEN}),
}


def gate_of(kind: Any, validator: FastEngine | None) -> Gate:
    """A gate with one tool that takes such an order."""

    async def pay(order: Any) -> int:
        """Pay."""
        return 1

    pay.__annotations__["order"] = kind
    return Gate(
        [tool(effect="read")(pay)], allow_unguarded=True, effects=Effects(durable=False), signing_keys=["k" * 32]
    )


async def in_process(gate: Gate, given: Any) -> str:
    """What a caller in the process reads, and what the codec of each wire hands to its model."""
    result = await gate.call("pay", {"order": given}, user=ANN)
    assert not result.ok
    with pytest.raises(Exception) as raised:
        await gate.invoke("pay", {"order": given}, user=ANN)
    shown = [codec(wire).results([result]) for wire in WIRES]
    return f"{result.error} {getattr(raised.value, 'public', '')} {shown}"


async def in_a_conversation(gate: Gate, given: Any) -> str:
    """What the model reads."""
    script = FakeModel(asks(call("c", "pay", order=given)), says("Sorry."))
    await converse(script, gate, "Pay.", user=ANN)
    return f"{told(script.seen[-1][0])}"


async def over_http(gate: Gate, given: Any) -> str:
    """The answer over HTTP, and its stream."""
    app = callgate.asgi(gate, authenticate=lambda _: ANN)
    return f"{[await exchange(app, http(f'/tools/pay{end}', {'order': given})) for end in ('', '/stream')]}"


async def over_mcp(gate: Gate, given: Any) -> str:
    """The answer of an MCP server."""
    meta = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"_meta": meta, "name": "pay", "arguments": {"order": given}}
    headers = {"accept": "application/json, text/event-stream", "mcp_protocol_version": VERSION}
    app = callgate.mcp.server(gate, name="desk", authenticate=lambda _: ANN).asgi()
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with app.lifespan():
        return f"{await exchange(app, http('/mcp', body, mcp_method='tools/call', mcp_name='pay', **headers))}"


async def over_a2a(gate: Gate, given: Any) -> str:
    """The answer of an A2A agent."""
    app = agent(gate, authenticate=lambda _: ANN, name="desk", description="A desk.", url="http://desk.test")
    parts = [{"data": {"type": "tool_call", "name": "pay", "arguments": {"order": given}}}]
    params = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": parts}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    return f"{await exchange(app, http('/rpc', body, a2a_version='1.0'))}"


WAYS: dict[str, Callable[[Gate, Any], Awaitable[str]]] = {
    "in process": in_process,
    FAST: in_process,
    "conversation": in_a_conversation,
    "HTTP": over_http,
    "MCP": over_mcp,
    "A2A": over_a2a,
}


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control that shows pydantic's text"])
@pytest.mark.parametrize("way", WAYS)
async def test_no_text_of_a_validator_reaches_a_model_or_a_client(
    way: str, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: errors for the model have code, pointer and expected type; no values, and no text of an exception."""
    if not guarded:
        monkeypatch.setattr(conversion, "_public", lambda item: item["msg"])
    leaking, tried = set[str](), 0
    names = CHECKS.keys() if guarded else SPEAKING
    for name in names:
        for kind, given in PLACES.values():
            async with gate_of(kind(CHECKS[name]), FastEngine() if way == FAST else None) as gate:
                shown = await WAYS[way](gate, given)
            assert any(code in shown for code in CODES), shown
            tried += 1
            if any(part in shown for part in FOUND):
                leaking.add(name)
    assert tried == len(names) * len(PLACES)
    assert leaking == (set() if guarded else SPEAKING)
