"""Keywords of each JSON Schema dialect, and the keywords that hold subschemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from callgate.errors import DefinitionError

FormatRule: TypeAlias = Literal["assert", "annotate"]
Role: TypeAlias = Literal["parameters", "output"]
Formats: TypeAlias = FormatRule | Mapping[str, FormatRule]
"""The meaning of ``format``: a value that breaks it is invalid (assert), or it is a remark (annotate).

One rule for every schema, or a mapping from the names of dialects, such as ``{"2020-12": "annotate"}``. A dialect that
the mapping leaves out keeps the default: schemas of the author assert, others follow their dialect.
"""

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

SUB_ONE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"}
    | {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
)
SUB_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SUB_MAP = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
CONTAINERS = frozenset({"$defs", "definitions"})
TEXTS = frozenset({"title", "description", "examples", "$comment"})
"""Keywords that only describe: they restrict no value and supply none."""
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"}
    | {"contentEncoding", "contentMediaType", "contentSchema"}
)

_DRAFT4 = frozenset(
    {"type", "enum", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"}
    | {"maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "items", "additionalItems"}
    | {"maxProperties", "minProperties", "required", "properties", "patternProperties", "additionalProperties"}
    | {"dependencies", "allOf", "anyOf", "oneOf", "not", "format", "$ref"}
)
_DRAFT6 = _DRAFT4 | {"const", "contains", "propertyNames"}
_DRAFT7 = _DRAFT6 | {"if", "then", "else"}
_DRAFT2019 = _DRAFT7 | {
    *("dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
    *("minContains", "maxContains", "$recursiveRef"),
}
_DRAFT2020 = (_DRAFT2019 - {"additionalItems", "$recursiveRef"}) | {"prefixItems", "$dynamicRef"}

VALIDATION = _DRAFT2019 | _DRAFT2020 | {"divisibleBy", "disallow", "extends"}
"""Every keyword that restricts a value in some dialect; a keyword that the schema's dialect lacks is refused."""

KEYWORDS = VALIDATION | ANNOTATIONS | CONTAINERS


@dataclass(frozen=True, slots=True)
class Dialect:
    """One draft: its name, its number (4, 6, 7, 2019, 2020) and the validation keywords it defines."""

    name: str
    draft: int
    keywords: frozenset[str]

    @property
    def ref_hides_siblings(self) -> bool:
        """Drafts 4 to 7 ignore keywords beside ``$ref``."""
        return self.draft <= 7


_KNOWN = {
    "http://json-schema.org/draft-04/schema": Dialect("draft-04", 4, _DRAFT4),
    "http://json-schema.org/draft-06/schema": Dialect("draft-06", 6, _DRAFT6),
    "http://json-schema.org/draft-07/schema": Dialect("draft-07", 7, _DRAFT7),
    "https://json-schema.org/draft/2019-09/schema": Dialect("2019-09", 2019, _DRAFT2019),
    "https://json-schema.org/draft/2020-12/schema": Dialect("2020-12", 2020, _DRAFT2020),
}
DEFAULT = _KNOWN["https://json-schema.org/draft/2020-12/schema"]


def asserts_formats(dialect: Dialect, formats: Formats | None, *, trusted: bool) -> bool:
    """Return whether ``format`` restricts values. Of itself it does in drafts 4 to 7, and not from 2019-09 on."""
    rule = formats.get(dialect.name) if isinstance(formats, Mapping) else formats
    return (trusted or dialect.draft <= 7) if rule is None else rule == "assert"


def check_formats(formats: Formats | None) -> None:
    """Check the setting ``formats``.

    Raises:
        DefinitionError: a rule or the name of a dialect is unknown.
    """
    given = formats if isinstance(formats, Mapping) else {DEFAULT.name: formats}
    names = {dialect.name for dialect in _KNOWN.values()}
    for name, rule in given.items():
        if name not in names or rule not in ("assert", "annotate", None):
            raise DefinitionError(
                f'formats is {formats!r}; write "assert", "annotate", or one of both for each of {sorted(names)}'
            )


def dialect_of(declared: object) -> Dialect | None:
    """Find the dialect of a ``$schema`` value: 2020-12 when it is absent, None when it is unknown."""
    if declared is None:
        return DEFAULT
    return _KNOWN.get(declared.removesuffix("#")) if isinstance(declared, str) else None


_TYPE_ALIASES = {
    "object": ("dict", "map", "hashmap", "record", "struct"),
    "number": ("float", "double", "decimal"),
    "integer": ("int", "long", "short", "byte", "bigint"),
    "string": ("str", "char", "text"),
    "array": ("list", "arraylist", "tuple", "set"),
    "boolean": ("bool",),
    "null": ("none", "nil"),
}
_RIGHT_TYPE = {alias: right for right, aliases in _TYPE_ALIASES.items() for alias in aliases}


def type_advice(name: str) -> str:
    """Advice for a type name outside JSON Schema, such as ``dict`` or ``String``; it is never corrected automatically."""
    lower = name.lower()
    right = lower if lower in TYPES else _RIGHT_TYPE.get(lower)
    if right is not None:
        return f'write "{right}"'
    if lower == "any":
        return 'leave "type" out to allow any value'
    return "the types are " + ", ".join(sorted(TYPES))


def without_texts(schema: object) -> object:
    """Return a copy of a schema without the keywords that only describe. A property may have the name of a keyword."""
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, object] = {}
    for key, item in schema.items():
        if key in SUB_MAP and isinstance(item, Mapping):
            kept[key] = {name: without_texts(child) for name, child in item.items()}
        elif key in SUB_LIST and isinstance(item, list | tuple):
            kept[key] = [without_texts(child) for child in item]
        elif key in SUB_ONE:
            kept[key] = without_texts(item)
        elif key not in TEXTS:
            kept[key] = item
    return kept


def without_formats(schema: object) -> Any:
    """Return a copy of a schema that pydantic generated, without the keyword ``format``."""
    if isinstance(schema, list | tuple):
        return [without_formats(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, object] = {}
    for key, part in schema.items():
        if key in _NAMED and isinstance(part, Mapping):
            found[key] = {name: without_formats(one) for name, one in part.items()}
        elif key != "format":
            found[key] = part if key in _VALUES else without_formats(part)
    return found


_NAMED = frozenset({"properties", "patternProperties", "$defs"})
"""Keywords whose members are schemas by a name, which may be ``format``."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
