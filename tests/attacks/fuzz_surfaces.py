"""The other surfaces: answers of models, schemas, client tools, handles and rows of a database."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from callgate import Approve, Effects, Gate
from callgate.errors import DefinitionError, Denied, Invalid, NotPending
from callgate.runtime.models import codec
from callgate.runtime.models.wire.provider_errors import error_body_message, parse_json
from callgate.tools.client.client import ClientToolProvider
from tests.attacks.fuzz_documents import DOCUMENTS
from tests.attacks.fuzz_hosts import HOSTS
from tests.attacks.fuzz_rows import ROWS
from tests.attacks.fuzzing import Surface, Take
from tests.conftest import DATA, HAS_DATA
from tests.runtime.hosts.a2a.making import ANN, MAX, Desk
from tests.runtime.models.streaming import decode, lines, reply_of, sse
from tests.runtime.models.test_fuzz import read, translation_for
from tests.runtime.models.wires import (
    WIRES,
    chat,
    function,
    function_call,
    gemini,
    gemini_call,
    message,
    ours,
    response,
    streams,
    tool_use,
    wire_of,
)

WHOLE: dict[str, list[Any]] = {
    "openai_chat": [chat(function("f", '{"a": null, "p": {"p": null}}'), function("f", {"a": None}, "c2"))],
    "openai_responses": [
        response(function_call("f", '{"a": null}'), {"type": "reasoning", "summary": [{"text": "x"}]})
    ],
    "anthropic": [message(tool_use("f", {"a": None}), tool_use("f", {"p": {"a": None}}, "t2"), stop="max_tokens")],
    "gemini": [
        gemini({"text": "x", "thought": True}, gemini_call("f", {"a": None}), gemini_call("f", {"p": {"a": 1}}))
    ],
    "ollama": [{"message": {"tool_calls": [function("f", {"a": None})]}, "done_reason": "stop"}],
}
ERROR = {"error": {"message": "no", "type": "bad", "code": 400}}


def whole_seeds(wire: str) -> Sequence[bytes]:
    """Made answers, and the recorded ones where there are some."""
    recorded = [one["response"] for name, one in ours() if wire_of(name) == wire] if HAS_DATA else []
    return [json.dumps(one).encode() for one in (*WHOLE[wire], ERROR, *recorded)]


def stream_seeds(wire: str) -> Sequence[bytes]:
    """A made stream of the wire's framing, and the recorded ones where there are some."""
    made = lines(*WHOLE[wire]) if wire == "ollama" else sse(*WHOLE[wire], {"type": "error", **ERROR}, done=True)
    return [made, *(body for name, body, _ in streams(DATA) if wire_of(name) == wire)] if HAS_DATA else [made]


def whole(wire: str) -> Callable[[], AbstractAsyncContextManager[Take]]:
    """Whole answers of a wire, read as its client reads them; and as the body of a failed request."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncGenerator[Take]:
        reader = codec(wire)
        translation = translation_for(reader, {"get_weather"})

        async def take(data: bytes) -> bool:
            assert isinstance(error_body_message(data, str), str)
            answer = parse_json(data)
            return isinstance(answer, dict) and bool(read(reader, answer, translation))

        yield take

    return opened


def streamed(wire: str) -> Callable[[], AbstractAsyncContextManager[Take]]:
    """Streamed answers of a wire, in two pieces."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncGenerator[Take]:
        translation = translation_for(codec(wire), {"get_weather"})

        async def take(data: bytes) -> bool:
            half = len(data) // 2
            return bool(reply_of(decode(wire, (data[:half], data[half:]), translation)).calls)

        yield take

    return opened


# ---------------------------------------------------------------------- schemas from outside

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "minLength": 2, "pattern": "^[a-z]+$"},
        "b": {"type": ["integer", "null"], "minimum": 1, "multipleOf": 0.5},
        "c": {"$ref": "#/$defs/c"},
        "d": {"anyOf": [{"const": 1}, {"enum": ["x", 2.0]}, {"type": "array", "uniqueItems": True, "maxItems": 3}]},
        "e": {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False, "minProperties": 1},
    },
    "required": ["a"],
    "$defs": {"c": {"type": "array", "items": {"$ref": "#/$defs/c"}}},
    "if": {"required": ["b"]},
    "then": {"properties": {"b": {"not": {"const": 5}}}},
}


