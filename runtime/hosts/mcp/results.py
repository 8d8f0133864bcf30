"""Results of calls as results of MCP."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult, ContentBlock, TextContent

from callgate.hooks.facts import Suspension
from callgate.runtime.hosts.mcp.listing import WRAPPED
from callgate.runtime.models.wire.result_text import result_text
from callgate.tools.calls import ToolResult

_BLOCKS = frozenset({"text", "image", "audio", "resource", "resource_link"})
OUTCOME = "callgate/outcome"
HANDLE = "callgate/handle"
REPLAYED = "callgate/replayed"
"""Keys of ``_meta`` in a result: the outcome, the handle of a call that waits, and whether an earlier call ran it."""


def call_result(result: ToolResult, *, modern: bool, structured: bool) -> CallToolResult:
    """Return the result for the client.

    Its text is what a model gets from the other wires, too: the output, or the error with its code and issues. With
    *structured*, the tool has an output schema, and the output is also ``structuredContent``. Without one, a list of
    content blocks is passed on as it is, so an image of a remote server stays an image.
    """
    meta: dict[str, Any] = {OUTCOME: result.outcome.value}
    if result.replayed:
        meta[REPLAYED] = True
    blocks = _blocks(result.output) if result.ok and not structured and result.ran_with is None else None
    content: list[ContentBlock] = blocks or [TextContent(text=result_text(result))]
    if not result.ok:
        return CallToolResult(content=content, is_error=True, _meta=meta)
    if not structured:
        return CallToolResult(content=content, _meta=meta)
    output = result.output
    shown = output if modern or isinstance(output, dict) else {WRAPPED: output}
    return CallToolResult(content=content, structured_content=shown, _meta=meta)


def _blocks(output: object) -> list[ContentBlock] | None:
    """Return an output that is a list of content blocks in their JSON form, such as images; None for any other."""
    if not isinstance(output, list) or not output:
        return None
    if any(not isinstance(one, dict) or one.get("type") not in _BLOCKS for one in output):
        return None
    from pydantic import TypeAdapter, ValidationError  # few tools return blocks

    try:
        return TypeAdapter(list[ContentBlock]).validate_python(output, by_alias=True, by_name=False)
    except ValidationError:
        return None


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
