"""The script of a model: the parts of its responses, the same for all wires, and the faults on the way."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from callgate.providers.kinds import check_fields, fault_of_kind
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.testing.model.requests import ModelRequest

USAGE = Usage(input=12, output=7, total=19)
"""The usage of a response for which the script sets none."""
CutEnding: TypeAlias = Literal["close", "reset", "clean"]


class Part:
    """A part of a turn: ``Say``, ``Think``, ``Call``, ``Stop`` or ``Fault``. ``Usage`` may be in a turn too.

    Raises:
        TypeError: a member is of another type, or the arguments of a call are not JSON; such a turn would be lost.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        made: Any = self  # each subclass is a dataclass
        check_fields(made, TypeError)


@dataclass(frozen=True, slots=True)
class Say(Part):
    """The model writes text."""

    text: str


@dataclass(frozen=True, slots=True)
class Think(Part):
    """The model reasons. Without text, only the signature is sent, which later requests must repeat unchanged.

    *signature* is in base64, as Gemini requires; by default one is made. Chat Completions and Ollama have no signatures.
    """

    text: str = ""
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class RawArguments:
    """Arguments as text, which may be malformed."""

    text: str

    def __post_init__(self) -> None:
        check_fields(self, TypeError)


@dataclass(frozen=True, slots=True)
class Call(Part):
    """The model calls a tool by its wire name. By default an *id* is made if the wire has ids."""

    tool: str
    arguments: Mapping[str, Any] | RawArguments = field(default_factory=dict[str, Any])
    id: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, TypeError)
        _ = self.written  # raises where a value is not JSON

    @property
    def written(self) -> str:
        """The arguments as text."""
        return self.arguments.text if isinstance(self.arguments, RawArguments) else json.dumps(dict(self.arguments))

    @property
    def value(self) -> Any:
        """The arguments as a value, or as text if they are not JSON."""
        try:
            return json.loads(self.written)
        except ValueError:
            return self.written


@dataclass(frozen=True, slots=True)
class Stop(Part):
    """The stop reason: ``length`` or ``filter``, for which each wire has its own word; other reasons are sent unchanged."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fault(Part):
    """A fault of a response: put it into a turn, or use it as a turn. The class methods make faults.

    Events are counted from 0 in the order of sending; a response that is not streamed is one event.
    """

    kind: Literal["status", "cut", "error", "malformed", "content_type", "slow"]
    status: int = 200
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    events: int | None = None
    byte: int | None = None
    ending: CutEnding = "close"
    pause: Callable[[int], Any] | None = None

    @classmethod
    def http(
        cls, status: int, message: str = "a fault of the script", *, retry_after: float | str | None = None
    ) -> Fault:
        """Respond with this status, the provider's error body, and a ``Retry-After`` header (seconds or a date)."""
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        return cls("status", status=status, message=message, headers=headers)

    @classmethod
    def cut(cls, *, events: int | None = None, byte: int | None = None, ending: CutEnding = "close") -> Fault:
        """Cut the response after a number of events, or at a byte of its body.

        The connection is closed (``close``) or reset (``reset``). With ``clean`` the HTTP message ends normally, as a
        proxy ends it when the provider has failed.

        Raises:
            ValueError: neither or both of *events* and *byte* are given.
        """
        if (events is None) == (byte is None):
            raise ValueError("a cut needs either events= or byte=")
        return cls("cut", events=events, byte=byte, ending=ending)

    @classmethod
    def reset(cls) -> Fault:
        """Reset the connection before the head of the response."""
        return cls("cut", ending="reset")

    @classmethod
    def error(cls, *, events: int = 0, message: str = "a fault of the script") -> Fault:
        """End a stream with the provider's error event after a number of events.

        A response that is not streamed becomes an error with status 500.
        """
        return cls("error", events=events, message=message)

    @classmethod
    def malformed(cls, *, events: int = 0) -> Fault:
        """Cut the JSON of one event in half; the HTTP message stays valid."""
        return cls("malformed", events=events)

    @classmethod
    def content_type(cls, value: str = "text/html") -> Fault:
        """Send a wrong content type."""
        return cls("content_type", headers={"content-type": value})

    @classmethod
    def slow(cls, pause: Callable[[int], object]) -> Fault:
        """Call *pause* with the number of each event before it is sent, and await its result if it is awaitable."""
        return cls("slow", pause=pause)


