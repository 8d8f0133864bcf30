"""What clients are told, as parts of A2A messages: calls, what is waited for, results. Handles are never among it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from callgate.runtime.hosts.a2a.integers import as_sent
from callgate.runtime.models.wire.result_text import result_text
from callgate.runtime.suspensions.pending import Wanted
from callgate.tools.calls import ToolResult
from callgate.tools.values import dump


def message_parts(text: str) -> list[Any]:
    """A text as parts."""
    from a2a.types import Part

    return [Part(text=text)]


def data_part(value: Any) -> Any:
    """JSON as a data part; as text where protobuf cannot carry it, such as for its depth."""
    from a2a.helpers import new_data_part
    from a2a.types import Part

    try:
        return new_data_part(as_sent(value), media_type="application/json")
    except Exception:  # noqa: BLE001  (protobuf raises of everything here; the JSON is sound)
        return Part(text=dump(value).decode(), media_type="application/json")


def wanted_parts(wanted: Iterable[Wanted]) -> list[Any]:
    """What a task waits for: a text for people, then data for each call."""
    wanted = list(wanted)
    return [*message_parts("\n".join(one.prompt for one in wanted)), *(data_part(_wanted(one)) for one in wanted)]


def shows(task: Any, wanted: Iterable[Wanted]) -> bool:
    """Whether what a task says is what it waits for."""
    from a2a.helpers import get_data_parts

    return get_data_parts(task.status.message.parts) == get_data_parts(wanted_parts(wanted))


def _wanted(one: Wanted) -> dict[str, Any]:
    told: dict[str, Any] = {"id": one.call_id, "name": one.tool, "expires_at": one.expires_at}
    if one.kind == "client_tool":
        return {"type": "tool_call", **told, "arguments": one.arguments or {}}
    if one.kind in ("approval", "consent"):
        return {"type": one.kind, **told, "prompt": one.prompt}
    return {"type": "input", **told, "kind": one.kind, "prompt": one.prompt, "schema": one.schema}


def call_parts(result: ToolResult) -> list[Any]:
    """The result of a call, or why there is none."""
    return [data_part(call_result(result))]


def call_result(result: ToolResult) -> dict[str, Any]:
    """A result as data."""
    told: dict[str, Any] = {"type": "tool_result", "id": result.call_id, "name": result.tool}
    return told | ({"result": result.output} if result.ok else json.loads(result_text(result)))
