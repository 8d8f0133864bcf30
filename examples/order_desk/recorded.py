"""``--input FILE``: a recorded exchange with a provider, run through a gate with the recorded tools.

A recording has no code of the tools, so a stub runs in the place of each. Everything before the stub is real: the
wire's codec reads the response, the gate admits the recorded schemas as untrusted schemas, and it parses and validates
each call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callgate import Effects, Gate, RegistrationError, ToolDefinition, ToolRecord, User, codec
from callgate.models import Done, WireError, codecs
from examples.order_desk.exchange import exchange
from examples.order_desk.report import Report
from examples.order_desk.trouble import Trouble, shown

STAND_IN = "recorded tools are not executed: a stand-in answers"
MAX_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Recording:
    """One exchange: the tools of a request and the model's response."""

    name: str
    wire: str
    status: Any
    offered: list[Any]
    response: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)


def read_recording(path: Path) -> Recording:
    """Read a file in the form of ``recordings/*/*.json``.

    Raises:
        Trouble: the file is invalid; the message says why.
    """
    name = shown(path)
    data = _json(path, name)
    if not isinstance(data, dict) or not isinstance(data.get("provider"), str):
        raise Trouble(
            f"{name} is no recorded exchange: an object with `provider`, `request` and `response` is expected"
        )
    wire = data["provider"]
    try:
        codec(wire)
    except WireError:
        raise Trouble(f"{name} was recorded from '{shown(wire)}'; there are codecs for {', '.join(codecs())}") from None
    notes: list[str] = []
    response = _answer(data, wire, notes)
    if not isinstance(response, dict):
        raise Trouble(f"{name} has no `response` that is a JSON object, and no `response_sse` or `response_ndjson`")
    request = data.get("request")
    if not isinstance(request, dict):
        request = {}
        notes.append("the recording keeps no request: no tool is known, so every call is refused as unknown")
    return Recording(shown(data.get("case", path.stem)), wire, data.get("status"), _offered(request), response, notes)


def _answer(data: Mapping[str, Any], wire: str, notes: list[str]) -> Any:
    """Return the whole response; a stream is joined into one."""
    streamed = data.get("response_sse", data.get("response_ndjson"))
    if not isinstance(streamed, str):
        return data.get("response")
    decoder = codec(wire).decoder()
    events = [*decoder.feed(streamed.encode("utf-8", "replace")), *decoder.end()]
    cut = "" if decoder.ended else ", which breaks off: its calls are refused"
    notes.append(f"a stream of {len(streamed):,} characters and {len(events)} events{cut}")
    return next(dict(event.reply.body) for event in events if isinstance(event, Done))


def _json(path: Path, name: str) -> Any:
    try:
        if path.is_dir():
            raise Trouble(f"{name} is a directory; name one file in it")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise Trouble(f"there is no file {name}") from None
    except (OSError, ValueError) as error:
        raise Trouble(f"{name} cannot be read: {shown(getattr(error, 'strerror', None) or error)}") from error
    if len(raw) > MAX_BYTES:
        raise Trouble(f"{name} is larger than {MAX_BYTES // 1024**2} MiB")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Trouble(f"{name} is not JSON: {shown(error)}") from error


def _offered(request: Mapping[str, Any]) -> list[Any]:
    """Return the tools of a request. Older Chat Completions requests name them ``functions``; Gemini groups them."""
    lists = [request.get("tools"), request.get("functions")]
    tools = [tool for some in lists if isinstance(some, list) for tool in some]
    return [one for tool in tools for one in _declared(tool)]


def _declared(tool: Any) -> list[Any]:
    group = tool if isinstance(tool, dict) else {}
    declared = group.get("functionDeclarations", group.get("function_declarations"))
    if not isinstance(declared, list):
        return [tool]
    return [_as_json_schema(one) if isinstance(one, dict) else one for one in declared]


def _as_json_schema(declared: dict[str, Any]) -> dict[str, Any]:
    """Convert a Gemini schema: ``STRING`` becomes ``string``, and the schema may be in another field."""
    schema = declared.get("parametersJsonSchema", declared.get("parameters", {"type": "object"}))
    return {"name": declared.get("name"), "description": declared.get("description", ""), "parameters": _small(schema)}


def _small(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_small(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    lower = {"type": kind.lower()} if isinstance(kind, str) else {}
    return {key: _small(value) for key, value in schema.items() if key != "propertyOrdering"} | lower


def records(recording: Recording) -> Iterator[ToolRecord]:
    """Make a stub for each tool. An invalid tool is noted, and calls of it end as unknown tool."""
    for offered in recording.offered:
        try:
            yield ToolRecord(ToolDefinition.from_dict(_plain(offered)), stand_in, trusted=False)
        except RegistrationError as error:
            recording.notes.append(f"not registered: {shown(error)}")


def _plain(offered: Any) -> Any:
    """Normalise a tool: Anthropic may write `custom` for `function`, and some clients send empty texts."""
    if not isinstance(offered, dict):
        return offered
    custom = offered.get("type") == "custom" and "input_schema" in offered
    plain = {key: value for key, value in offered.items() if value != "" and not (custom and key == "type")}
    if isinstance(plain.get("function"), dict):
        plain["function"] = {key: value for key, value in plain["function"].items() if value != ""}
    return plain


async def stand_in(_arguments: dict[str, Any], _ctx: Any) -> str:
    """Run in the place of a tool whose code is unavailable."""
    return STAND_IN


async def replay(recording: Recording, report: Report) -> None:
    """Send the recorded response to a gate with its tools, and report."""
    gate = Gate(
        allow_unguarded=True, effects=Effects(durable=False), deadline=5
    )  # only stubs run, so the gate needs no authorisation and no durable record
    for record in records(recording):
        try:
            gate.add(record)
        except RegistrationError as error:
            recording.notes.append(f"not registered: {shown(error)}")
    async with gate:
        done = await exchange(gate, recording.wire, recording.response, User("recorded"), trace=True)
    report.recording(recording.name, recording.wire, recording.status, STAND_IN)
    report.tools(gate)
    report.notes(recording.notes)
    report.calls([(done.passed, None)])
    if done.passed:
        report.trace(done.passed[0])
        report.messages(recording.wire, done.messages)
    report.summary(done.passed)
