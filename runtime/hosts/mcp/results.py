"""Results of calls as results of MCP."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult, ContentBlock, TextContent

from callgate.hooks.facts import Suspension
from callgate.runtime.hosts.mcp.listing import WRAPPED
from callgate.runtime.models.wire.result_text import result_text
from callgate.tools.calls import ToolResult

OUTCOME = "callgate/outcome"
HANDLE = "callgate/handle"
REPLAYED = "callgate/replayed"
"""Keys of ``_meta`` in a result: the outcome, the handle of a call that waits, and whether an earlier call ran it."""


def call_result(result: ToolResult, *, modern: bool, structured: bool) -> CallToolResult:
    """Return the result for the client.

    Its text is what a model gets from the other wires, too: the output, or the error with its code and issues. With
    *structured*, the tool has an output schema, and the output is also ``structuredContent``.
    """
    meta: dict[str, Any] = {OUTCOME: result.outcome.value}
    if result.replayed:
        meta[REPLAYED] = True
    content: list[ContentBlock] = [TextContent(text=result_text(result))]
    if not result.ok:
        return CallToolResult(content=content, is_error=True, _meta=meta)
    if not structured:
        return CallToolResult(content=content, _meta=meta)
    output = result.output
    shown = output if modern or isinstance(output, dict) else {WRAPPED: output}
    return CallToolResult(content=content, structured_content=shown, _meta=meta)


def waiting(result: ToolResult, pending: Suspension) -> CallToolResult:
    """Return the result of a call that waits for a decision which this client cannot give.

    It is an error for the model: the tool has not run.
    """
    text = (
        f"The call has not run: it waits for a decision. {pending.prompt}\nAfter the decision, call the tool again "
        "with the same arguments to get the outcome."
    )
    meta = {OUTCOME: result.outcome.value, HANDLE: pending.handle}
    return CallToolResult(content=[TextContent(text=text)], is_error=True, _meta=meta)
