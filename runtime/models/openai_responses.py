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
from callgate.runtime.models.wire.endings import table
from callgate.runtime.models.wire.folds.responses import CALLS, ResponsesFold, item_type, message_text, reasoning_text
from callgate.runtime.models.wire.history import arguments_text, legal_name, sent_call, without_nulls
from callgate.runtime.models.wire.reading import RawCall, qualified, text_or_none, with_calls
from callgate.runtime.models.wire.result_text import result_text
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
)
"""Statuses, and reasons of an incomplete response."""

WAITING = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "local_shell_call",
        "mcp_approval_request",
        "shell_call",
        "tool_search_call",
    }
)
"""Items that the client answers, unless the output has the answer of the provider."""
PROVIDER_RAN = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    }
)
"""Items of tools that the provider ran itself."""
OTHER_ITEMS = frozenset(
    {
        "additional_tools",
        "apply_patch_call_output",
        "compaction",
        "computer_call_output",
        "custom_tool_call_output",
        "function_call_output",
        "local_shell_call_output",
        "mcp_approval_response",
        "message",
        "program",
        "program_output",
        "reasoning",
        "shell_call_output",
        "tool_search_output",
    }
)
"""Items that are text, reasoning, or answers of other items; they go back in the history."""
_NOT_INPUT = ("created_by", "parsed_arguments")


class ResponsesCodec(BaseCodec):
    """The codec of ``/v1/responses``.

    Output items go back unchanged, including reasoning with its encrypted content. The text of a ``custom`` tool call
    becomes its arguments, which hydration then refuses.
    """

    name = "openai_responses"
    endings = ENDINGS

    def translate(self, definitions: Sequence[ToolDefinition]) -> Translation:
        """Build ``{"tools": [{type, name, description, parameters, strict}]}``; see ``Codec``."""
        return translated(definitions, openai_view, _tool, most=OPENAI_DESCRIPTION)

    def results(self, results: Sequence[ToolResult], translation: Translation | None = None) -> list[dict[str, Any]]:
        """Build one ``function_call_output`` item for each result; see ``Codec``."""
        return [
            {"type": _output_type(result), "call_id": result.call_id, "output": result_text(result)}
            for result in results
        ]

    def is_answer(self, body: Mapping[str, Any]) -> bool:
        """It has output, also if that is empty."""
        return isinstance(body.get("output"), list | tuple)

    def reason_in(self, body: Mapping[str, Any]) -> object:
        """The reason of an incomplete response, else its status."""
        reason = mapping(body.get("incomplete_details")).get("reason")
        status = body.get("status")
        if _running(status):
            return None
        return reason if reason and status == "incomplete" else status

    def unfinished_in(self, body: Mapping[str, Any]) -> str | None:
        status = body.get("status")
        return f"the status is {status!r}" if _running(status) or not status else None

    def content_in(self, body: Mapping[str, Any]) -> Content:
        """A refusal; images that the provider made."""
        output = [mapping(item) for item in items(body.get("output"))]
        parts = [mapping(part) for item in output for part in items(item.get("content"))]
        return {
            "refused": any(part.get("type") == "refusal" for part in parts),
            "media": any(item.get("type") == "image_generation_call" for item in output),
        }

    def calls_in(self, body: Mapping[str, Any], cut: bool) -> list[RawCall]:
        """The ``function_call`` items.

        The provider writes one item after the other. In a response that was cut short, a call is truncated if its
        status is not ``completed``, or if it is the last item.
        """
        output = items(body.get("output"))
        found: list[RawCall] = []
        for position, item in enumerate(output, 1):
            call = mapping(item)
            if item_type(call) in CALLS:
                status = call.get("status")
                truncated = (
                    status == "incomplete"
                    or _running(status)
                    or (cut and (status != "completed" or position == len(output)))
                )
                call_id = call.get("call_id") or call.get("id")
                name, custom = qualified(call.get("name"), call.get("namespace")), item_type(call) == "custom_tool_call"
                arguments = call.get(CALLS[item_type(call)])
                found.append(RawCall(name, arguments, call_id, item, truncated, custom))
        return found

    def fields_in(self, body: Mapping[str, Any]) -> ReplyFields:
        """The fields of all output items; a refusal is read as text. ``stop`` is the reason of an incomplete response, else the status."""
        output = [mapping(item) for item in items(body.get("output"))]
        reason = mapping(body.get("incomplete_details")).get("reason")
        return ReplyFields(
            text="".join(message_text(item) for item in output if item.get("type") == "message"),
            reasoning="".join(reasoning_text(item) for item in output if item.get("type") == "reasoning"),
            stop=text_or_none(reason) or text_or_none(body.get("status")),
            usage=openai_usage(mapping(body.get("usage")), "input_tokens", "output_tokens"),
            model=text_or_none(body.get("model")),
            id=text_or_none(body.get("id")),
            waiting=tuple(item for item in output if _waits(item, output)),
            provider_ran=tuple(item for item in output if _ran(item, output)),
        )

    def history_of(self, body: Mapping[str, Any], found: Sequence[tuple[RawCall, ToolCall]]) -> list[dict[str, Any]]:
        """The items without null fields, which the API refuses as input."""
        sent: list[dict[str, Any]] = []
        for item, call in with_calls(items(body.get("output")), found):
            back = without_nulls(item, *_NOT_INPUT)
            if call is not None:
                back |= {"call_id": call.id, "name": legal_name(item.get("name"))}
                if item_type(item) == "function_call":
                    back["arguments"] = arguments_text(item.get("arguments"))
            if item_type(item) and (call is not None or item_type(item) not in CALLS):
                sent.append(back)
        return sent

    def new_fold(self, tool_of: Callable[[str], str]) -> ResponsesFold:
        return ResponsesFold(tool_of)

    def request_for(self, messages: list[dict[str, Any]], model: str, stream: bool) -> Request:
        """Ask ``responses``; the messages are input items."""
        return Request("responses", {"model": model, "input": messages, "stream": stream or None})


def _tool(definition: ToolDefinition, wire_name: str, view: View) -> dict[str, Any]:
    strict = bool(view.strict)  # always sent: unlike Chat Completions, this API defaults to true
    return {
        "type": "function",
        "name": wire_name,
        **described(definition, OPENAI_DESCRIPTION),
        "parameters": view.schema,
        "strict": strict,
    }


def _running(status: object) -> bool:
    return isinstance(status, str) and status in {"queued", "in_progress"}


def _waits(item: Mapping[str, Any], output: Sequence[Mapping[str, Any]]) -> bool:
    """True for an item that the client must answer and the output does not answer."""
    return item_type(item) in WAITING and item.get("execution") != "server" and not _answered(item, output)


def _ran(item: Mapping[str, Any], output: Sequence[Mapping[str, Any]]) -> bool:
    return item_type(item) in PROVIDER_RAN or (item_type(item) in WAITING and not _waits(item, output))


def _answered(item: Mapping[str, Any], output: Sequence[Mapping[str, Any]]) -> bool:
    call_id = item.get("call_id")
    return call_id is not None and any(
        other.get("call_id") == call_id and item_type(other) == f"{item_type(item)}_output" for other in output
    )


def _output_type(result: ToolResult) -> str:
    custom = mapping(sent_call(result)).get("type") == "custom_tool_call"
    return "custom_tool_call_output" if custom else "function_call_output"


CODEC: Codec = ResponsesCodec()


class OpenAIResponses(Client):
    """A client of OpenAI's Responses API; the default key is ``OPENAI_API_KEY``. See ``Client``."""

    codec = CODEC
    default_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)
