"""What a client asks or answers, whatever the dialect: read from texts and data, refused where it is not clear. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callgate.providers.ids import new_id
from callgate.runtime.models.wire.shapes import is_list, is_mapping
from callgate.runtime.suspensions.pending import Answer
from callgate.tools.calls import ToolCall

MAX_PARTS = 64
"""Parts of one message."""
MAX_ID = 128
"""Characters of an id that a client gives to a call."""


class BadAsk(Exception):
    """A message that cannot be read; the text is for whoever sent it, and holds nothing of it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decides about a call that waits for approval or consent."""

    approve: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one message is about: it starts something, answers, decides, or asks to look again (``again``).

    ``text`` is for a model, ``call`` for a tool, under the idempotency key ``key`` if there is one, ``tools`` are the
    client's own; ``answers`` and ``decisions`` go by call id.
    """

    text: str = ""
    call: ToolCall | None = None
    key: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict[str, Answer])
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    again: bool = False

    @property
    def starts(self) -> bool:
        """Whether it can begin a task."""
        return bool(self.call or self.text) and not self.continues

    @property
    def continues(self) -> bool:
        """Whether it is about a task that there is."""
        return bool(self.answers or self.decisions or self.again)


def read(texts: Sequence[str], data: Sequence[Any]) -> Asked:
    """What a message says, in text and data parts.

    Raises:
        BadAsk: a part is of no known type or badly made, an id comes twice, or it says several things at once.
    """
    if len(texts) + len(data) > MAX_PARTS:
        raise BadAsk(f"a message has {MAX_PARTS} parts at most")
    seen = _Reader()
    for part in data:
        seen.read(part)
    text = "\n".join(texts)
    asked = Asked(text, seen.call, seen.key, tuple(seen.tools), seen.answers, seen.decisions, seen.again)
    kinds = [bool(asked.call), bool(asked.answers), bool(asked.decisions), asked.again]
    if sum(kinds) > 1 or (asked.tools and any(kinds[1:])):
        raise BadAsk("a message makes a call, answers calls, decides, or continues: one of these")
    if not any(kinds) and not text.strip():
        raise BadAsk("the message is empty")
    return asked


class _Reader:
    """Collects what data parts say; each type has a method of its name."""

    def __init__(self) -> None:
        self.call: ToolCall | None = None
        self.key: str | None = None
        self.tools: list[Mapping[str, Any]] = []
        self.answers: dict[str, Answer] = {}
        self.decisions: dict[str, Decision] = {}
        self.again = False
        self._of: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "tools": self._tools,
            "tool_call": self._call,
            "tool_result": self._result,
            "answer": self._answer,
            "decision": self._decision,
            "continue": self._continue,
        }

    def read(self, part: Any) -> None:
        kind = part.get("type") if is_mapping(part) else None
        known = self._of.get(kind) if isinstance(kind, str) else None
        if known is None:
            raise BadAsk(f"a data part has a type: {', '.join(self._of)}")
        known(part)

    def _tools(self, part: Mapping[str, Any]) -> None:
        tools = part.get("tools")
        if self.tools or not is_list(tools) or not tools or not all(map(is_mapping, tools)):
            raise BadAsk("tools: one list of tool definitions")
        self.tools = list(tools)

    def _call(self, part: Mapping[str, Any]) -> None:
        name, arguments = part.get("name"), part.get("arguments", {})
        if self.call is not None or not isinstance(name, str) or not name:
            raise BadAsk("tool_call: one a message, with a name")
        if not (isinstance(arguments, str) or is_mapping(arguments)):
            raise BadAsk("tool_call: arguments are an object, or the text of one")
        self.key = part.get("idempotency_key")
        if not isinstance(self.key, str | None):
            raise BadAsk("tool_call: an idempotency_key is a text")
        given = "id" in part
        self.call = ToolCall(call_id_in(part) if given else f"call_{new_id()}", name, arguments, synthetic_id=not given)

    def _result(self, part: Mapping[str, Any]) -> None:
        if ("result" in part) == (part.get("error") is not None):
            raise BadAsk("tool_result: either a result or an error")
        error = part.get("error")
        if error is not None and not isinstance(error, str):
            raise BadAsk("tool_result: an error is a text")
        self._put(part, Answer(part.get("result"), error))

    def _answer(self, part: Mapping[str, Any]) -> None:
        if "value" not in part:
            raise BadAsk("answer: there is no value")
        self._put(part, Answer(part["value"]))

    def _put(self, part: Mapping[str, Any], answer: Answer) -> None:
        call_id = call_id_in(part)
        if call_id in self.answers:
            raise BadAsk("a call is answered once")
        self.answers[call_id] = answer

    def _decision(self, part: Mapping[str, Any]) -> None:
        call_id, decided, reason = call_id_in(part), part.get("decision"), part.get("reason", "")
        if call_id in self.decisions or decided not in ("approve", "deny") or not isinstance(reason, str):
            raise BadAsk("decision: approve or deny, once a call, with a text as its reason")
        self.decisions[call_id] = Decision(decided == "approve", reason)

    def _continue(self, _: Mapping[str, Any]) -> None:
        self.again = True


def call_id_in(part: Mapping[str, Any], name: str = "id") -> str:
    """The id of a call.

    Raises:
        BadAsk: there is none, or it is too long.
    """
    given = part.get(name)
    if not isinstance(given, str) or not 0 < len(given) <= MAX_ID:
        raise BadAsk(f"{name} is a text of 1 to {MAX_ID} characters")
    return given
