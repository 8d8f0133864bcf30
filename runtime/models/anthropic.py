"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from callgate.runtime.models.wire.anthropic_view import strict_views
from callgate.runtime.models.wire.base import BaseCodec, ReplyFields, described
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import (
    Codec,
    Messages,
    Request,
    Translation,
    as_messages,
    translated,
    without_system,
)
from callgate.runtime.models.wire.endings import table
from callgate.runtime.models.wire.folds.anthropic import AnthropicFold
from callgate.runtime.models.wire.history import arguments_object, legal_name, sent_call
from callgate.runtime.models.wire.members import Handling, members
from callgate.runtime.models.wire.reading import (
    NO_REASON,
    RawCall,
    count,
    qualified,
    text_or_empty,
    text_or_none,
    with_calls,
)
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.models.wire.result_content import IMAGES, PDF, Block, content_parts
from callgate.runtime.models.wire.schema_views import View, plain_view
from callgate.runtime.models.wire.shapes import is_mapping, items, mapping
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition

ENDINGS = table(
    done="end_turn stop_sequence",
    calls="tool_use",
    paused="pause_turn compaction",
    truncated="max_tokens model_context_window_exceeded",
    refused="refusal",
)
"""Stop reasons. After a pause the same history is sent again."""
MAX_TOKENS = 4096
"""The ``max_tokens`` of a request whose options set none: the API requires one."""
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
MEMBERS = members(
    call=("tool_use", "input_json_delta"),
    text=("text", "text_delta"),
    reasoning=("thinking", "thinking_delta"),
    provider_ran=[
        *_SERVER_CALLS,
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "mcp_tool_listing",
        "mcp_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    ],
    history=("compaction", "compaction_delta", "container_upload", "fallback", "redacted_thinking"),
    metadata=("citations_delta", "signature_delta"),
    envelope=("message_start", "content_block_start", "content_block_delta"),
    mark=("content_block_stop", "message_delta", "message_stop"),
    failed=("error",),
    ignored=("ping",),
)
"""Blocks, deltas and events."""


class AnthropicCodec(BaseCodec):
    """The codec of ``/v1/messages``.

    Args:
        strict: send ``strict`` for definitions that set it, within the budget of a request (see ``strict_views``).
            By default ``strict`` is never sent.

    The input of a streamed call stays text, exactly as received: it may be invalid JSON.
    """

    name = "anthropic"
    endings = ENDINGS
    members = MEMBERS

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """Build ``{"tools": [{name, description, input_schema}]}``; see ``Codec``."""
        return translated(definitions, strict_views() if self._strict else plain_view, _tool)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """Build one ``user`` message with a ``tool_result`` block for each result; see ``Codec``.

        Images and files of PDF or text are blocks of it, and audio is a text about it.
        """
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": result.call_id,
                "content": content_parts(result, _content, _text_block),
                "is_error": not result.ok,
                **_toolset_of(result),
            }
            for result in results
        ]
        return [{"role": "user", "content": blocks}] if blocks else []

    def is_answer(self, body: Mapping[str, object]) -> bool:
        """It has content, also if that is empty."""
        return isinstance(body.get("content"), list | tuple)

    def reason_in(self, body: Mapping[str, object]) -> object:
        """``stop_reason``."""
        return body.get("stop_reason")

    def unfinished_in(self, body: Mapping[str, object]) -> str | None:
        return None if body.get("stop_reason") else NO_REASON

    def calls_in(self, body: Mapping[str, object], cut: bool) -> list[RawCall]:
        """The ``tool_use`` blocks; calls that the provider ran itself (``server_tool_use``, ``mcp_tool_use``) are left out.

        So are calls before a ``fallback`` block: another model took over there, because the first one refused in the
        middle of its answer. The provider writes one block after the other. So in a response that was cut short, only
        a call in the last block can be incomplete.
        """
        blocks = items(body.get("content"))
        found: list[RawCall] = []
        for block in blocks:
            call = mapping(block)
            if call.get("type") == "fallback":
                found.clear()
            if call.get("type") == "tool_use":
                name = qualified(call.get("name"), call.get("toolset_name"))
                found.append(RawCall(name, call.get("input"), call.get("id"), block))
        if found and found[-1].chunk is blocks[-1] and cut:
            found[-1] = found[-1]._replace(truncated=True)
        return found

    def fields_in(self, body: Mapping[str, object]) -> ReplyFields:
        """The text and reasoning of all blocks; ``usage.input`` includes tokens read from and written to the cache."""
        blocks = [mapping(block) for block in items(body.get("content"))]
        return ReplyFields(
            text="".join(text_or_empty(block.get("text")) for block in blocks if block.get("type") == "text"),
            reasoning="".join(
                text_or_empty(block.get("thinking")) for block in blocks if block.get("type") == "thinking"
            ),
            stop=text_or_none(body.get("stop_reason")),
            usage=_usage(mapping(body.get("usage"))),
            model=text_or_none(body.get("model")),
            id=text_or_none(body.get("id")),
            provider_ran=tuple(block for block in blocks if _ran(block)),
        )

    def history_of(
        self, body: Mapping[str, object], found: Sequence[tuple[RawCall, ToolCall]]
    ) -> list[dict[str, object]]:
        """The message, with the blocks' signatures; what the API refuses as input is left out, such as blank text.

        ``container`` is the container in which the provider ran code: ``request`` asks for it again.
        """
        sent: list[dict[str, object]] = []
        for block, call in with_calls(items(body.get("content")), found):
            kind = text_or_empty(block.get("type"))
            back = {
                name: value
                for name, value in block.items()
                if name != "parsed_output" and (value is not None or name != "caller")
            }
            if call is not None:
                taken = arguments_object(block.get("input"))
                sent.append({**back, "id": call.id, "name": legal_name(block.get("name")), "input": taken})
            elif kind in _SERVER_CALLS:
                sent.append({**back, "input": arguments_object(block.get("input"))})
            elif kind == "compaction":
                sent.append({**back, "content": block.get("content") or None})
            elif kind and kind != "tool_use" and (kind != "text" or text_or_empty(block.get("text")).strip()):
                sent.append(back)
        container = text_or_none(mapping(body.get("container")).get("id"))
        return (
            [{"role": "assistant", "content": sent, **({"container": container} if container else {})}] if sent else []
        )

    def new_fold(self, tool_of: Callable[[str], str]) -> AnthropicFold:
        return AnthropicFold(tool_of)

    def request_for(self, messages: list[dict[str, object]], model: str, stream: bool) -> Request:
        """Ask ``messages``; simple system messages become the ``system`` parameter, the last container ``container``."""
        system, rest = without_system(messages)
        container = next((one["container"] for one in reversed(rest) if one.get("container")), None)
        rest = [{name: value for name, value in one.items() if name != "container"} for one in rest]
        body = {"model": model, "max_tokens": MAX_TOKENS, "messages": rest, "container": container}
        return Request("messages", {**body, "system": system or None, "stream": stream or None})

    def request(
        self,
        messages: Messages,
        translation: Translation | None = None,
        *,
        model: str,
        stream: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> Request:
        """See ``Codec``; a ``container`` in the options, such as one with skills, goes on with that of the history."""
        made = super().request(messages, translation, model=model, stream=stream, options=options)
        wanted = made.body.get("container")
        if is_mapping(wanted) and not wanted.get("id"):
            used = self.request_for(as_messages(messages), model, stream).body["container"]
            made.body["container"] = {**wanted, **({"id": used} if used else {})}
        return made


def _ran(block: Mapping[str, object]) -> bool:
    """True for a call that the provider ran itself, and for its result."""
    return MEMBERS.get(text_or_empty(block.get("type"))) is Handling.PROVIDER_RAN


def _toolset_of(result: ToolResult) -> dict[str, str]:
    """The toolset of the call, which the API wants back beside its result."""
    name = text_or_none(mapping(sent_call(result)).get("toolset_name"))
    return {"toolset_name": name} if name else {}


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, object]:
    strict = {} if view.strict is None else {"strict": view.strict}
    return {"name": wire_name, **described(definition), "input_schema": view.schema, **strict}


def _usage(usage: Mapping[str, object]) -> Usage:
    return Usage(
        input=count(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
        output=count(usage, "output_tokens"),
        cached=count(usage, "cache_read_input_tokens"),
        reasoning=count(mapping(usage.get("output_tokens_details")), "thinking_tokens"),
    )


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _content(block: Block) -> Block | None:
    """A content block as the API takes it in a tool result."""
    kind, title = block["mimeType"], {"title": block["name"]} if block.get("name") else {}
    if kind in IMAGES:
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": block["data"]}}
    if kind == PDF:
        return {"type": "document", "source": {"type": "base64", "media_type": PDF, "data": block["data"]}, **title}
    return None


CODEC: Codec = AnthropicCodec()


class Anthropic(Client):
    """A client of Anthropic's Messages API; the default key is ``ANTHROPIC_API_KEY``. See ``Client``."""

    codec = CODEC
    default_url = "https://api.anthropic.com/v1"
    key_variables = ("ANTHROPIC_API_KEY",)
    key_header = "x-api-key"
    key_prefix = ""
    fixed_headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
