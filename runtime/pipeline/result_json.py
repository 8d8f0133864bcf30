"""Conversion of a ``ToolResult`` to plain JSON and back, for states, records and jobs that outlive the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from callgate.tools.calls import ErrorInfo, Issue, Outcome, ToolResult


def result_as_json(result: ToolResult) -> dict[str, object]:
    """Return the fields that a caller receives; trace and provenance are not kept."""
    # an older process does not know it
    changed: dict[str, object] = {} if result.ran_with is None else {"ran_with": result.ran_with}
    return changed | {
        "call_id": result.call_id,
        "tool": result.tool,
        "outcome": result.outcome.value,
        "output": result.output,
        "error": None if result.error is None else asdict(result.error),
        "retry_after": result.retry_after,
        "replayed": result.replayed,
    }


def result_from_json(kept: Mapping[str, Any]) -> ToolResult:
    """Return the result that ``result_as_json`` wrote.

    Raises:
        KeyError, TypeError, ValueError: the mapping is not such a result.
    """
    fields: dict[str, Any] = {**kept, "outcome": Outcome(kept["outcome"])}
    if kept["error"] is not None:
        error: dict[str, Any] = {**kept["error"]}
        error["issues"] = tuple(Issue(**issue) for issue in error["issues"])
        fields["error"] = ErrorInfo(**error)
    return ToolResult(**fields)
