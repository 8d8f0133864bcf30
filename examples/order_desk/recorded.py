"""``--input FILE``: a recorded exchange with a provider, its calls fed to a gate that has the recorded request's tools.

The tools' code is not in a recording. A stand-in answers for each, and says so; everything before it is real: the
answer is read by its wire's codec, the recorded schemas are admitted as what they are, schemas from outside, and each
call is parsed and validated against them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callgate import Done, Gate, RegistrationError, ToolDefinition, ToolRecord, User, WireError, codec, codecs
from examples.order_desk.exchange import exchange
from examples.order_desk.report import Report
from examples.order_desk.trouble import Trouble, shown

STAND_IN = "recorded tools are not executed: a stand-in answers"
MAX_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Recording:
    """One exchange: what was offered to a model and what it answered."""

    name: str
    wire: str
    status: Any
    offered: list[Any]
    response: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)


def read_recording(path: Path) -> Recording:
    """Read a file in the form of ``recordings/*/*.json``.

    Raises:
        Trouble: it cannot be used; the text says why.
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
    """The answer in one piece; a stream is folded into that."""
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
    """The tools of a request; ``functions`` is what Chat Completions called them before. Gemini has them in groups."""
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
    """Gemini writes ``STRING`` where JSON Schema writes ``string``, and may have the schema under another name."""
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
    """A stand-in for each offered tool. What cannot be a tool is noted; calls of it will be unknown."""
    for offered in recording.offered:
        try:
            yield ToolRecord(ToolDefinition.from_dict(_plain(offered)), stand_in, trusted=False)
        except RegistrationError as error:
            recording.notes.append(f"not registered: {shown(error)}")


def _plain(offered: Any) -> Any:
    """A tool as the wires have it in common: `custom` is how Anthropic may spell `function`, some send empty texts."""
    if not isinstance(offered, dict):
        return offered
    custom = offered.get("type") == "custom" and "input_schema" in offered
    plain = {key: value for key, value in offered.items() if value != "" and not (custom and key == "type")}
    if isinstance(plain.get("function"), dict):
        plain["function"] = {key: value for key, value in plain["function"].items() if value != ""}
    return plain


async def stand_in(_arguments: dict[str, Any], _ctx: Any) -> str:
    """Stands for a tool whose code is somewhere else."""
    return STAND_IN


async def replay(recording: Recording, report: Report) -> None:
    """Feed the recorded answer to a gate of its own tools, and report."""
    gate = Gate(open=True, durable=False, deadline=5)  # nothing but stand-ins will run: no authoriser, no record
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
