"""What a remote agent says, read without trust: its task's state, what it asks, what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from callgate.errors import ToolError
from callgate.runtime.hosts.a2a.integers import whole
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.tools.values import clip

MAX_SAID = 500
"""Characters of what an agent says of a failure, or asks."""


@dataclass(frozen=True, slots=True)
class Said:
    """How far a remote task is. ``said`` and ``made`` are parts: of its message, and of its artifacts."""

    state: str
    task: str = ""
    said: tuple[Any, ...] = ()
    made: tuple[Any, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether nothing more comes by itself."""
        return self.asks or self.over

    @property
    def over(self) -> bool:
        """Whether the task has ended."""
        return self.state in {"completed", "failed", "canceled", "rejected"}

    @property
    def asks(self) -> bool:
        """Whether the agent waits for something."""
        return self.state in {"input_required", "auth_required"}

    @property
    def wanted(self) -> Mapping[str, Any]:
        """The one thing that it asks for by our extension; empty where it only says a text."""
        return next((item for item in _data(self.said) if is_mapping(item)), {})

    @property
    def answerable(self) -> bool:
        """Whether an answer can be given to it: to a text, or to one question."""
        typed = [item.get("type") for item in _data(self.said) if is_mapping(item)]
        return self.state == "input_required" and typed in ([], ["input"])

    @property
    def question(self) -> str:
        """What it asks, cut."""
        return clip(_texts(self.said), MAX_SAID)

    def output(self, schema: Mapping[str, Any] | None) -> Any:
        """What came of the task: text, or JSON, or a list where there is several.

        Raises:
            ToolError: it did not come to an end that has an output.
        """
        if self.state != "completed":
            words = clip(_texts(self.said) or _reason(self.said), MAX_SAID)
            told = f"The agent did not do it ({self.state}){words and f': {words}'}"
            raise ToolError(told, code="remote_failed")
        parts = self.made or self.said
        results = [item["result"] for item in _data(parts) if is_mapping(item) and item.get("type") == "tool_result"]
        if len(results) == 1:
            return whole(results[0], schema)
        if all(part.HasField("text") for part in parts):
            return _texts(parts)
        read = [_value(part) for part in parts]
        return read[0] if len(read) == 1 else read


def said_in(task: Any) -> Said:
    """How far a task is."""
    from a2a.types import TaskState

    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    made = [part for artifact in task.artifacts for part in artifact.parts]
    return Said(state, task.id, tuple(task.status.message.parts), tuple(made))


def _texts(parts: Iterable[Any]) -> str:
    return "\n".join(part.text for part in parts if part.HasField("text"))


def _data(parts: Iterable[Any]) -> list[Any]:
    from a2a.helpers import get_data_parts

    return get_data_parts(list(parts))


def _reason(parts: Iterable[Any]) -> str:
    """The public text in the result of a call that failed."""
    for item in _data(parts):
        error = item.get("error") if is_mapping(item) else None
        if is_mapping(error) and isinstance(error.get("message"), str):
            return str(error["message"])
    return ""


def _value(part: Any) -> Any:
    """A part as JSON. Files are told of, not fetched."""
    if part.HasField("text"):
        return part.text
    if part.HasField("data"):
        return whole(_data([part])[0], None)
    return {"file": part.filename, "media_type": part.media_type, "url": part.url or None}
