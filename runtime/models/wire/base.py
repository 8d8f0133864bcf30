"""What the codecs do alike: each wire says where its calls are, what else is in an answer, and how it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from callgate.runtime.models.wire.codec import Messages, Request, Translation, as_messages, request_body
from callgate.runtime.models.wire.decoder import Decoder, Fold
from callgate.runtime.models.wire.framing import Framing, Sniffed
from callgate.runtime.models.wire.reading import RawCall, answer, count, error_of, pair, tool_calls, tool_namer
from callgate.runtime.models.wire.reply import Reply, Usage
from callgate.runtime.models.wire.shapes import mapping
from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition


class Rest(TypedDict, total=False):
    """What a wire reads for a ``Reply`` beside its calls; see there. What it does not know it leaves out."""

    text: str
    reasoning: str
    stop: str | None
    truncated: bool
    usage: Usage
    model: str | None
    id: str | None


class BaseCodec(ABC):
    """``Codec``, but for ``name``, ``translate`` and ``results``; see there for what the methods promise."""

    framing: type[Framing] = Sniffed
    """How a stream is cut into chunks. The default takes server-sent events, and a whole answer in their place, too."""

    def calls(self, response: Mapping[str, Any], translation: Translation | None = None) -> list[ToolCall]:
        """See ``Codec``."""
        body = answer(response)
        return [] if self._error(body) else tool_calls(self._found(body), translation)

    def reply(self, response: Mapping[str, Any], translation: Translation | None = None) -> Reply:
        """See ``Codec``."""
        body = answer(response)
        error = self._error(body)
        found = [] if error else pair(self._found(body), translation)
        calls = tuple(call for _, call in found)
        messages = () if error else tuple(self._history(body, found))
        return Reply(calls=calls, messages=messages, error=error, body=body, **self._read(body))

    def decoder(self, translation: Translation | None = None) -> Decoder:
        """See ``Codec``."""
        fold = self._fold(tool_namer(translation))
        return Decoder(fold, lambda body: self.reply(body, translation), self.framing())

    def request(
        self,
        messages: Messages,
        translation: Translation | None = None,
        *,
        model: str,
        stream: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Request:
        """See ``Codec``."""
        asked = self._asked(as_messages(messages), model, stream)
        return Request(asked.path, request_body(asked.body, translation, options))

    # ------------------------------------------------------------------ what a wire says; odd content never raises

    def _error(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The provider's error in the place of an answer."""
        return error_of(body)

    @abstractmethod
    def _found(self, body: Mapping[str, Any]) -> Iterable[RawCall]:
        """The calls of an answer as they are spelled, in order."""

    @abstractmethod
    def _read(self, body: Mapping[str, Any]) -> Rest:
        """All else that an answer says."""

    @abstractmethod
    def _history(self, body: Mapping[str, Any], found: Sequence[tuple[RawCall, ToolCall]]) -> Iterable[dict[str, Any]]:
        """An answer as the messages for the history; *found* are its calls, and what they became."""

    @abstractmethod
    def _fold(self, tool_of: Callable[[str], str]) -> Fold:
        """What puts a stream together; *tool_of* leads from a wire name to the tool's own."""

    @abstractmethod
    def _asked(self, messages: list[dict[str, Any]], model: str, stream: bool) -> Request:
        """Where to ask, and the body but for tools and options; what is None in it is left out."""


def described(definition: ToolDefinition) -> dict[str, Any]:
    """The description in a tool's spelling: nothing where it has none."""
    return {} if definition.description is None else {"description": definition.description}


def openai_usage(usage: Mapping[str, Any], asked: str, answered: str) -> Usage:
    """What OpenAI's two APIs count; *asked* and *answered* are their names for the tokens in and out."""
    return Usage(
        input=count(usage, asked),
        output=count(usage, answered),
        total=count(usage, "total_tokens"),
        cached=count(mapping(usage.get(f"{asked}_details")), "cached_tokens"),
        reasoning=count(mapping(usage.get(f"{answered}_details")), "reasoning_tokens"),
    )
