"""Results that are too large for one answer: their parts are resources, which the same user reads once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias
from uuid import uuid4

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ListResourcesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from callgate.runtime.hosts.mcp.access import Access
from callgate.runtime.hosts.mcp.face import LargeResults
from callgate.runtime.hosts.mcp.user_memory import UserMemory
from callgate.tools.calls import User

MAX_RESULT = "callgate/maxResult"
"""The key of ``_meta`` in a call with which a client lowers the limit, in bytes."""
LINKS_SINCE = "2025-06-18"
"""The first protocol version with resource links in results."""
_SMALLEST = 1_024
"""Smaller parts stay: a link is hardly shorter."""
_ESCAPED = 12
"""More bytes of JSON than one character has in a result, with its copy in ``structuredContent``."""

Contents: TypeAlias = TextResourceContents | BlobResourceContents


class _Part(NamedTuple):
    name: str
    size: int
    contents: Contents


class HeldResults:
    """The parts of large results in memory, each for one user."""

    def __init__(self, options: LargeResults, access: Access, now: Callable[[], float]) -> None:
        self._options, self._access = options, access
        self._held: UserMemory[_Part] = UserMemory(options.max_bytes, options.max_count, options.ttl, now)

    def fitted(
        self,
        result: CallToolResult,
        tool: str,
        user: User,
        version: str = LINKS_SINCE,
        meta: Mapping[str, object] | None = None,
    ) -> CallToolResult:
        """Return a result within the limit: its largest parts become links, until it fits.

        A ``structuredContent`` that is too large by itself cannot be a link, and its schema forbids to leave it out. The
        result is then an error for the client, whose text says that the call succeeded and where its result is.
        """
        limit = self._limit(meta or {})
        if _ESCAPED * sum(map(_characters, result.content)) + _SMALLEST <= limit or (size := _json(result)) <= limit:
            return result
        content = list(result.content)
        for place in sorted(range(len(content)), key=lambda one: -_characters(content[one])):
            if size <= limit or (kept := _contents(content[place])) is None:
                break
            link = self._link(kept, f"{tool}-{place + 1}", user, version)
            size += _json(link) - _json(content[place])
            content[place] = link
        result = result.model_copy(update={"content": content})
        if size <= limit or result.structured_content is None:
            return result
        whole = json.dumps(result.structured_content, separators=(",", ":"), ensure_ascii=False)
        link = self._link(TextResourceContents(uri="", text=whole, mime_type="application/json"), tool, user, version)
        text = f"The call succeeded. Do not repeat it. Its result has over {limit} bytes, and is a resource."
        update = {"content": [TextContent(text=text), link], "structured_content": None, "is_error": True}
        return result.model_copy(update=update)

    def _limit(self, meta: Mapping[str, object]) -> int:
        wanted = meta.get(MAX_RESULT)
        limit = self._options.max_result
        return min(limit, wanted) if isinstance(wanted, int) and wanted > 0 else limit

    def _link(self, contents: Contents, name: str, user: User, version: str) -> ContentBlock:
        """Hold a part, and return the link to it; a text for clients without links and for what cannot be held."""
        size, kind = _size(contents), contents.mime_type
        uri = f"callgate://results/{uuid4().hex}"
        part = _Part(name, size, contents.model_copy(update={"uri": uri}))
        if not self._held.put((user.tenant, user.id), uri, part, size):
            return TextContent(text=f"[{name}, {kind}, {size} bytes: left out, because it is too large to be kept]")
        how = f"Part of the result. It can be read once, within {self._options.ttl:g} seconds."
        if version < LINKS_SINCE:
            return TextContent(text=f"[{name}, {kind}, {size} bytes: the resource {uri}. {how}]")
        return ResourceLink(uri=uri, name=name, mime_type=kind, size=size, description=how)

    # ------------------------------------------------------------------ requests

    async def read(self, ctx: ServerRequestContext, params: ReadResourceRequestParams) -> ReadResourceResult:
        """Handle ``resources/read``: return a part to its user, and forget it.

        Raises:
            MCPError: the user has no such part: it was read, has expired, or was another user's.
        """
        user = self._access.user_of(ctx)
        part = self._held.get((user.tenant, user.id), params.uri)
        if part is None:
            text = "Unknown resource. A part of a result can be read once, and for a limited time."
            raise MCPError(INVALID_PARAMS, text, {"uri": params.uri})
        self._held.remove(params.uri)
        return ReadResourceResult(contents=[part.contents], ttl_ms=0, cache_scope="private")

    async def list(self, ctx: ServerRequestContext, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        """Handle ``resources/list``: the parts that the user may read."""
        user = self._access.user_of(ctx)
        found = [
            Resource(uri=uri, name=part.name, mime_type=part.contents.mime_type, size=part.size)
            for uri, part in self._held.of((user.tenant, user.id))
        ]
        return ListResourcesResult(resources=found, ttl_ms=0, cache_scope="private")


def _contents(block: ContentBlock) -> Contents | None:
    """Return what a block holds as a resource; None for a small one, and for a link."""
    if _characters(block) < _SMALLEST:
        return None
    if isinstance(block, TextContent):
        is_json = block.text[0] in "{["
        return TextResourceContents(uri="", text=block.text, mime_type="application/json" if is_json else "text/plain")
    if isinstance(block, ImageContent | AudioContent):
        return BlobResourceContents(uri="", blob=block.data, mime_type=block.mime_type)
    return block.resource if isinstance(block, EmbeddedResource) else None


def _characters(block: ContentBlock) -> int:
    if isinstance(block, TextContent):
        return len(block.text)
    if isinstance(block, ImageContent | AudioContent):
        return len(block.data)
    return _size(block.resource) if isinstance(block, EmbeddedResource) else 0


def _size(contents: Contents) -> int:
    return len(contents.text.encode()) if isinstance(contents, TextResourceContents) else len(contents.blob)


def _json(made: CallToolResult | ContentBlock) -> int:
    """Return the size of a result or a block in an answer, in bytes."""
    return len(made.model_dump_json(by_alias=True, exclude_none=True).encode())
