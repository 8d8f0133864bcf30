"""Parts of a result that another gate holds as resources, because the result was too large for one answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ReadResourceRequest,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from callgate.errors import ToolFailed

HELD = "callgate://results/"
"""The beginning of the URI of such a part. Links to other resources are never read."""
OUTCOME = "callgate/outcome"
MAX_PARTS = 32
"""Maximum number of parts of one result."""

Read = Callable[[ReadResourceRequest], Awaitable[ReadResourceResult]]


async def with_parts(result: CallToolResult, read: Read, limit: int) -> CallToolResult:
    """Return a result with its parts in place of the links to them.

    Args:
        result: the result of a call.
        read: sends a request in the session of the call.
        limit: maximum size of the parts together, in bytes.

    Raises:
        ToolFailed: the parts exceed the limits.
    """
    held = [one for one in result.content if isinstance(one, ResourceLink) and one.uri.startswith(HELD)]
    if not held:
        return result
    found: dict[str, ContentBlock] = {}
    left = limit
    for link in held:
        made = await read(ReadResourceRequest(params=ReadResourceRequestParams(uri=link.uri)))
        left -= sum(len(one.model_dump_json()) for one in made.contents)
        if left < 0 or len(held) > MAX_PARTS or len(made.contents) != 1:
            raise ToolFailed("the parts of a large result exceed the limits of an MCP server")
        found[link.uri] = _block(made.contents[0])
    content = [found.get(one.uri, one) if isinstance(one, ResourceLink) else one for one in result.content]
    if result.is_error and (result.meta or {}).get(OUTCOME) == "success":  # its structure alone was too large
        update = {"content": [], "structured_content": _structure(content[-1]), "is_error": False}
        return CallToolResult.model_validate(result.model_dump(exclude=set(update)) | update)
    return result.model_copy(update={"content": content})


def _structure(block: ContentBlock) -> object:
    try:
        return json.loads(block.text if isinstance(block, TextContent) else "")
    except ValueError:
        raise ToolFailed("a part of a large result is not JSON") from None


def _block(contents: TextResourceContents | BlobResourceContents) -> ContentBlock:
    if isinstance(contents, TextResourceContents):
        return TextContent(text=contents.text)
    mime_type = contents.mime_type or ""
    kind = mime_type.partition("/")[0]
    if kind == "image":
        return ImageContent(data=contents.blob, mime_type=mime_type)
    if kind == "audio":
        return AudioContent(data=contents.blob, mime_type=mime_type)
    return EmbeddedResource(resource=contents)
