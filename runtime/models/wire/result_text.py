"""A tool result as the text that a model reads; errors contain no values. Pure."""

from __future__ import annotations

from typing import Any

from callgate.tools.calls import ToolResult
from callgate.tools.values import dump

MAX_ERROR_BYTES = 2048
MAX_SHOWN_ISSUES = 16


def result_text(result: ToolResult) -> str:
    """The output as text or JSON; for a failure, its code, public message, issues and retry delay as JSON."""
    if result.ok:
        return result.output if isinstance(result.output, str) else dump(result.output).decode()
    error = result.error
    issues = list(error.issues[:MAX_SHOWN_ISSUES]) if error else []
    while True:
        shown = [{"pointer": issue.pointer, "expected": issue.expected} for issue in issues]
        content: dict[str, Any] = {
            "code": error.code if error else result.outcome.value,
            "message": error.public if error else result.outcome.value,
            "issues": shown,
            "retry_after_ms": result.retry_after,
            "correlation_id": error.correlation_id if error else None,
        }
        text = dump({"error": {name: value for name, value in content.items() if value not in (None, [])}}).decode()
        if len(text.encode()) <= MAX_ERROR_BYTES or not issues:
            return text
        issues.pop()
