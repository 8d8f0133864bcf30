"""The endings of a model's answer, and the closed tables that map stop reasons to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, TypeVar

_Kind = TypeVar("_Kind", bound=StrEnum)


class ReplyEnding(StrEnum):
    """The way in which one answer of a model ended.

    ``done``: a final answer. ``calls``: the model calls tools. ``truncated``: a limit cut the answer. ``refused``: the
    model or a filter refused. ``waiting``: the client must act on an item that is no call of a tool. ``paused``: the
    provider goes on when it gets the same history again. ``failed``: the provider reports an error. ``empty``: the
    answer has neither text nor a call. ``lost``: the answer is not known to be whole.

    Calls run only after ``calls``, ``waiting`` and, as far as each is complete, ``truncated``.
    """

    DONE = "done"
    CALLS = "calls"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    WAITING = "waiting"
    PAUSED = "paused"
    FAILED = "failed"
    EMPTY = "empty"
    LOST = "lost"


Endings: TypeAlias = Mapping[str, ReplyEnding]
"""A closed table of a wire: each stop reason or status, and how the answer ended. Any other reason means ``lost``."""

INCOMPLETE = frozenset({ReplyEnding.TRUNCATED, ReplyEnding.REFUSED, ReplyEnding.FAILED, ReplyEnding.LOST})
"""Endings of an answer that is not complete."""
NO_CALL_RUNS = INCOMPLETE - {ReplyEnding.TRUNCATED}
"""Endings after which no call of the answer runs, complete or not."""
GOOD = frozenset({ReplyEnding.DONE, ReplyEnding.CALLS, ReplyEnding.PAUSED})
"""Endings that a wire's table may give to an answer which is whole; its content then decides."""


def table(**words: str) -> Endings:
    """Make a table from the reasons of each ending, separated by spaces: ``table(done="stop eos", calls="tool_calls")``.

    Raises:
        ValueError: a keyword is no ending, or a reason has two endings.
    """
    return closed(ReplyEnding, {ending: reasons.split() for ending, reasons in words.items()})


def closed(kind: type[_Kind], words: Mapping[str, Iterable[str]]) -> Mapping[str, _Kind]:
    """Turn the words of each value of an enum into the value of each word.

    Raises:
        ValueError: a key is no value of the enum, or a word has two values.
    """
    made: dict[str, _Kind] = {}
    for value, known in words.items():
        for word in known:
            if made.setdefault(word, kind(value)) != value:
                raise ValueError(f"{word!r} is both {made[word]} and {value}")
    return MappingProxyType(made)
