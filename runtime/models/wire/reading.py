"""Reads responses without trusting their shape, and makes tool calls of what they contain."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from callgate.runtime.models.wire.codec import Translation, WireError
from callgate.runtime.models.wire.history import arguments_text, as_json
from callgate.runtime.models.wire.reverse import canonical_arguments
from callgate.runtime.models.wire.shapes import is_mapping, items, mapping
from callgate.tools.arguments.exact_json import RepeatedKeys, exact_json, exact_text
from callgate.tools.calls import ToolCall
from callgate.tools.values import canonical

_PLAIN_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "title", "description"})
_DIGITS = re.compile(r"[0-9]{1,15}")
_TWO_OBJECTS = 4  # characters: {}{}
NO_REASON = "it has no stop reason"


class RawCall(NamedTuple):
    """A call as the provider sent it; the fields are not validated. A tuple, because one is made for each call."""

    name: object
    arguments: object
    id: object
    chunk: object
    truncated: bool = False
    custom: bool = False

    @property
    def phantom(self) -> bool:
        """True if the call is empty: some servers fill unused fields with empty objects."""
        named = isinstance(self.name, str) and self.name
        return not named and not self.id and self.arguments in (None, "", "{}", {})


def response_body(response: object) -> Mapping[str, object]:
    """Return the response if it is a mapping.

    Raises:
        WireError: the response is not a mapping.
    """
    if not is_mapping(response):
        dump = "; pass response.model_dump(mode='json', by_alias=True)"  # Google's SDK dumps other names than it reads
        hint = dump if hasattr(response, "model_dump") else ""
        raise WireError(f"a response must be a JSON object, not {type(response).__name__}{hint}")
    return response


def error_of(body: Mapping[str, object]) -> Mapping[str, object] | None:
    """The error in a body, or None; plain text becomes ``{"message": text}``."""
    error = body.get("error")
    if not error:
        return None
    return error if is_mapping(error) else {"message": error if isinstance(error, str) else str(type(error).__name__)}


def reported_error(chunk: Mapping[str, object]) -> object:
    """The error in a JSON object that has not the form of the wire's chunks, such as that of a proxy; else None."""
    if chunk.get("error"):
        return chunk["error"]
    failed = chunk.get("success") is False or "error" in (chunk.get("object"), chunk.get("type"))
    status = chunk.get("statusCode", chunk.get("status_code", chunk.get("status")))
    failed = failed or (isinstance(status, int) and status >= 400) or isinstance(chunk.get("message"), str)
    return dict(chunk) if failed or chunk.get("detail") or chunk.get("errors") else None


FOREIGN = frozenset(
    {"candidates", "choices", "content", "content_block", "delta", "item", "message", "output", "response"}
)
"""Members of chunks in which one of the wires sends the content of an answer."""


def count(fields: Mapping[str, object], *names: str) -> int | None:
    """The sum of the named token counts; None if all are missing. Some servers send whole numbers as floats or texts."""
    found = [value for name in names if (value := _whole(fields.get(name))) is not None]
    return sum(found) if found else None


def _whole(value: object) -> int | None:
    """A count of 0 or more; None for any other value."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return int(value)


def qualified(name: object, *spaces: object) -> object:
    """A call's name with its namespace, which is part of its identity; a namespace equal to the name adds nothing."""
    space = next((one for one in spaces if isinstance(one, str) and one), None)
    return name if space is None or space == name or not isinstance(name, str) else f"{space}.{name}"


def text_or_empty(value: object) -> str:
    """The value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def text_or_none(value: object) -> str | None:
    """The value if it is a string that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def pair(found: Iterable[RawCall], translation: Translation | None) -> list[tuple[RawCall, ToolCall]]:
    """Pair each raw call with its tool call: names are mapped back, added nulls are dropped, every id is unique.

    A call without a name is kept with an empty name, unless it is empty altogether: hydration refuses it, and the model
    gets a result. Missing and repeated ids are replaced by ``call_1``, ``call_2``, … by position and flagged
    ``synthetic_id``; they are unique within the response only.
    """
    calls = [call for call in found if (call.name and call.name.__class__ is str) or not call.phantom]
    if len(calls) > 1:
        calls = _each_once(calls)
    ids = _ids([call.id for call in calls])
    return [
        (call, _tool_call(call, call_id, synthetic, translation))
        for call, (call_id, synthetic) in zip(calls, ids, strict=True)
    ]


def _each_once(calls: list[RawCall]) -> list[RawCall]:
    """Keep the first of several calls with the same provider id, name and arguments: a server that repeats a call."""
    ids = [call.id for call in calls if isinstance(call.id, str) and call.id]
    if len(set(ids)) == len(ids):
        return calls
    kept: dict[object, RawCall] = {}
    for number, call in enumerate(calls):
        key: object = number
        if isinstance(call.id, str) and call.id:
            with suppress(TypeError, ValueError, RecursionError):  # what is no JSON is like no other call
                key = call.id, canonical([call.name, plain_arguments(call.arguments)])
        kept.setdefault(key, call)
    return list(kept.values())


