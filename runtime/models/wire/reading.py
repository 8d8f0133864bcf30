"""Reading a provider's answer without trusting its shape; from what was read to tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from callgate.runtime.models.wire.codec import Translation, WireError
from callgate.runtime.models.wire.reverse import canonical_arguments
from callgate.runtime.models.wire.shapes import is_mapping, mapping
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


class RawCall(NamedTuple):
    """A call as a wire spells it; every field is whatever the provider sent there. Made for each call read: a tuple."""

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


def error_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The provider's error, if it answered with one; a bare text becomes ``{"message": text}``."""
    error = body.get("error")
    if not error:
        return None
    return error if is_mapping(error) else {"message": error if isinstance(error, str) else str(type(error).__name__)}


def count(fields: Mapping[str, Any], *names: str) -> int | None:
    """The sum of token counts, None if none of them is there."""
    found = [value for name in names if isinstance(value := fields.get(name), int) and not isinstance(value, bool)]
    return sum(found) if found else None


def text_of(value: Any) -> str:
    """The value if it is text, else the empty text."""
    return value if isinstance(value, str) else ""


def word(value: Any) -> str | None:
    """The value if it is text with something in it, else None."""
    return value if isinstance(value, str) and value else None


def tool_calls(found: Iterable[RawCall], translation: Translation | None) -> list[ToolCall]:
    """Tool calls from what a wire found: names mapped back, added nulls dropped, every id present and unique.

    A call without a name is kept, with an empty one, if anything else is in it: hydration refuses it and the model
    gets an answer (C10a). Missing and repeated ids are replaced by ``call_1``, ``call_2``, … by position, flagged
    ``synthetic_id`` (C10b); they are unique within the answer only.
    """
    return [call for _, call in pair(found, translation)]


def pair(found: Iterable[RawCall], translation: Translation | None) -> list[tuple[RawCall, ToolCall]]:
    """Each call as it was found, and the tool call made of it; see ``tool_calls``."""
    calls = [call for call in found if (call.name and call.name.__class__ is str) or not call.phantom]
    ids = _ids([call.id for call in calls])
    return [
        (call, _tool_call(call, call_id, synthetic, translation))
        for call, (call_id, synthetic) in zip(calls, ids, strict=True)
    ]


def placed(
    places: Sequence[Any], found: Sequence[tuple[RawCall, ToolCall]]
) -> list[tuple[Mapping[str, Any], ToolCall | None]]:
    """Each part of an answer, and the tool call that was found in it."""
    waiting = list(reversed(found))
    return [(mapping(at), waiting.pop()[1] if waiting and waiting[-1][0].chunk is at else None) for at in places]


def tool_namer(translation: Translation | None) -> Callable[[str], str]:
    """From a wire name to the tool's own."""
    return translation.names.tool if translation else str


def _tool_call(call: RawCall, call_id: str, synthetic: bool, translation: Translation | None) -> ToolCall:
    name = call.name if isinstance(call.name, str) else ""
    arguments = call.arguments
    if translation is not None:
        tool = translation.names.tool(name)
        offered = translation.tools.get(tool)
        if offered is not None and (offered.nullable or offered.spelled):
            arguments = canonical_arguments(arguments, offered.schema, offered.nullable, offered.spelled)
        name = tool
    return ToolCall(call_id, name, arguments, synthetic, call.truncated, call.chunk)


def _ids(sent: Sequence[Any]) -> list[tuple[str, bool]]:
    """An id for each call, and whether it was made here."""
    if len(sent) == 1 and sent[0] and isinstance(sent[0], str):
        return [(sent[0], False)]
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