def schema_seeds() -> Sequence[bytes]:
    """A tool of a client with a value for it; with data, the tools of real MCP servers."""
    value = {"a": "ab", "b": 2, "c": [[]], "d": [1], "e": {"x": 1}}
    found = [{"schema": SCHEMA, "value": value}, {"schema": {"type": "object"}, "value": {"a": 1}}]
    if HAS_DATA:
        rows = (DATA / "mcp_tool_schemas.jsonl").read_text("utf-8").splitlines()[:200:4]
        for row in map(json.loads, rows):
            schema = next((one for key, one in row.items() if "chema" in key and isinstance(one, dict)), {})
            found.append({"schema": schema, "value": dict.fromkeys(schema.get("properties", {}), 1)})
    return [json.dumps(one).encode() for one in found]


@contextlib.asynccontextmanager
async def client_tools() -> AsyncGenerator[Take]:
    """The definition of a client's tool, and the arguments of a call of it."""

    async def take(data: bytes) -> bool:
        try:
            given = json.loads(data)
        except (ValueError, RecursionError):  # the hosts do not get so far
            return False
        both = given if isinstance(given, dict) else {}
        tool = {"name": "search", "description": "Search.", "parameters": both.get("schema", given)}
        try:
            provider = ClientToolProvider([tool], None)
        except DefinitionError:
            return False
        call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": both.get("value")}}
        checked = provider.validate_tool_arguments(call)
        return checked["valid"]

    yield take


# ---------------------------------------------------------------------- handles and cursors


_KNOWN: list[bytes] = []


@contextlib.asynccontextmanager
async def handles() -> AsyncGenerator[Take]:
    """Everything that takes a handle, a cursor or a key, in a database."""
    desk = Desk()
    gate = Gate(
        desk.tools(), store="sqlite://", allow_unguarded=True, effects=Effects(durable=False), signing_keys=["k" * 32]
    )
    async with gate:
        waiting = await gate.call("refund", {"order_id": "x", "cents": 1}, user=ANN, idempotency_key="k")
        assert waiting.pending is not None
        _KNOWN[:] = [waiting.pending.handle.encode()]

        async def take(data: bytes) -> bool:
            text = data.decode("utf-8", "surrogatepass") if data.isascii() else data.decode("utf-8", "surrogateescape")
            done = 0
            for use in (
                lambda: gate.resume(text, Approve(), approver=ANN),  # who may not
                lambda: gate.proceed(text, user=ANN),
                lambda: gate.outcome(text, user=ANN),
                lambda: gate.outcome(text, user=ANN, tool="refund"),
                lambda: gate.waits.pending(MAX, after=text),
                lambda: gate.waits.look(text, MAX),
                lambda: gate.job(text, user=ANN).status(),
            ):
                with contextlib.suppress(NotPending, Invalid, Denied):
                    await use()
                    done += 1
            return done > 0

        yield take


def handle_seeds() -> Sequence[bytes]:
    """The handle and the key of a suspended call, and an id."""
    return [*_KNOWN, b"k", b"6f8fad5b-d9cb-469f-a165-70867728950e"]


WIRE_SURFACES = tuple(
    Surface(f"{wire}, {kind}", seeds, open(wire), quick=100, soak=60_000, needs_data=kind == "streamed")
    for wire in WIRES
    for kind, seeds, open in (
        ("whole", lambda wire=wire: whole_seeds(wire), whole),
        ("streamed", lambda wire=wire: stream_seeds(wire), streamed),
    )
)
SURFACES = (
    *WIRE_SURFACES,
    *HOSTS,
    Surface("schemas", schema_seeds, client_tools, quick=100, soak=60_000),
    Surface("handles", handle_seeds, handles, quick=40, soak=20_000),
    *DOCUMENTS,
    *ROWS,
)


def sabotaged(surface: Surface, deed: Callable[[bytes], object]) -> Surface:
    """The same surface with a parser that does something else, too."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncGenerator[Take]:
        async with surface.open() as take:

            async def worse(data: bytes) -> bool:
                deed(data)
                return await take(data)

            yield worse

    return replace(surface, open=opened)