PARALLEL = frozenset({"multi_tool_use.parallel", "multi_tool_use_parallel", "functions.multi_tool_use.parallel"})
"""Names of the wrapper in which models of OpenAI sometimes put several calls."""


def wrapped_calls(call_id: object, arguments: object) -> list[tuple[str | None, str, str]]:
    """The calls in a wrapper ``multi_tool_use.parallel``: an id of its own, the name and the arguments of each.

    There are none where a key occurs twice, so that one of two values would be lost: the wrapper is an unknown tool.
    """
    found: list[tuple[str | None, str, str]] = []
    wrapper = plain_arguments(arguments)
    uses = items(mapping(wrapper).get("tool_uses"))
    if any(isinstance(one, RepeatedKeys) for one in (wrapper, *uses)):
        return []
    for number, use in enumerate(map(mapping, uses), 1):
        name = text_or_empty(use.get("recipient_name")).removeprefix("functions.")
        own = f"{call_id}_{number}" if isinstance(call_id, str) and call_id else None
        given = use.get("parameters")
        found.append((own, name, exact_text(given) or arguments_text(given)))
    return found


def plain_arguments(arguments: object) -> object:
    """The arguments as a value, for a comparison; text that is encoded twice is decoded twice."""
    for _ in range(2):
        if not isinstance(arguments, str):
            break
        try:
            arguments = exact_json(arguments.encode("utf-8", "surrogatepass"))
        except ValueError:
            break
    return arguments


def with_piece(known: object, piece: object) -> object:
    """Add a piece of streamed arguments to the known ones, where one of them is not text.

    An empty piece changes nothing, and an object may grow. Of two forms that disagree none is known to be meant: they
    become text that is no JSON, which hydration refuses.
    """
    if known in (None, "", {}):
        return known if piece in (None, "") else piece
    if piece in (None, "", {}):
        return known
    if is_mapping(known) and is_mapping(piece) and all(name in piece and piece[name] == known[name] for name in known):
        return piece
    texts = [one if isinstance(one, str) else as_json(one) for one in (known, piece)]
    return known if plain_arguments(known) == plain_arguments(piece) else "".join(texts)


def _sent_once(arguments: object) -> object:
    """Text that is one JSON object twice in a row becomes that object: some servers send the arguments again in full."""
    if not isinstance(arguments, str) or len(arguments) < _TWO_OBJECTS or len(arguments) % 2:
        return arguments
    half = arguments[: len(arguments) // 2]
    once = half[0] == "{" and half[-1] == "}" and arguments.endswith(half) and isinstance(plain_arguments(half), dict)
    return half if once else arguments


def with_calls(
    parts: Sequence[object], found: Sequence[tuple[RawCall, ToolCall]]
) -> list[tuple[Mapping[str, object], ToolCall | None]]:
    """Pair each part of a response with the tool call in it, or None."""
    left = list(reversed(found))
    return [(mapping(part), left.pop()[1] if left and left[-1][0].chunk is part else None) for part in parts]


def _tool_call(call: RawCall, call_id: str, synthetic: bool, translation: Translation | None) -> ToolCall:
    name = wire_name = call.name if isinstance(call.name, str) else ""
    arguments = _sent_once(call.arguments)
    if not isinstance(arguments, str):
        arguments = exact_text(arguments) or arguments
    if translation is not None:
        tool = translation.names.tool(name) if not call.custom else f"custom tool {name}"  # no request offers one
        offered = translation.tools.get(tool)
        if arguments == "null" and offered is not None and _takes_nothing(offered.schema):
            arguments = "{}"  # some models write it for a tool without parameters
        if offered is not None and (offered.nullable or offered.spelled):
            arguments = canonical_arguments(arguments, offered.schema, offered.nullable, offered.spelled)
        name = tool
    return ToolCall(
        id=call_id,
        name=name,
        arguments=arguments,
        synthetic_id=synthetic,
        truncated=call.truncated,
        chunk=call.chunk,
        wire_name=wire_name,
    )


def _takes_nothing(schema: Mapping[str, object]) -> bool:
    return schema.keys() <= _PLAIN_OBJECT and not schema.get("properties")


def _ids(sent: Sequence[object]) -> list[tuple[str, bool]]:
    """An id for each call, with True if it was generated."""
    if len(sent) == 1 and sent[0] and isinstance(sent[0], str):
        return [(sent[0], False)]
    taken = {value for value in sent if isinstance(value, str)}
    kept: set[str] = set()
    made: list[tuple[str, bool]] = []
    for position, value in enumerate(sent, 1):
        given = value if isinstance(value, str) and value not in kept else ""
        call_id = given or _free(f"call_{position}", taken)
        kept.add(call_id)
        taken.add(call_id)
        made.append((call_id, not given))
    return made


def _free(name: str, taken: set[str]) -> str:
    """Lengthen a name until it differs from every id of the provider."""
    while name in taken:
        name += "_"
    return name
