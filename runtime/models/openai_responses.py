"""OpenAI's Responses API, and the servers compatible with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from callgate.runtime.models.wire.base import (
    OPENAI_DESCRIPTION,
    BaseCodec,
    Content,
    ReplyFields,
    described,
    openai_usage,
)
from callgate.runtime.models.wire.client import Client
from callgate.runtime.models.wire.codec import Codec, Request, Translation, translated
from callgate.runtime.models.wire.endings import INCOMPLETE, table
from callgate.runtime.models.wire.folds.responses import ResponsesFold
from callgate.runtime.models.wire.folds.responses_items import (
    ANSWERS,
    CALLS,
    MEMBERS,
    answers_in,
    is_answered,
    item_type,
    message_text,
    provider_ran,
    reasoning_text,
    waits,
)
from callgate.runtime.models.wire.history import arguments_text, legal_name, sent_call, without_nulls
from callgate.runtime.models.wire.reading import (
    NO_REASON,
    PARALLEL,
    RawCall,
    qualified,
    text_or_none,
    with_calls,
    wrapped_calls,
)
from callgate.runtime.models.wire.result_content import IMAGES, PDF, Block, content_parts, data_url
from callgate.runtime.models.wire.schema_views import View
from callgate.runtime.models.wire.shapes import items, mapping
from callgate.runtime.models.wire.strict_view import openai_view
from callgate.tools.calls import ToolCall, ToolResult
from callgate.tools.definition import ToolDefinition

ENDINGS = table(
    done="completed",
    truncated="incomplete max_output_tokens max_messages steered",
    refused="content_filter",
    failed="failed cancelled",
    lost="queued in_progress",
)
"""Statuses, and reasons of an incomplete response."""

_NOT_INPUT = ("created_by", "parsed_arguments", "parsed")
_NULL_INPUT = frozenset({"code", "outputs", "result"})
"""Fields of items that the API requires as input, also if they are null."""


class ResponsesCodec(BaseCodec):
    """The codec of ``/v1/responses``.

    Output items go back unchanged, including reasoning with its encrypted content. The text of a ``custom`` tool call
    becomes its arguments, which hydration then refuses.
    """

    name = "openai_responses"
    endings = ENDINGS
    members = MEMBERS

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """Build ``{"tools": [{type, name, description, parameters, strict}]}``; see ``Codec``."""
        return translated(definitions, openai_view, _tool, maximum=OPENAI_DESCRIPTION)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """Build one ``function_call_output`` item for each result; see ``Codec``. Images and PDF are parts of it."""
        return [_output(result) for result in results]

    def is_answer(self, body: Mapping[str, object]) -> bool:
        """It has output, also if that is empty."""
        return isinstance(body.get("output"), list | tuple)

    def unpacked(self, body: Mapping[str, object]) -> Mapping[str, object]:
        output = items(body.get("output"))
        if not any(_is_wrapper(item) for item in output):
            return body
        return {
            **body,
            "output": [one for item in output for one in (_unpacked(mapping(item)) if _is_wrapper(item) else [item])],
        }

    def reason_in(self, body: Mapping[str, object]) -> object:
        """The reason of an incomplete response, else its status."""
        reason = mapping(body.get("incomplete_details")).get("reason")
        status = body.get("status")
        return reason if reason and status in ("incomplete", "completed") else status

    def unfinished_in(self, body: Mapping[str, object]) -> str | None:
        """A response without a status, or an item that the client answers and that is not complete."""
        if not body.get("status"):
            return NO_REASON
        output = [mapping(item) for item in items(body.get("output"))]
        known = (None, "completed", "in_progress")  # the client runs it: the API calls some of them in progress
        answers = answers_in(output)
        cut = (one for one in output if waits(one, answers) and one.get("status") not in known)
        return next((f"the status of {item_type(one)} is {str(one['status'])[:80]!r}" for one in cut), None)

    def content_in(self, body: Mapping[str, object]) -> Content:
        """A refusal; images that the provider made."""
        output = [mapping(item) for item in items(body.get("output"))]
        parts = [mapping(part) for item in output for part in items(item.get("content"))]
        return {
            "refused": any(part.get("type") == "refusal" for part in parts),
            "media": any(item.get("type") == "image_generation_call" for item in output),
        }

    def calls_in(self, body: Mapping[str, object], cut: bool) -> list[RawCall]:
        """The items that call a tool, unless the output has the answer of the provider.

        The provider writes one item after the other. A call is truncated if its status is not ``completed``, and in a
        response that was cut short, if it has no status or is the last item.
        """
        output = items(body.get("output"))
        answers = answers_in(output)
        found: list[RawCall] = []
        for position, item in enumerate(output, 1):
            call = mapping(item)
            kind = item_type(call)
            if kind in CALLS and not is_answered(call, answers):
                status = call.get("status")
                truncated = status not in (None, "completed") or (cut and (status is None or position == len(output)))
                name, call_id = (
                    qualified(call.get("name"), call.get("namespace")),
                    call.get("call_id") or call.get("id"),
                )
                found.append(RawCall(name, call.get(CALLS[kind]), call_id, item, truncated, kind == "custom_tool_call"))
        return found

    def fields_in(self, body: Mapping[str, object]) -> ReplyFields:
        """The fields of all output items; a refusal is read as text. ``stop`` is the reason of an incomplete response, else the status."""
        output = [mapping(item) for item in items(body.get("output"))]
        reason = mapping(body.get("incomplete_details")).get("reason")
        answers = answers_in(output)
        waiting = () if self._is_cut(body) else tuple(item for item in output if waits(item, answers))
        return ReplyFields(
            text="".join(message_text(item) for item in output if item.get("type") == "message"),
            reasoning="".join(reasoning_text(item) for item in output if item.get("type") == "reasoning"),
            stop=text_or_none(reason) or text_or_none(body.get("status")),
            usage=openai_usage(mapping(body.get("usage")), "input_tokens", "output_tokens"),
            model=text_or_none(body.get("model")),
            id=text_or_none(body.get("id")),
            waiting=waiting,
            provider_ran=tuple(item for item in output if provider_ran(item, answers)),
        )

    def history_of(
        self, body: Mapping[str, object], found: Sequence[tuple[RawCall, ToolCall]]
    ) -> list[dict[str, object]]:
        """The items without null fields and others that the API refuses as input.

        Without storage the API knows no earlier item: reasoning that is not encrypted is left out. So are items that
        the client would answer, in a response that was cut.
        """
        output = items(body.get("output"))
        answers, cut, stored = answers_in(output), self._is_cut(body), body.get("store") is not False
        sent: list[dict[str, object]] = []
        for item, call in with_calls(output, found):
            kind = item_type(item)
            if call is None and (
                not kind
                or (kind in CALLS and not is_answered(item, answers))
                or (kind == "reasoning" and not stored and not item.get("encrypted_content"))
                or (cut and waits(item, answers))
            ):
                continue
            back = _as_input(item)
            if call is not None:
                back |= {"call_id": call.id, "name": legal_name(item.get("name"))}
                if kind == "function_call":
                    back["arguments"] = arguments_text(item.get("arguments"))
            sent.append(back)
        return sent

    def _is_cut(self, body: Mapping[str, object]) -> bool:
        """True if the client must not act on the items of a response."""
        return self._ending_of(body)[0] in INCOMPLETE or self.content_in(body).get("refused", False)

    def decision(self, item: Mapping[str, object], approve: bool) -> dict[str, object] | None:
        """See ``ApprovalCodec``."""
        if item_type(item) != "mcp_approval_request":
            return None
        return {"type": ANSWERS["mcp_approval_request"], "approval_request_id": item.get("id"), "approve": approve}

    def new_fold(self, tool_of: Callable[[str], str]) -> ResponsesFold:
        return ResponsesFold(tool_of)

    def request_for(self, messages: list[dict[str, object]], model: str, stream: bool) -> Request:
        """Ask ``responses``; the messages are input items."""
        return Request("responses", {"model": model, "input": messages, "stream": stream or None})


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, object]:
    strict = bool(view.strict)  # always sent: unlike Chat Completions, this API defaults to true
    return {
        "type": "function",
        "name": wire_name,
        **described(definition, OPENAI_DESCRIPTION),
        "parameters": view.schema,
        "strict": strict,
    }


def _is_wrapper(item: object) -> bool:
    call = mapping(item)
    name = qualified(call.get("name"), call.get("namespace"))
    return call.get("type") == "function_call" and isinstance(name, str) and name in PARALLEL


def _unpacked(item: Mapping[str, object]) -> list[object]:
    """The calls in a wrapper as items of their own; the wrapper where it has none."""
    call = without_nulls(item, "id", "namespace")
    found = wrapped_calls(call.get("call_id") or item.get("id"), call.get("arguments"))
    return [{**call, "call_id": own, "name": name, "arguments": text} for own, name, text in found] or [item]


def _as_input(item: Mapping[str, object]) -> dict[str, object]:
    """An item as the API accepts it in a request."""
    back = {key: item[key] for key in _NULL_INPUT if key in item} | without_nulls(item, *_NOT_INPUT)
    if item_type(item) == "custom_tool_call_output":
        back.pop("status", None)
    for name in ("content", "output"):
        if parts := items(back.get(name)):
            back[name] = [without_nulls(mapping(part), *_NOT_INPUT) for part in parts]
    if action := mapping(back.get("action")):
        back["action"] = without_nulls(action)
    return back


def _output(result: ToolResult) -> dict[str, object]:
    """The item that answers a call; it repeats who called, and the namespace."""
    call = mapping(sent_call(result))
    custom = item_type(call) == "custom_tool_call"
    answer = {"type": ANSWERS["custom_tool_call" if custom else "function_call"], "call_id": result.call_id}
    echoed = {name: call[name] for name in ("caller", *(() if custom else ("namespace",))) if call.get(name)}
    return {**answer, **echoed, "output": content_parts(result, _content, _text_part)}


def _text_part(text: str) -> Block:
    return {"type": "input_text", "text": text}


def _content(block: Block) -> Block | None:
    """A content block as the API takes it in the output of a function."""
    if block["mimeType"] in IMAGES:
        return {"type": "input_image", "image_url": data_url(block), "detail": "auto"}
    if block["mimeType"] == PDF:
        return {"type": "input_file", "filename": block.get("name") or "file.pdf", "file_data": data_url(block)}
    return None


CODEC: Codec = ResponsesCodec()


class OpenAIResponses(Client):
    """A client of OpenAI's Responses API; the default key is ``OPENAI_API_KEY``. See ``Client``."""

    codec = CODEC
    default_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)
