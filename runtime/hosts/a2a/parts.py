"""Message parts of A2A: texts, suspended calls and results. A handle is never sent to a client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from callgate.providers.content_json import decoded, digested, with_data
from callgate.runtime.hosts.a2a.integers import encode_integers
from callgate.runtime.models.wire.result_text import result_text, told_arguments
from callgate.runtime.suspensions.pending import Wanted
from callgate.tools.calls import ToolResult
from callgate.tools.values import dump

if TYPE_CHECKING:
    from a2a.types import Part, Task


def text_parts(text: str) -> list[Part]:
    """Convert a text to parts."""
    from a2a.types import Part

    return [Part(text=text)]


def data_part(value: object) -> Part:
    """Convert JSON to a data part, or to a text part if protobuf cannot hold it, for example because of its depth."""
    from a2a.helpers import new_data_part
    from a2a.types import Part

    try:
        return new_data_part(encode_integers(value), media_type="application/json")
    except Exception:  # noqa: BLE001  (protobuf raises exceptions of many types; the JSON is valid)
        return Part(text=dump(value).decode(), media_type="application/json")


def pending_parts(wanted: Iterable[Wanted]) -> list[Part]:
    """Convert the suspended calls of a task: a text for people, then one data part for each call."""
    wanted = list(wanted)
    return [*text_parts("\n".join(one.prompt for one in wanted)), *(data_part(_pending_data(one)) for one in wanted)]


def shows_pending(task: Task, wanted: Iterable[Wanted]) -> bool:
    """Tell whether the status of a task shows these suspended calls."""
    from a2a.helpers import get_data_parts

    return get_data_parts(task.status.message.parts) == get_data_parts(pending_parts(wanted))


def _pending_data(one: Wanted) -> dict[str, object]:
    data: dict[str, object] = {"id": one.id, "name": one.tool, "expires_at": one.expires_at}
    if one.kind == "client_tool":
        return {"type": "tool_call", **data, "arguments": one.arguments or {}}
    if one.kind in ("approval", "consent"):
        return {"type": one.kind, **data, "prompt": one.prompt}
    return {"type": "input", **data, "kind": one.kind, "prompt": one.prompt, "schema": one.schema}


def result_parts(result: ToolResult) -> list[Part]:
    """Convert the result or the error of a call to parts: the data, and one part for each content block with data."""
    blocks = [*with_data(result.output)] if result.ok else []
    return [data_part(result_data(result)), *map(_content_part, blocks)]


def _content_part(block: Mapping[str, Any]) -> Part:
    from a2a.types import Part

    return Part(raw=decoded(block["data"]), media_type=block["mimeType"], filename=block.get("name"))


def result_data(result: ToolResult) -> dict[str, object]:
    """Convert a result to JSON. A content block with data is its digest: the data is a part of its own."""
    data: dict[str, object] = {"type": "tool_result", "id": result.call_id, "name": result.tool}
    if not result.ok:
        shown: dict[str, object] = json.loads(result_text(result))
        return data | shown
    return (
        data
        | {"result": digested(result.output)}
        | ({} if result.ran_with is None else {"ran_with": told_arguments(result)})
    )
