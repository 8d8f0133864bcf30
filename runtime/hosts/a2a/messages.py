"""Parsing of client messages, for both dialects; ambiguous messages are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from callgate.providers.ids import new_id
from callgate.runtime.models.wire.shapes import are_mappings, is_list, is_mapping
from callgate.runtime.suspensions.pending import Answer
from callgate.tools.calls import ToolCall
from callgate.tools.record import ToolRecord

MAX_PARTS = 64
"""Maximum number of parts of one message."""
MAX_ID = 128
"""Maximum length of a call id that a client chooses."""
MAX_QUESTION_ID = MAX_ID + 8
"""Maximum length of the id of a question, which is that of its call and a number."""
_CALL = frozenset({"type", "name", "arguments", "id", "idempotency_key"})
_DECISION = frozenset({"type", "id", "decision", "reason", "name", "prompt", "expires_at"})
"""Members of a call and of a decision; a decision may repeat what the agent has sent."""


class BadMessage(Exception):
    """A malformed message. The text goes to the client and quotes nothing of the message."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An approver's decision about a call that waits for approval or consent."""

    approve: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A parsed message: it starts a task, answers suspended calls, decides approvals, or resumes a task (``resumes``).

    ``text`` is for the model, ``call`` is a tool call with its idempotency key ``key``, ``tools`` are client tools,
    which the dispatcher compiles to ``records``.
    ``answers`` and ``decisions`` are by call id.
    """

    text: str = ""
    call: ToolCall | None = None
    key: str | None = None
    tools: tuple[Mapping[str, object], ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict[str, Answer])
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    resumes: bool = False
    records: tuple[ToolRecord, ...] = ()

    @property
    def starts(self) -> bool:
        """True if the message can start a task."""
        return bool(self.call or self.text) and not self.continues

    @property
    def continues(self) -> bool:
        """True if the message is about an existing task."""
        return bool(self.answers or self.decisions or self.resumes)


def parse(texts: Sequence[str], data: Sequence[object]) -> ClientMessage:
    """Parse the text and data parts of a message.

    Raises:
        BadMessage: a part has an unknown type or is malformed, an id is repeated, or the message has several purposes.
    """
    if len(texts) + len(data) > MAX_PARTS:
        raise BadMessage(f"a message has at most {MAX_PARTS} parts")
    seen = _Reader()
    for part in data:
        seen.parse(part)
    text = "\n".join(texts)
    message = ClientMessage(text, seen.call, seen.key, tuple(seen.tools), seen.answers, seen.decisions, seen.resumes)
    kinds = [bool(message.call), bool(message.answers), bool(message.decisions), message.resumes]
    if sum(kinds) > 1 or (message.tools and any(kinds[1:])):
        raise BadMessage("a message must do one thing: make a call, answer calls, decide, or continue")
    if not any(kinds) and not text.strip():
        raise BadMessage("the message is empty")
    return message


class _Reader:
    """Collects the contents of data parts; each type has a method."""

    def __init__(self) -> None:
        self.call: ToolCall | None = None
        self.key: str | None = None
        self.tools: list[Mapping[str, object]] = []
        self.answers: dict[str, Answer] = {}
        self.decisions: dict[str, Decision] = {}
        self.resumes = False
        self._of: dict[str, Callable[[Mapping[str, object]], None]] = {
            "tools": self._tools,
            "tool_call": self._call,
            "tool_result": self._result,
            "answer": self._answer,
            "decision": self._decision,
            "continue": self._continue,
        }

    def parse(self, part: object) -> None:
        kind = part.get("type") if is_mapping(part) else None
        known = self._of.get(kind) if isinstance(kind, str) else None
        if known is None or not is_mapping(part):
            raise BadMessage(f"a data part needs a type: {', '.join(self._of)}")
        known(part)

    def _tools(self, part: Mapping[str, object]) -> None:
        tools = part.get("tools")
        if self.tools or not is_list(tools) or not tools or not are_mappings(tools):
            raise BadMessage("tools: give one list of tool definitions")
        self.tools = list(tools)

    def _call(self, part: Mapping[str, object]) -> None:
        _refuse_others("tool_call", part, _CALL)
        name, arguments = part.get("name"), part.get("arguments", {})
        if self.call is not None or not isinstance(name, str) or not name:
            raise BadMessage("tool_call: give one call with a name")
        if not (isinstance(arguments, str) or is_mapping(arguments)):
            raise BadMessage("tool_call: arguments must be a JSON object, or its text")
        key = part.get("idempotency_key")
        if not isinstance(key, str | None):
            raise BadMessage("tool_call: idempotency_key must be a text")
        self.key = key
        given = "id" in part
        self.call = ToolCall(
            id=call_id_in(part, longest=MAX_ID) if given else f"call_{new_id()}",
            name=name,
            arguments=arguments,
            synthetic_id=not given,
        )

    def _result(self, part: Mapping[str, object]) -> None:
        if ("result" in part) == (part.get("error") is not None):
            raise BadMessage("tool_result: give either a result or an error")
        error = part.get("error")
        if error is not None and not isinstance(error, str):
            raise BadMessage("tool_result: error must be a text")
        self._put(part, Answer(part.get("result"), error))

    def _answer(self, part: Mapping[str, object]) -> None:
        if "value" not in part:
            raise BadMessage("answer: the value is missing")
        self._put(part, Answer(part["value"]))

    def _put(self, part: Mapping[str, object], answer: Answer) -> None:
        call_id = call_id_in(part)
        if call_id in self.answers:
            raise BadMessage("answer each call once")
        self.answers[call_id] = answer

    def _decision(self, part: Mapping[str, object]) -> None:
        _refuse_others("decision", part, _DECISION)
        call_id, decided, reason = call_id_in(part), part.get("decision"), part.get("reason", "")
        if call_id in self.decisions or decided not in ("approve", "deny") or not isinstance(reason, str):
            raise BadMessage("decision: give approve or deny once per call, and a text as the reason")
        self.decisions[call_id] = Decision(decided == "approve", reason)

    def _continue(self, _: Mapping[str, object]) -> None:
        self.resumes = True


def _refuse_others(kind: str, part: Mapping[str, object], known: frozenset[str]) -> None:
    """Refuse members that would have no effect, such as a key with another spelling, or an edit of an approver.

    Raises:
        BadMessage: there is one.
    """
    if not part.keys() <= known:
        raise BadMessage(f"{kind} has a member that is not known; it takes {', '.join(sorted(known))}")


def call_id_in(part: Mapping[str, object], name: str = "id", longest: int = MAX_QUESTION_ID) -> str:
    """Return the id of a call or a question in a part.

    Raises:
        BadMessage: the id is missing or too long.
    """
    given = part.get(name)
    if not isinstance(given, str) or not 0 < len(given) <= longest:
        raise BadMessage(f"{name} must be a text of 1 to {longest} characters")
    return given
