"""Results of calls as results of MCP."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from urllib.parse import quote

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from callgate.hooks.state.facts import Suspension
from callgate.runtime.hosts.mcp.listing import WRAPPED
from callgate.runtime.models.wire.result_content import block_text, text_and_blocks
from callgate.tools.calls import ToolResult

_BLOCKS = frozenset({"text", "image", "audio", "resource", "resource_link"})
OUTCOME = "callgate/outcome"
HANDLE = "callgate/handle"
REPLAYED = "callgate/replayed"
"""Keys of ``_meta`` in a result: the outcome, the handle of a call that waits, and whether an earlier call ran it."""


def call_result(result: ToolResult, *, structured: bool, wrapped: bool = False) -> CallToolResult:
    """Return the result for the client.

    Its text is what a model gets from the other wires, too: the output, or the error with its code and issues. With
    *structured*, the tool has an output schema, and the output is also ``structuredContent``; with *wrapped* as a member
    of an object. Content of an output, such as images, is blocks of the result; those of a remote server are passed on
    as they are.
    """
    ok, output = result.ok, result.output
    meta: dict[str, object] = {OUTCOME: result.outcome.value}
    if result.replayed:
        meta[REPLAYED] = True
    blocks = _blocks(output) if ok and output.__class__ is list and result.ran_with is None else None
    content: list[ContentBlock] = blocks or content_blocks(result)
    if not ok:
        return CallToolResult(content=content, is_error=True, _meta=meta)
    if not structured:
        return CallToolResult(content=content, _meta=meta)
    shown = {WRAPPED: output} if wrapped else output
    return CallToolResult(content=content, structured_content=shown, _meta=meta)


def content_blocks(result: ToolResult) -> list[ContentBlock]:
    """Return a result as content blocks: one of text, unless the output has content."""
    text, blocks = text_and_blocks(result)
    return [TextContent(text=text)] if blocks is None else [_block(block) for block in blocks]


def _block(block: dict[str, Any]) -> ContentBlock:
    kind = block["type"]
    if kind == "image":
        return ImageContent(data=block["data"], mime_type=block["mimeType"])
    if kind == "audio":
        return AudioContent(data=block["data"], mime_type=block["mimeType"])
    if kind == "resource_link":
        return ResourceLink.model_validate(block, by_alias=True, by_name=False)
    if kind != "file":
        return TextContent(text=block_text(block))
    name = block.get("name") or sha256(block["data"].encode()).hexdigest()[:16]
    uri = block.get("uri") or f"attachment:{quote(name)}"
    return EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=block["mimeType"], blob=block["data"]))


def _blocks(output: list[object]) -> list[ContentBlock] | None:
    """Return an output that is a list of MCP's content blocks in their JSON form; None for any other."""
    if not output or any(not isinstance(one, dict) or one.get("type") not in _BLOCKS for one in output):
        return None
    from pydantic import TypeAdapter, ValidationError  # few tools return blocks

    try:
        return TypeAdapter(list[ContentBlock]).validate_python(output, by_alias=True, by_name=False)
    except ValidationError:
        return None


def page_of(approvals_url: str, pending: Suspension) -> str:
    """Return the address of the page that shows a suspended call."""
    return approvals_url.replace("{handle}", pending.handle or "")


def waiting(result: ToolResult, pending: Suspension, approvals_url: str | None, *, repeats: bool) -> CallToolResult:
    """Return the result of a call that waits for a decision which this client cannot give.

    It is an error for the model: the tool has not run. With *repeats*, the same call again gets the outcome.
    """
    lines = [f"The call has not run: it waits for a decision. {pending.prompt}"]
    for rule in pending.rules:
        people = "one person" if rule.quorum == 1 else f"{rule.quorum} people"
        roles = f" with one of the roles {', '.join(sorted(rule.roles))}" if rule.roles else ""
        lines.append(f"It needs the approval of {people}{roles}.")
    if approvals_url is not None:
        lines.append(f"Its page: {page_of(approvals_url, pending)}")
    if repeats:
        lines.append("After the decision, call the tool again with the same arguments to get the outcome.")
    text = "\n".join(lines)
    meta = {OUTCOME: result.outcome.value, HANDLE: pending.handle}
    return CallToolResult(content=[TextContent(text=text)], is_error=True, _meta=meta)
