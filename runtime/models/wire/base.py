"""The base class of codecs: a wire implements the few methods that depend on its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import ClassVar, Self, TypedDict

from callgate.runtime.models.wire.calls_in_text import LIKE_A_CALL
from callgate.runtime.models.wire.codec import Messages, Request, Translation, as_messages, request_body
from callgate.runtime.models.wire.decoder import NO_ANSWER, Cut, Decoder, Fold
from callgate.runtime.models.wire.endings import GOOD, INCOMPLETE, NO_CALL_RUNS, Endings, ReplyEnding
from callgate.runtime.models.wire.framing import Framing, Sniffed
from callgate.runtime.models.wire.members import Members
from callgate.runtime.models.wire.reading import RawCall, count, error_of, pair, response_body
from callgate.runtime.models.wire.reply import Reply, Usage
from callgate.runtime.models.wire.shapes import mapping
from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition


class ReplyFields(TypedDict, total=False):
    """The fields of a ``Reply`` that a wire reads besides the calls; unknown ones are left out."""

    text: str
    reasoning: str
    stop: str | None
    usage: Usage
    model: str | None
    id: str | None
    waiting: tuple[Mapping[str, object], ...]
    provider_ran: tuple[Mapping[str, object], ...]


class Content(TypedDict, total=False):
    """Content besides text and calls on which the ending of an answer depends."""

    refused: bool
    media: bool


class BaseCodec(ABC):
    """Implements ``Codec`` except ``name``, ``translate`` and ``results``.

    A subclass implements the abstract methods. They must not raise on unexpected content.
    """

    framing: type[Framing] = Sniffed
    """Splits a stream into chunks. The default reads server-sent events, and also a response that is not streamed."""
    endings: ClassVar[Endings]
    """The closed table of the wire, in the provider's spelling; upper and lower case are the same."""
    members: ClassVar[Members]
    """What the provider sends, and what the codec does with it. Kinds that are not in it are ignored."""
    text_calls = False
    """Whether calls are read from the text of an answer; see ``with_text_calls``."""
    _words: Endings

    def __init_subclass__(cls) -> None:
        cls._words = {word.lower(): ending for word, ending in cls.endings.items()}

    def with_endings(self, endings: Mapping[str, str]) -> Self:
        """Copy the codec, with more *endings* for a server with reasons of its own; they override those of the table.

        Raises:
            ValueError: a value is no ``ReplyEnding``.
        """
        made = copy(self)
        made._words = {**self._words, **{word.lower(): ReplyEnding(ending) for word, ending in endings.items()}}
        return made

    def with_text_calls(self) -> Self:
        """Copy the codec; the copy reads calls that the model wrote into its text, where its server did not read them.

        The risk: a text that only quotes a call, such as one from a document, runs it.

        Raises:
            ValueError: the servers of this wire read all calls themselves.
        """
        if type(self).with_calls_of_text is BaseCodec.with_calls_of_text:
            raise ValueError("the servers of this wire read all calls themselves")
        made = copy(self)
        made.text_calls = True
        return made

    def with_calls_of_text(self, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the body with the calls in its text as calls, on wires of servers that may not read them."""
        return body

    def unpacked(self, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the body with the calls in wrappers, such as ``multi_tool_use.parallel``, as calls of their own."""
        return body

    def _prepared(self, body: Mapping[str, object]) -> Mapping[str, object]:
        return self.unpacked(self.with_calls_of_text(body) if self.text_calls else body)

    def calls(self, response: Mapping[str, object], translation: Translation | None = None) -> list[ToolCall]:
        """See ``Codec``."""
        body = self._prepared(response_body(response))
        if self.error_in(body):
            return []
        ending, _ = self._judged(body)
        return [call for _, call in self._calls_of(body, ending, translation)]

    def _calls_of(
        self, body: Mapping[str, object], ending: ReplyEnding, translation: Translation | None
    ) -> list[tuple[RawCall, ToolCall]]:
        found = pair(self.calls_in(body, ending in INCOMPLETE), translation)
        if ending not in NO_CALL_RUNS:
            return found
        return [(raw, call if call.truncated else replace(call, truncated=True)) for raw, call in found]

    def reply(self, response: Mapping[str, object], translation: Translation | None = None) -> Reply:
        """See ``Codec``."""
        return self._reply(response_body(response), translation)

    def _reply(self, body: Mapping[str, object], translation: Translation | None, cut: Cut | None = None) -> Reply:
        """Read a body; *cut* says why the stream that it was assembled from is not whole, if it is not."""
        sent, body = body, self._prepared(body)
        error = self.error_in(body)
        ending, problem = self._judged(body) if cut is None else (ReplyEnding.LOST, cut.reason)
        if error is None and not (self.is_answer(body) if cut is None else cut.began):
            error, problem = {"message": NO_ANSWER}, NO_ANSWER
        fields = self.fields_in(body)
        found = [] if error else self._calls_of(body, ending, translation)
        if error is None and ending in GOOD:
            ending = self._by_content(ending, body, fields, bool(found))
        if error is None and ending is ReplyEnding.FAILED:
            error = {
                "message": f"the answer ended with {fields.get('stop')!r}" + ("" if found else " and without a call")
            }
        ending = ReplyEnding.FAILED if error else ending
        return Reply(
            calls=tuple(call for _, call in found),
            messages=() if error else tuple(self.history_of(body, found)),
            truncated=ending in INCOMPLETE and (cut is not None or problem != NO_ANSWER),
            error=error,
            body=sent,
            judged=ending,
            problem=problem,
            looks_like_call=not found and LIKE_A_CALL.search(fields.get("text", "")) is not None,
            **fields,
        )

    def _judged(self, body: Mapping[str, object]) -> tuple[ReplyEnding, str | None]:
        """Return the ending of a body that was not streamed; an answer that is not finished is lost."""
        ending, problem = self._ending_of(body)
        unfinished = self.unfinished_in(body) if ending in GOOD else None
        return (ReplyEnding.LOST, unfinished) if unfinished else (ending, problem)

    def _ending_of(self, body: Mapping[str, object]) -> tuple[ReplyEnding, str | None]:
        """Return the ending that the stop reason means, and the problem if the answer is lost."""
        reason = self.reason_in(body)
        if reason is None or reason == "":
            return self._unless_refused(ReplyEnding.DONE, body), None
        ending = self._words.get(reason.lower()) if isinstance(reason, str) else None
        if ending is None or ending is ReplyEnding.LOST:
            shown = reason[:80] if isinstance(reason, str) else type(reason).__name__
            return ReplyEnding.LOST, f"the stop reason {shown!r} is {'unknown' if ending is None else 'no end'}"
        return self._unless_refused(ending, body), None

    def _unless_refused(self, ending: ReplyEnding, body: Mapping[str, object]) -> ReplyEnding:
        return ReplyEnding.REFUSED if ending in GOOD and self.content_in(body).get("refused") else ending

    def _by_content(
        self, ending: ReplyEnding, body: Mapping[str, object], fields: ReplyFields, called: bool
    ) -> ReplyEnding:
        """Return the ending of an answer with a good stop reason, which its content decides."""
        if fields.get("waiting"):
            return ReplyEnding.WAITING
        if called:
            return ReplyEnding.CALLS
        if ending is ReplyEnding.CALLS:
            return ReplyEnding.FAILED  # it says that it calls a tool
        if ending is ReplyEnding.DONE and not (fields.get("text") or self.content_in(body).get("media")):
            return ReplyEnding.EMPTY
        return ending

    def decoder(self, translation: Translation | None = None) -> Decoder:
        """See ``Codec``."""
        fold = self.new_fold(translation.names.tool if translation else str)
        return Decoder(fold, lambda body, cut: self._reply(body, translation, cut), self.framing())

    def request(
        self,
        messages: Messages,
        translation: Translation | None = None,
        *,
        model: str,
        stream: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> Request:
        """See ``Codec``."""
        base = self.request_for(as_messages(messages), model, stream)
        return Request(base.path, request_body(base.body, translation, options))

    # ------------------------------------------------------------------ implemented by each wire

    def error_in(self, body: Mapping[str, object]) -> Mapping[str, object] | None:
        """The provider's error, if the response is one."""
        return error_of(body)

    def content_in(self, body: Mapping[str, object]) -> Content:
        """Content besides text and calls on which the ending depends."""
        return {}

    def unfinished_in(self, body: Mapping[str, object]) -> str | None:
        """Why the body is not a finished answer, such as a missing stop reason that the provider always sends, or None."""
        return None

    @abstractmethod
    def is_answer(self, body: Mapping[str, object]) -> bool:
        """True if the body has the form of an answer of this wire."""

    @abstractmethod
    def reason_in(self, body: Mapping[str, object]) -> object:
        """The stop reason or status, as the provider sent it; None if it sent none."""

    @abstractmethod
    def calls_in(self, body: Mapping[str, object], cut: bool) -> Iterable[RawCall]:
        """The calls of a response, in order and as the wire spells them; *cut*: the last of them may be incomplete."""

    @abstractmethod
    def fields_in(self, body: Mapping[str, object]) -> ReplyFields:
        """The other fields of a response."""

    @abstractmethod
    def history_of(
        self, body: Mapping[str, object], found: Sequence[tuple[RawCall, ToolCall]]
    ) -> Iterable[dict[str, object]]:
        """The messages that repeat a response in the history; *found* pairs its calls with their tool calls."""

    @abstractmethod
    def new_fold(self, tool_of: Callable[[str], str]) -> Fold:
        """Make the fold that assembles a stream; *tool_of* maps a wire name to the tool's name."""

    @abstractmethod
    def request_for(self, messages: list[dict[str, object]], model: str, stream: bool) -> Request:
        """The request without tools and options; fields that are None are left out."""


OPENAI_DESCRIPTION = 1024
"""The characters that OpenAI's two APIs accept as the description of a tool."""


def described(definition: ToolDefinition, most: int | None = None) -> dict[str, object]:
    """The ``description`` field of a tool, shortened to *most* characters; no field if the tool has none."""
    text = definition.description
    if text is None:
        return {}
    return {"description": text if most is None or len(text) <= most else text[: most - 1].rstrip() + "…"}


def openai_usage(usage: Mapping[str, object], input: str, output: str) -> Usage:
    """The usage that OpenAI's two APIs report; *input* and *output* are their names for the token counts."""
    return Usage(
        input=count(usage, input),
        output=count(usage, output),
        total=count(usage, "total_tokens"),
        cached=count(mapping(usage.get(f"{input}_details")), "cached_tokens"),
        reasoning=count(mapping(usage.get(f"{output}_details")), "reasoning_tokens"),
    )
