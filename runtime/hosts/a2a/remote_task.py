"""The task of a remote agent: its state, its question and its output, as untrusted data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from callgate.errors import ToolError
from callgate.providers.content_json import of_data, restored
from callgate.runtime.hosts.a2a.integers import restore_integers
from callgate.runtime.models.wire.shapes import is_mapping
from callgate.tools.values import clip

if TYPE_CHECKING:
    from a2a.types import Part, Task


MAX_TEXT = 500
"""Maximum length of an agent's error or question, in characters."""


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A remote task. ``message`` holds the parts of its status message, ``artifacts`` the parts of its artifacts."""

    state: str
    task: str = ""
    message: tuple[Part, ...] = ()
    artifacts: tuple[Part, ...] = ()

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
    def request(self) -> Mapping[str, object]:
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

    def output(self, schema: Mapping[str, object] | None) -> object:
        """Return the output of the task: text, JSON, or a list of several.

        Raises:
            ToolError: the task ended without an output.
        """
        if self.state != "completed":
            words = clip(_texts(self.message) or _reason(self.message), MAX_TEXT)
            text = f"The agent did not complete the task ({self.state}){words and f': {words}'}"
            raise ToolError(text, code="remote_failed")
        parts = self.artifacts or self.message
        data = _data(parts)  # once: each reading of a thousand values takes milliseconds
        results = [item["result"] for item in data if is_mapping(item) and item.get("type") == "tool_result"]
        if len(results) == 1:
            raw = {sha256(part.raw).hexdigest(): part.raw for part in parts if part.HasField("raw")}
            return restored(restore_integers(results[0], schema), raw) if raw else restore_integers(results[0], schema)
        if all(part.HasField("text") for part in parts):
            return _texts(parts)
        left = iter(data)
        read = [restore_integers(next(left), None) if part.HasField("data") else _value(part) for part in parts]
        return read[0] if len(read) == 1 else read


def remote_task(task: Task) -> RemoteTask:
    """Read a task of the SDK."""
    from a2a.types import TaskState

    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    artifacts = [part for artifact in task.artifacts for part in artifact.parts]
    return RemoteTask(state, task.id, tuple(task.status.message.parts), tuple(artifacts))


def _texts(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if part.HasField("text"))


def _data(parts: Iterable[Part]) -> list[object]:
    from a2a.helpers import get_data_parts

    return get_data_parts(list(parts))


def _reason(parts: Iterable[Part]) -> str:
    """Return the public text of a failed call."""
    for item in _data(parts):
        error = item.get("error") if is_mapping(item) else None
        if is_mapping(error) and isinstance(error.get("message"), str):
            return str(error["message"])
    return ""


def _value(part: Part) -> object:
    """Convert a part without JSON. A file with data is content; one at a URL is described, not fetched."""
    if part.HasField("text"):
        return part.text
    if part.HasField("raw"):
        return of_data(part.raw, part.media_type or "application/octet-stream", part.filename)
    return {"file": part.filename, "media_type": part.media_type, "url": part.url or None}
