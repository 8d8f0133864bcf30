"""The task of a remote agent: its state, its question and its output, as untrusted data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from callgate.errors import ToolError
from callgate.runtime.hosts.a2a.integers import restore_integers
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.tools.values import clip

MAX_TEXT = 500
"""Maximum length of an agent's error or question, in characters."""


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A remote task. ``message`` holds the parts of its status message, ``artifacts`` the parts of its artifacts."""

    state: str
    task: str = ""
    message: tuple[Any, ...] = ()
    artifacts: tuple[Any, ...] = ()

    @property
    def is_settled(self) -> bool:
        """True if the task has ended or waits for input."""
        return self.waits_for_input or self.is_over

    @property
    def is_over(self) -> bool:
        """True if the task has ended."""
        return self.state in {"completed", "failed", "canceled", "rejected"}

    @property
    def waits_for_input(self) -> bool:
        """True if the agent waits for a reply."""
        return self.state in {"input_required", "auth_required"}

    @property
    def request(self) -> Mapping[str, Any]:
        """The first request in the form of the extension; empty if there is only a text."""
        return next((item for item in _data(self.message) if is_mapping(item)), {})

    @property
    def answerable(self) -> bool:
        """True if the agent asks a question in text, or one question of the extension."""
        typed = [item.get("type") for item in _data(self.message) if is_mapping(item)]
        return self.state == "input_required" and typed in ([], ["input"])

    @property
    def question(self) -> str:
        """The agent's question, shortened."""
        return clip(_texts(self.message), MAX_TEXT)

    def output(self, schema: Mapping[str, object] | None) -> Any:
        """Return the output of the task: text, JSON, or a list of several.

        Raises:
            ToolError: the task ended without an output.
        """
        if self.state != "completed":
            words = clip(_texts(self.message) or _reason(self.message), MAX_TEXT)
            text = f"The agent did not complete the task ({self.state}){words and f': {words}'}"
            raise ToolError(text, code="remote_failed")
        parts = self.artifacts or self.message
        results = [item["result"] for item in _data(parts) if is_mapping(item) and item.get("type") == "tool_result"]
        if len(results) == 1:
            return restore_integers(results[0], schema)
        if all(part.HasField("text") for part in parts):
            return _texts(parts)
        read = [_value(part) for part in parts]
        return read[0] if len(read) == 1 else read


def remote_task(task: Any) -> RemoteTask:
    """Read a task of the SDK."""
    from a2a.types import TaskState

    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    artifacts = [part for artifact in task.artifacts for part in artifact.parts]
    return RemoteTask(state, task.id, tuple(task.status.message.parts), tuple(artifacts))


def _texts(parts: Iterable[Any]) -> str:
    return "\n".join(part.text for part in parts if part.HasField("text"))


def _data(parts: Iterable[Any]) -> list[Any]:
    from a2a.helpers import get_data_parts

    return get_data_parts(list(parts))


def _reason(parts: Iterable[object]) -> str:
    """Return the public text of a failed call."""
    for item in _data(parts):
        error = item.get("error") if is_mapping(item) else None
        if is_mapping(error) and isinstance(error.get("message"), str):
            return str(error["message"])
    return ""


def _value(part: Any) -> Any:
    """Convert a part to JSON. A file is described, not fetched."""
    if part.HasField("text"):
        return part.text
    if part.HasField("data"):
        return restore_integers(_data([part])[0], None)
    return {"file": part.filename, "media_type": part.media_type, "url": part.url or None}
