"""A tool result as the text that a model reads; errors contain no values. Pure."""

from __future__ import annotations

import json

from callgate.tools.calls import ToolResult
from callgate.tools.values import dump

MAX_ERROR_BYTES = 2048
MAX_SHOWN_ISSUES = 16


CHANGED = "An approver, a rule or a repair changed the arguments. The call ran with these."
"""What a model reads beside arguments that are not its own."""


def result_text(result: ToolResult) -> str:
    """The output as text or JSON; for a failure, its code, public message, issues and retry delay as JSON.

    If the call ran with other arguments than the model's, it is an object that holds them, too.
    """
    text = output_text(result) if result.ok else _error_text(result)
    if result.ran_with is None:
        return text
    shown = {"output": result.output} if result.ok else json.loads(text)
    text = dump(shown | {"ran_with": told_arguments(result)}).decode()
    if not result.ok and len(text.encode()) > MAX_ERROR_BYTES:
        return dump(shown | {"ran_with": {"note": CHANGED}}).decode()
    return text


def told_arguments(result: ToolResult) -> dict[str, object]:
    """The arguments of a call that ran with others than the model's, and a sentence that says so."""
    return {"note": CHANGED, "arguments": result.ran_with}


def output_text(result: ToolResult) -> str:
    """The output as text or JSON."""
    return result.output if isinstance(result.output, str) else dump(result.output).decode()


def _error_text(result: ToolResult) -> str:
    error = result.error
    issues = list(error.issues[:MAX_SHOWN_ISSUES]) if error else []
    while True:
        shown = [{"pointer": issue.pointer, "expected": issue.expected} for issue in issues]
        content: dict[str, object] = {
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
