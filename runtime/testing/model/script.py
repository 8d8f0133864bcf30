"""What a scripted model says, in words of no wire, and what goes wrong on the way."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.testing.model.requests import Asked

USAGE = Usage(input=12, output=7, total=19)
"""What an answer counts where the script does not say."""
Ending: TypeAlias = Literal["close", "reset", "clean"]


class Part:
    """What a turn is made of, besides ``Usage``: ``Say``, ``Think``, ``Call``, ``Stop``, ``Fault``."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Say(Part):
    """The model writes text."""

    text: str


@dataclass(frozen=True, slots=True)
class Think(Part):
    """The model reasons, aloud or, with no text, only in the opaque part that must come back unaltered.

    *signature* is that part, in base64, as Gemini demands; one is made where none is given. Wires without such a thing
    leave it out: Chat Completions and Ollama.
    """

    text: str = ""
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class RawArguments:
    """Arguments as the model wrote them, well-formed or not."""

    text: str


@dataclass(frozen=True, slots=True)
class Call(Part):
    """The model calls a tool, by the name that it was offered. An *id* is made where the wire has them."""

    tool: str
    arguments: Mapping[str, Any] | RawArguments = field(default_factory=dict[str, Any])
    id: str | None = None

    @property
    def written(self) -> str:
        """The arguments as text."""
        return self.arguments.text if isinstance(self.arguments, RawArguments) else json.dumps(dict(self.arguments))

    @property
    def value(self) -> Any:
        """The arguments as a value; the text where that is no JSON."""
        try:
            return json.loads(self.written)
        except ValueError:
            return self.written


@dataclass(frozen=True, slots=True)
class Stop(Part):
    """Why the answer ends: ``length`` or ``filter``, for which each wire has its own word; any other is sent as it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fault(Part):
    """What goes wrong with an answer: put one into its turn, or alone in place of a turn.

    Made by its class methods. Events are counted from 0 as they are sent; an answer that is not streamed is one event.
    """

    kind: Literal["status", "cut", "error", "malformed", "content_type", "slow"]
    status: int = 200
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    events: int | None = None
    byte: int | None = None
    ending: Ending = "close"
    pause: Callable[[int], Any] | None = None

    @classmethod
    def http(
        cls, status: int, message: str = "a fault of the script", *, retry_after: float | str | None = None
    ) -> Fault:
        """This status with the provider's own error body, and a ``Retry-After`` header (seconds, or a date)."""
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        return cls("status", status=status, message=message, headers=headers)

    @classmethod
    def cut(cls, *, events: int | None = None, byte: int | None = None, ending: Ending = "close") -> Fault:
        """The answer ends after so many events or bytes of its body.

        The connection is closed (``close``), reset (``reset``), or, with ``clean``, the HTTP message ends as if this
        had been all: what a proxy makes of a provider that died.

        Raises:
            ValueError: neither or both were given.
        """
        if (events is None) == (byte is None):
            raise ValueError("a cut is after so many events or at a byte: give one of the two")
        return cls("cut", events=events, byte=byte, ending=ending)

    @classmethod
    def reset(cls) -> Fault:
        """The connection is reset before any of the answer, its head included."""
        return cls("cut", ending="reset")

    @classmethod
    def error(cls, *, events: int = 0, message: str = "a fault of the script") -> Fault:
        """The provider's own error event after so many events of a stream, which ends with it.

        An answer that is not streamed is an error with status 500.
        """
        return cls("error", events=events, message=message)

    @classmethod
    def malformed(cls, *, events: int = 0) -> Fault:
        """The JSON of the event of this number ends half-way; the HTTP message is in order."""
        return cls("malformed", events=events)

    @classmethod
    def content_type(cls, value: str = "text/html") -> Fault:
        """The answer is called something else than it is."""
        return cls("content_type", headers={"content-type": value})

    @classmethod
    def slow(cls, pause: Callable[[int], Any]) -> Fault:
        """*pause* is called, and awaited if it is to be, with each event's number before that is sent."""
        return cls("slow", pause=pause)


Spoken: TypeAlias = Say | Think | Call
Told: TypeAlias = Part | Usage | Sequence[Part | Usage]
Step: TypeAlias = Told | Callable[[Asked], Told]
"""One turn of a script: a part, several, or a function of the request that gives them."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model, complete: every call has an id, every thought its signature."""

    parts: tuple[Spoken, ...] = ()
    usage: Usage = USAGE
    stop: str | None = None
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, told: Told, number: int, call_prefix: str | None) -> Turn:
        """The turn of these parts, for the answer of this number.

        Raises:
            TypeError: something else than a part.
        """
        parts = (told,) if isinstance(told, Part | Usage) else tuple(told)
        spoken: list[Spoken] = []
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
                raise TypeError(f"a turn is made of Say, Think, Call, Usage, Stop and Fault, not {type(part).__name__}")
        return cls(
            tuple(spoken),
            next((part for part in parts if isinstance(part, Usage)), USAGE),
            next((part.reason for part in parts if isinstance(part, Stop)), None),
            tuple(part for part in parts if isinstance(part, Fault)),
        )

    @property
    def text(self) -> str:
        """All that it says."""
        return "".join(part.text for part in self.parts if isinstance(part, Say))

    @property
    def reasoning(self) -> str:
        """All that it shows of its reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, Think))

    @property
    def calls(self) -> tuple[Call, ...]:
        """Its calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, Call))

    def ended(self, words: Mapping[str, str]) -> str:
        """The wire's word for why it stopped: *words* has those of ``stop``, ``calls``, ``length`` and ``filter``."""
        reason = self.stop or ("calls" if self.calls else "stop")
        return words.get(reason, reason)


class Script:
    """The turns to come."""

    def __init__(self, steps: Sequence[Step] | Callable[[Asked], Told], *, repeat: bool) -> None:
        self._always: Callable[[Asked], Told] | None = steps if callable(steps) else None
        self._steps: tuple[Step, ...] = () if callable(steps) else tuple(steps)
        self._repeat = repeat
        self.played = 0

    @property
    def left(self) -> int:
        """How many turns of the list have not been asked for."""
        return max(0, len(self._steps) - self.played)

    def next(self, asked: Asked) -> Told | None:
        """What is said to this request; None if the script has ended. What a function of it raises goes through."""
        step: Step | None = self._always
        if step is None and self._steps and (self._repeat or self.left):
            step = self._steps[self.played % len(self._steps)]
        if step is None:
            return None
        self.played += 1
        return step(asked) if callable(step) else step
