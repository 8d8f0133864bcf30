"""The closed tables of what a wire sends: its items, parts, deltas and events, and what the codec does with each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeAlias

from callgate.runtime.models.wire.endings import closed


class Handling(StrEnum):
    """The handling of one kind of item, part, delta, event or field of a provider.

    ``call``: it is a call of a tool, which runs through the gate. ``text``: it is text of the answer. ``refusal``: it is
    text, and the answer is refused. ``reasoning``: it is visible reasoning. ``media``: it is an answer that is no text.
    ``waiting``: the client must act on it; see ``Reply.waiting``. ``provider_ran``: the provider ran it itself; see
    ``Reply.provider_ran``. ``history``: it goes back to the provider with the history. ``metadata``: it describes other
    content. ``envelope``: it has other kinds in it. ``mark``: it begins or ends something. ``failed``: it is an error.
    ``ignored``: it shows progress, or repeats what another event has.
    """

    CALL = "call"
    TEXT = "text"
    REFUSAL = "refusal"
    REASONING = "reasoning"
    MEDIA = "media"
    WAITING = "waiting"
    PROVIDER_RAN = "provider_ran"
    HISTORY = "history"
    METADATA = "metadata"
    ENVELOPE = "envelope"
    MARK = "mark"
    FAILED = "failed"
    IGNORED = "ignored"


Members: TypeAlias = Mapping[str, Handling]
"""Each kind that the provider's own package knows, and its handling."""


def members(**kinds: str | Iterable[str]) -> Members:
    """Make a table from the kinds of each handling, as a list or separated by spaces: ``members(call="tool_use")``.

    Raises:
        ValueError: a keyword is no handling, or a kind has two.
    """
    split = {name: known.split() if isinstance(known, str) else known for name, known in kinds.items()}
    return closed(Handling, split)
