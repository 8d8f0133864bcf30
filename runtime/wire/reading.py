"""Reading a provider's answer without trusting its shape; from what was read to tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callgate.runtime.wire.codec import Translation, WireError
from callgate.runtime.wire.reverse import canonical_arguments
from callgate.runtime.wire.shapes import is_mapping
from callgate.tools.calls import ToolCall

CUT_SHORT = frozenset(
    {
        "length",
        "max_tokens",
        "model_length",
        "model_context_window_exceeded",
        "content_filter",
        "refusal",
        "error",
    }
)


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as a wire spells it; every field is whatever the provider sent there."""

    name: Any
    arguments: Any
    id: Any
    chunk: Any
    truncated: bool = False

    @property
    def phantom(self) -> bool:
        """Whether nothing is in it: some servers fill unused fields with empty objects."""
        named = isinstance(self.name, str) and self.name
        return not named and not self.id and self.arguments in (None, "", "{}", {})


def answer(response: Any) -> Mapping[str, Any]:
    """The response, if it is a mapping.

    Raises:
        WireError: it is not.
    """
    if not is_mapping(response):
        hint = "; pass response.model_dump()" if hasattr(response, "model_dump") else ""
        raise WireError(f"a provider's answer is a JSON object, not {type(response).__name__}{hint}")
    return response


def cut_short(reason: Any) -> bool:
    """Whether a finish or stop reason says that the answer may end in the middle of a call."""
    return isinstance(reason, str) and reason.lower() in CUT_SHORT


def tool_calls(found: Iterable[RawCall], translation: Translation | None) -> list[ToolCall]:
    """Tool calls from what a wire found: names mapped back, added nulls dropped, every id present and unique.

    A call without a name is kept, with an empty one, if anything else is in it: hydration refuses it and the model
    gets an answer (C10a). Missing and repeated ids are replaced by ``call_1``, ``call_2``, … by position, flagged
    ``synthetic_id`` (C10b); they are unique within the answer only.
    """
    calls = [call for call in found if not call.phantom]
    ids = _ids([call.id for call in calls])
    return [
        _tool_call(call, call_id, synthetic, translation) for call, (call_id, synthetic) in zip(calls, ids, strict=True)
    ]


def _tool_call(call: RawCall, call_id: str, synthetic: bool, translation: Translation | None) -> ToolCall:
    name = call.name if isinstance(call.name, str) else ""
    offered = translation.tool(name) if translation else None
    return ToolCall(
        id=call_id,
        tool=translation.names.tool(name) if translation else name,
        arguments=canonical_arguments(call.arguments, offered.schema, offered.nullable) if offered else call.arguments,
        synthetic_id=synthetic,
        truncated=call.truncated,
        chunk=call.chunk,
    )


def _ids(sent: Sequence[Any]) -> list[tuple[str, bool]]:
    """An id for each call, and whether it was made here."""
    taken = {value for value in sent if isinstance(value, str)}
    kept: set[str] = set()
    made: list[tuple[str, bool]] = []
    for position, value in enumerate(sent, 1):
        synthetic = not isinstance(value, str) or not value or value in kept
        call_id = _free(f"call_{position}", taken) if synthetic else value
        kept.add(call_id)
        taken.add(call_id)
        made.append((call_id, synthetic))
    return made


def _free(name: str, taken: set[str]) -> str:
    """The name, lengthened while a provider's own id is the same."""
    while name in taken:
        name += "_"
    return name
