"""The output items of OpenAI's Responses API, and one item of a stream so far. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from callgate.runtime.models.wire.history import join_pieces
from callgate.runtime.models.wire.members import Handling, members
from callgate.runtime.models.wire.reading import plain_arguments, text_or_empty
from callgate.runtime.models.wire.shapes import items, mapping


def _events(patterns: str) -> list[str]:
    """The events of patterns such as ``audio.{delta,done}``."""
    split = [re.fullmatch(r"([^{]*)(?:\{(.*)\})?", one) for one in patterns.split()]
    return [f"response.{one[1]}{end}" for one in split if one for end in (one[2] or "").split(",")]


CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The item types that call a client's tool, and the field with the arguments. The provider runs all other calls."""
WAITING = {
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "shell_call": "shell_call_output",
    "tool_search_call": "tool_search_output",
}
"""The item types that a client answers and that are no calls of a tool, and the type of the answer."""
ANSWERS = {**WAITING, **{kind: f"{kind}_output" for kind in CALLS}}
"""The item types that a client answers, and the type of the answer."""
MEMBERS = members(
    call=[*CALLS, *_events("function_call_arguments.{delta,done} custom_tool_call_input.{delta,done}")],
    waiting=WAITING,
    provider_ran="code_interpreter_call file_search_call image_generation_call mcp_call mcp_list_tools program web_search_call",
    text="message output_text response.output_text.delta",
    refusal="refusal response.refusal.delta",
    reasoning="reasoning summary_text reasoning_text response.reasoning_summary_text.delta response.reasoning_text.delta",
    history=["additional_tools", "compaction", "program_output", *ANSWERS.values()],
    envelope=_events("output_item.{added,done} {completed,incomplete,failed}"),
    mark=_events("{created,queued,in_progress}"),
    failed="error",
    ignored=_events(
        """
        audio.{delta,done} audio.transcript.{delta,done}
        code_interpreter_call.{in_progress,interpreting,completed} code_interpreter_call_code.{delta,done}
        compaction.compacting content_part.{added,done} file_search_call.{in_progress,searching,completed}
        image_generation_call.{in_progress,generating,partial_image,completed}
        mcp_call.{in_progress,completed,failed} mcp_call_arguments.{delta,done}
        mcp_list_tools.{in_progress,completed,failed} output_text.annotation.added output_text.done
        reasoning_summary_part.{added,done} reasoning_summary_text.done reasoning_text.done refusal.done
        shell_call_command.{added,delta,done} shell_call_output_content.{delta,done}
        web_search_call.{in_progress,searching,completed}
        """
    ),
)
"""Items, parts and events; the final items have what ignored events show."""
_CONTAINERS = frozenset({"container_auto", "container_reference"})
_CALL_IDS = ("call_id", "approval_request_id", "id")
_IDENTITY = ("call_id", "name", "namespace", "caller")


def item_type(item: Mapping[str, object]) -> str:
    """The type of an output item."""
    return text_or_empty(item.get("type"))


def message_text(item: Mapping[str, object]) -> str:
    """The text of a message item, a refusal included."""
    return _texts(item.get("content"), "text", "refusal")


def reasoning_text(item: Mapping[str, object]) -> str:
    """The visible text of a reasoning item."""
    return _texts(item.get("summary"), "text") + _texts(item.get("content"), "text")


def _texts(parts: object, *names: str) -> str:
    return "".join(text_or_empty(mapping(part).get(name)) for part in items(parts) for name in names)


def answers_in(output: Sequence[object]) -> set[tuple[str, object]]:
    """The answers in an output: their types, each with the ids that it may mean."""
    found: set[tuple[str, object]] = set()
    for item in map(mapping, output):
        if (kind := item_type(item)) in ANSWERS.values():
            found |= {(kind, item[name]) for name in _CALL_IDS if isinstance(item.get(name), str)}
    return found


def is_answered(item: Mapping[str, object], answers: set[tuple[str, object]]) -> bool:
    """True if an output with these answers has the one of an item."""
    kind = ANSWERS.get(item_type(item), "")
    return any(isinstance(item.get(name), str) and (kind, item[name]) in answers for name in ("call_id", "id"))


def waits(item: Mapping[str, object], answers: set[tuple[str, object]]) -> bool:
    """True for an item that the client must answer: the provider neither runs it nor has answered it."""
    elsewhere = item.get("execution") == "server" or mapping(item.get("environment")).get("type") in _CONTAINERS
    return item_type(item) in WAITING and not elsewhere and not is_answered(item, answers)


def provider_ran(item: Mapping[str, object], answers: set[tuple[str, object]]) -> bool:
    """True for a call that the provider ran, or that it has answered."""
    kind = item_type(item)
    if kind == "mcp_approval_request":
        return False  # it only asks
    return (
        MEMBERS.get(kind) is Handling.PROVIDER_RAN
        or (kind in WAITING and not waits(item, answers))
        or (kind in CALLS and is_answered(item, answers))
    )


class Item:
    """An output item so far: its first form, its pieces of text, and its final form."""

    __slots__ = ("arguments", "done", "fields", "index", "order", "parts", "pieces", "stated", "tool", "vague")

    def __init__(self, fields: Mapping[str, object], index: object, order: int, tool: str) -> None:
        self.fields = fields
        self.index = index
        self.order = order  # index among the calls
        self.tool = tool
        self.stated = False  # False while only pieces of it came
        self.done: dict[str, object] | None = None
        self.pieces: list[str] = []  # of the arguments
        self.arguments = False  # True once an event repeated them whole
        self.vague = False  # True if some pieces may be those of another call
        self.parts: dict[tuple[str, object], list[str]] = {}  # of the content, by (kind of part, its index)

    def whole(self) -> dict[str, object]:
        """The final item; streamed pieces replace what it lacks."""
        if self.done is not None:
            return self.filled(self.done)
        item = self.filled(self.fields)
        for (kind, _), pieces in self.parts.items():
            field = "summary" if kind == "summary_text" else "content"
            name = "refusal" if kind == "refusal" else "text"
            item[field] = [*items(item.get(field)), {"type": kind, name: join_pieces(pieces)}]
        if self.arguments:
            item.pop("status", None)  # that of its beginning
        elif item_type(item) in WAITING:
            item["status"] = "incomplete"
        return item

    def streamed(self) -> str | None:
        """The arguments that were streamed, if they are whole."""
        text = join_pieces(self.pieces)
        whole = not self.vague and (self.arguments or isinstance(plain_arguments(text), dict))
        return text if whole else None

    def filled(self, item: Mapping[str, object]) -> dict[str, object]:
        """The item; what a call lacks of its identity and arguments is added."""
        field = CALLS.get(item_type(item))
        if field is None:
            return dict(item)
        known = {name: self.fields[name] for name in _IDENTITY if self.fields.get(name) and not item.get(name)}
        if not item.get(field) and self.vague:
            known["status"] = "incomplete"
        elif not item.get(field) and self.pieces:
            known[field] = join_pieces(self.pieces)
        return {**item, **known}

    def may_be(self, item: Mapping[str, object]) -> bool:
        """True if another form of an item may be the same one: a kind that fits, and no other call."""
        ours, other = self.fields.get("call_id"), item.get("call_id")
        return kind_of(self.fields) == kind_of(item) and (not ours or not other or ours == other)


def kind_of(item: Mapping[str, object]) -> str:
    """The type of an item; the two types of calls are one kind."""
    kind = item_type(item)
    return "call" if kind in CALLS else kind
