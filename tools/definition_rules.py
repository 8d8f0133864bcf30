"""Rules of a tool definition, each a function of plain values; messages say how to correct the definition."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from callgate.errors import DefinitionError
from callgate.tools.naming import did_you_mean
from callgate.tools.values import FrozenDict, FrozenList, clip

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
FOREIGN_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
"""Names that other systems allow, such as MCP; ``ToolDefinition.from_dict`` makes legal names of them."""
TEXT_LIMIT = 1024
"""Characters of a title, and of the description of a client's tool."""
DESCRIPTION_LIMIT = 65_536
"""Characters of a description. A wire with a smaller limit gets the first part of it."""
_COMPOSING = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"})
_Choice = TypeVar("_Choice", bound=StrEnum)


def kind_of(value: object) -> str:
    """The name of a value's type, for messages."""
    return type(value).__name__


def refusal(tool: object, text: str) -> DefinitionError:
    """The error for a broken rule, with the tool's name."""
    return DefinitionError(f"tool {clip(str(tool), 64)!r}: {text}")


def check_name(name: object) -> None:
    """Check a tool name: 1 to 64 characters of ``[A-Za-z0-9_-]``."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        shown = clip(str(name), 64)
        if shown == "<lambda>":
            raise DefinitionError(
                'tool name "<lambda>": a lambda has no name for a model; write tool(function, name="...")'
            )
        raise DefinitionError(
            f"tool name {shown!r}: use 1 to 64 of the characters A-Z a-z 0-9 _ and -; "
            f"a name for people goes into title={shown!r}"
        )


def check_text(tool: str, field: str, value: object, most: int) -> None:
    """Check a text: None, or 1 to *most* characters that are not all blank."""
    if value is None or (isinstance(value, str) and len(value) <= most and not is_blank(value)):
        return
    found = f"it is {kind_of(value)}"
    if isinstance(value, str):
        found = "it is blank" if value and is_blank(value) else f"it has {len(value)}"
    raise refusal(tool, f"{field} must be text of 1 to {most} characters, or left out; {found}")


def deprecation(tool: str, given: object) -> str | None:
    """Return the text of ``deprecated``; a catalogue from outside may have only True.

    Raises:
        DefinitionError: it is neither text nor a bool.
    """
    if isinstance(given, bool):
        return "do not use it in new work" if given else None
    check_text(tool, "deprecated", given, TEXT_LIMIT)
    return given if isinstance(given, str) else None


def with_deprecation(description: str | None, deprecated: str | None) -> str | None:
    """Return a description that ends with the text of ``deprecated``, once and where there is room for it."""
    if deprecated is None or not isinstance(description, str | None):
        return description
    note = f"Deprecated: {deprecated}"
    noted = description if description is not None and note in description else f"{description or ''} {note}".strip()
    return noted if noted is not None and len(noted) <= DESCRIPTION_LIMIT else description


def is_blank(value: object) -> bool:
    """True for text without visible characters."""
    return isinstance(value, str) and not value.strip()


def check_flag(tool: str, field: str, value: object) -> None:
    """Check for a real boolean or None: ``"false"`` would count as true."""
    if not isinstance(value, bool | None):
        raise refusal(tool, f"{field} must be True or False, not {kind_of(value)}")


def check_version(tool: str, value: object) -> None:
    """Check for a non-empty string."""
    if not isinstance(value, str) or not value:
        raise refusal(tool, "version must be a non-empty string, such as '2'")


def choice(tool: str, field: str, value: Any, kind: type[_Choice]) -> _Choice | None:
    """Convert a member of ``kind`` or its name to the member; None stays None."""
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(item.value) for item in kind)
        raise refusal(tool, f"{field} must be one of {choices}; it is {clip(repr(value))}") from None


def names(tool: str, field: str, value: object) -> list[str]:
    """Convert a collection of names to a list; a bare string is refused, because it would be read letter by letter."""
    if isinstance(value, str):
        raise refusal(tool, f"{field} takes a collection of names, not one string; write {field}=({value!r},)")
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise refusal(tool, f"{field} takes a collection of names, not {kind_of(value)}")
    found = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)  # in each process the same
    if not all(isinstance(item, str) and item for item in found):
        raise refusal(tool, f"{field} may hold only non-empty strings")
    return found


def frozen_object(tool: str, field: str, value: object, meant: str = "an object") -> object:
    """Freeze a mapping of JSON values, so that a definition can always be stored and sent."""
    if not isinstance(value, Mapping):
        raise refusal(tool, f"{field} must be {meant}, not {kind_of(value)}")
    return frozen_json(tool, field, value)


def frozen_examples(tool: str, value: object) -> tuple[object, ...]:
    """Freeze a list of JSON values."""
    if not isinstance(value, list | tuple):
        raise refusal(tool, f"examples must be a list, not {kind_of(value)}")
    return tuple(frozen_json(tool, "examples", value))


def frozen_json(tool: str, field: str, value: object) -> Any:
    """Freeze a JSON value."""
    try:
        return _frozen(value, field)
    except RecursionError:
        raise refusal(tool, f"{field} is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise refusal(tool, f"{field} must be JSON: {error}") from None


def _frozen(value: object, where: str) -> object:
    if value is None or value.__class__ is bool:
        return value
    if isinstance(value, Mapping):
        return FrozenDict({_text(key, where): _frozen(item, f"{where}/{key}") for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList(_frozen(item, f"{where}/{index}") for index, item in enumerate(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is not a finite number")
        return float(value)
    return _text(value, where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where} holds {kind_of(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where} holds a lone surrogate")
    return str.__str__(value)  # a plain str, also of an enum's member


def check_key(tool: str, key: tuple[str, ...], effect: str | None, schema: Mapping[str, Any] | None) -> list[str]:
    """Check that ``key`` names argument fields and that a keyed effect has one; returns lints."""
    if effect == "keyed" and not key:
        raise refusal(tool, "effect 'keyed' needs key=(...), the argument fields that identify the effect")
    if len(set(key)) != len(key):
        raise refusal(tool, "key names a field twice")
    if not key:
        return []
    lints = [] if effect in {"keyed", "irreversible"} else ["key has a use only with effect keyed or irreversible"]
    if schema is None or _COMPOSING & schema.keys():
        return lints
    known = schema.get("properties") or {}
    if unknown := next((name for name in key if name not in known), None):
        raise refusal(
            tool, f"key names {clip(unknown)!r}, which is not a property of parameters{did_you_mean(unknown, known)}"
        )
    required = schema.get("required") or ()
    return lints + [f"key field {name} is not required" for name in key if name not in required]


def check_no_schema(tool: str, allowed: bool, mode: str | None, effect: str | None) -> list[str]:
    """Refuse a tool without a schema, unless its flags allow it; returns lints."""
    if not allowed:
        raise refusal(
            tool,
            "there is no schema: give `parameters`, a JSON Schema of type object. Only a tool that cannot have "
            "one takes allow_no_schema=True together with a no_schema_mode",
        )
    if mode is None:
        raise refusal(tool, "allow_no_schema needs no_schema_mode='read-only', 'human-approval' or 'full'")
    if mode == "read-only" and effect != "read":
        raise refusal(tool, "no_schema_mode='read-only' is for tools that declare effect='read'")
    return [f"no schema: arguments are not validated ({mode})"]


def flatten(data: object) -> Mapping[str, object]:
    """Unwrap ``{type: function, function: {...}}``; the inner ``type`` of some providers is left out."""
    if not isinstance(data, Mapping):
        raise DefinitionError(f"a tool definition is an object, not {kind_of(data)}")
    inner = data.get("function")
    if inner is None:
        return data
    if not isinstance(inner, Mapping):
        raise DefinitionError(f"`function` in a tool definition is an object, not {kind_of(inner)}")
    outer = {key: value for key, value in data.items() if key != "function"}
    return {**outer, **{key: value for key, value in inner.items() if key != "type"}}


def check_unknown(key: object, known: Iterable[str]) -> None:
    """Refuse an unknown key that looks like a misspelt one, so that it does not become metadata."""
    if not isinstance(key, str):
        raise DefinitionError(f"the tool definition has a key that is {kind_of(key)}, not a string")
    if near := get_close_matches(key, list(known), n=1, cutoff=0.85):
        raise DefinitionError(f"the tool definition has {clip(key)!r}; did you mean {near[0]!r}?")