ContentPart: TypeAlias = Say | Think | Call
TurnParts: TypeAlias = Part | Usage | Sequence[Part | Usage]
ScriptItem: TypeAlias = TurnParts | Callable[[ModelRequest], TurnParts]
"""One turn of a script: a part, several parts, or a function that makes them from the request."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of the model, in which every call has an id and every thought a signature."""

    parts: tuple[ContentPart, ...] = ()
    usage: Usage = USAGE
    stop: str | None = None
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, given: TurnParts, number: int, call_prefix: str | None) -> Turn:
        """Make the turn for the request with this number.

        Raises:
            TypeError: an item is not a part.
        """
        parts = (given,) if isinstance(given, Part | Usage) else tuple(given)
        spoken: list[ContentPart] = []
        calls = 0
        for part in parts:
            if isinstance(part, Call):
                made = None if call_prefix is None else f"{call_prefix}{number}_{calls}"
                spoken.append(replace(part, id=part.id or made))
                calls += 1
            elif isinstance(part, Think):
                blob = base64.b64encode(f"signature {number}.{len(spoken)}".encode()).decode()
                spoken.append(replace(part, signature=part.signature or blob))
            elif isinstance(part, Say):
                spoken.append(part)
            elif not isinstance(part, Usage | Stop | Fault):
                raise TypeError(
                    f"a turn consists of Say, Think, Call, Usage, Stop and Fault, not {type(part).__name__}"
                )
        return cls(
            tuple(spoken),
            next((part for part in parts if isinstance(part, Usage)), USAGE),
            next((part.reason for part in parts if isinstance(part, Stop)), None),
            tuple(part for part in parts if isinstance(part, Fault)),
        )

    @property
    def text(self) -> str:
        """The text of the turn."""
        return "".join(part.text for part in self.parts if isinstance(part, Say))

    @property
    def reasoning(self) -> str:
        """The visible reasoning of the turn."""
        return "".join(part.text for part in self.parts if isinstance(part, Think))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the turn, in order."""
        return tuple(part for part in self.parts if isinstance(part, Call))

    def stop_reason(self, words: Mapping[str, str]) -> str:
        """The wire's stop reason; *words* has its words for ``stop``, ``calls``, ``length`` and ``filter``."""
        reason = self.stop or ("calls" if self.calls else "stop")
        return words.get(reason, reason)


class ScriptPlayer:
    """Plays the turns of a script, one for each request."""

    def __init__(self, steps: Sequence[ScriptItem] | Callable[[ModelRequest], TurnParts], *, repeat: bool) -> None:
        if fault_of_kind(steps, Sequence[object] | Callable[[ModelRequest], TurnParts]) is not None:
            raise TypeError(
                "a script is a list of turns, or a function of the request; write ScriptedModel([Say('Hello.')])"
            )
        self._always: Callable[[ModelRequest], TurnParts] | None = steps if callable(steps) else None
        self._steps: tuple[ScriptItem, ...] = () if callable(steps) else tuple(steps)
        self._repeat = repeat
        self.played = 0

    @property
    def left(self) -> int:
        """The number of turns that have not been played."""
        return max(0, len(self._steps) - self.played)

    def next(self, request: ModelRequest) -> TurnParts | None:
        """Return the turn for a request; None if the script has ended. Errors of a function in the script are raised."""
        step: ScriptItem | None = self._always
        if step is None and self._steps and (self._repeat or self.left):
            step = self._steps[self.played % len(self._steps)]
        if step is None:
            return None
        self.played += 1
        return step(request) if callable(step) else step
