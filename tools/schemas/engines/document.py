"""A schema that is read once: JSON within limits, with every subschema and every ``$ref`` known by its pointer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, unquote, urljoin

from callgate.errors import SchemaRefused
from callgate.tools.schemas.engines.base import AuthorSchema
from callgate.tools.schemas.engines.dialect import (
    CONTAINERS,
    KEYWORDS,
    SUB_LIST,
    SUB_MAP,
    SUB_ONE,
    TYPES,
    VALIDATION,
    Dialect,
    dialect_of,
    type_advice,
)
from callgate.tools.schemas.engines.raw import AUTHOR_LIMITS, SchemaLimits, require_json
from callgate.tools.values import clip, digest, pointer, thaw

Subschema: TypeAlias = dict[str, object] | bool


@dataclass(frozen=True, slots=True)
class Document:
    """A schema that was read: a private plain copy, its subschemas by JSON Pointer, and the targets of references.

    ``targets`` maps the pointer of a subschema with a reference to the pointers of its possible targets.
    ``patterns`` are pairs of a regular expression and its pointer, ``size`` is its approximate bytes of JSON.
    """

    schema: dict[str, object]
    dialect: Dialect
    digest: str
    nodes: dict[str, Subschema]
    targets: dict[str, tuple[str, ...]]
    patterns: tuple[tuple[str, str], ...]
    depth: int
    size: int


class AuthorDocument(Document):
    """A document that was read from an ``AuthorSchema``."""

    __slots__ = ()


def read(schema: Mapping[str, object], limits: SchemaLimits = AUTHOR_LIMITS) -> Document:
    """Read a schema from any source, and refuse what no engine should compile.

    Raises:
        SchemaRefused: not JSON, too large, unknown dialect, a keyword its dialect lacks, a type name that is not
            JSON Schema's, or a reference that is external or has no target.
    """
    if not isinstance(schema, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SchemaRefused("not_an_object", "a schema must be a JSON object")
    source = schema if isinstance(schema, dict) else dict(schema)
    size = require_json(source, limits)
    plain: dict[str, object] = thaw(source)
    _refuse_bare_properties(plain)
    dialect = dialect_of(plain.get("$schema"))
    if dialect is None:
        shown = clip(str(plain["$schema"]), 60)
        raise SchemaRefused("dialect", f"{shown} is an unknown dialect; use 2020-12", "/$schema")
    identity = digest(plain)
    reader = _Reader(dialect, limits)
    reader.walk(plain)
    # not isinstance: a class may claim to be another one by `__class__`
    kind = AuthorDocument if type(schema) is AuthorSchema else Document
    return kind(plain, dialect, identity, reader.nodes, reader.resolve(), tuple(reader.patterns), reader.depth, size)


def _refuse_bare_properties(schema: Mapping[str, object]) -> None:
    """Refuse ``{"location": {"type": "string"}, …}`` without ``properties`` around it."""
    if "properties" in schema:
        return
    for key, item in schema.items():
        stray = key not in KEYWORDS and not key.startswith("x-")
        stray = stray or key in {"format", "title", "description", "pattern", "type"}
        if stray and isinstance(item, dict) and not {"type", "enum", "anyOf", "$ref"}.isdisjoint(item):
            raise SchemaRefused(
                "bare_properties",
                f"{clip(key)} looks like a parameter: wrap the parameters in "
                '{"type": "object", "properties": …} (wrap_properties does it)',
                clip(pointer([key]), 200),
            )


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def _is_names(item: object) -> bool:
    return isinstance(item, list) and all(isinstance(name, str) for name in item)


_SHAPES: dict[str, Callable[[object], bool]] = {
    "type": lambda item: isinstance(item, str) or _is_names(item),
    "enum": lambda item: isinstance(item, list),
    "required": _is_names,
    "dependentRequired": lambda item: isinstance(item, dict) and all(map(_is_names, item.values())),
}
_EXPECTED = {
    "type": "the name of a type or a list of such names",
    "enum": "a list of values",
    "required": "a list of property names, beside properties",
    "dependentRequired": "a map from property names to lists of them",
}


class _Reader:
    """Walks a schema with a stack, without recursion."""

    def __init__(self, dialect: Dialect, limits: SchemaLimits) -> None:
        self.dialect, self.limits = dialect, limits
        self.nodes: dict[str, Subschema] = {}
        self.patterns: list[tuple[str, str]] = []
        self.depth = 0
        self._refs: list[tuple[str, str, str]] = []
        self._anchors: dict[str, list[str]] = {}
        self._nested_id: str | None = None
        self._places: dict[str, str] = {}  # of subschemas with an $id, by its absolute form
        self._outer: list[tuple[str, str, str]] = []  # references that do not begin with "#", and their bases

    def walk(self, root: Mapping[str, object]) -> None:
        stack: list[tuple[object, str, int, str]] = [(root, "", 0, "")]
        while stack:
            schema, at, depth, base = stack.pop()
            if not isinstance(schema, dict | bool):
                raise SchemaRefused("bad_subschema", "a subschema must be an object or a boolean", clip(at, 200))
            self.nodes[at] = schema
            self.depth = max(self.depth, depth)
            if len(self.nodes) > self.limits.max_subschemas:
                raise SchemaRefused("too_many_subschemas", f"has over {self.limits.max_subschemas} subschemas")
            if isinstance(schema, bool):
                continue
            base = self._base(schema, at, base)
            self._look_at(schema, at, base)
            stack.extend((child, at_child, depth + 1, base) for child, at_child in self._children(schema, at))

    def _base(self, schema: Mapping[str, object], at: str, base: str) -> str:
        """The address against which references in a subschema are resolved; a nested ``$id`` changes it."""
        name = schema.get("$id", schema.get("id"))
        if not isinstance(name, str):
            return base
        base = _joined(base, name)
        if at:
            self._places[base] = at
        return base

    def _look_at(self, schema: dict[str, object], at: str, base: str) -> None:
        for key, item in schema.items():
            self._require_known(key, item, at)
            if key == "type":
                self._types(item, at)
            elif key in {"$ref", "$dynamicRef", "$recursiveRef"}:
                self._ref(key, item, schema, at, base)
            elif key == "pattern":
                self._pattern(item, f"{at}/pattern")
            elif key in {"$anchor", "$dynamicAnchor"} and isinstance(item, str):
                self._anchors.setdefault(item, []).append(at)
            elif key in {"$id", "id"} and at and isinstance(item, str):
                self._nested_id = f"{at}/{key}"
            elif key == "$schema" and at and dialect_of(item) is not self.dialect:
                raise SchemaRefused("dialect", "a subschema may not change the dialect", f"{at}/$schema")

    def _require_known(self, key: str, item: object, at: str) -> None:
        if key in VALIDATION and key not in self.dialect.keywords:
            raise SchemaRefused(
                "keyword_dialect",
                f"{key} is not a keyword of {self.dialect.name}, so no engine would enforce it; "
                "declare the $schema it belongs to, or use that dialect's own keyword",
                f"{at}/{key}",
            )
        if key in _SHAPES and not _SHAPES[key](item):
            raise SchemaRefused("invalid_schema", f"{key} must be {_EXPECTED[key]}", f"{at}/{key}")
        if key == "enum" and isinstance(item, list) and len(item) > self.limits.max_enum:
            raise SchemaRefused("enum_too_large", f"lists over {self.limits.max_enum} values", f"{at}/enum")

    def _types(self, names: object, at: str) -> None:
        for name in names if isinstance(names, list) else [names]:
            if isinstance(name, str) and name not in TYPES:
                shown = clip(name, 40)
                message = f'"{shown}" is not a JSON Schema type: {type_advice(name)}'
                raise SchemaRefused("type_name", message, f"{at}/type")

    def _ref(self, key: str, ref: object, schema: dict[str, object], at: str, base: str) -> None:
        if not isinstance(ref, str) or not ref.startswith("#"):
            self._outer.append((f"{at}/{key}", str(ref), base))
            return
        if self.dialect.ref_hides_siblings:
            hidden = sorted((schema.keys() & self.dialect.keywords) - {"$ref"})
            if hidden:
                message = f"{self.dialect.name} ignores {hidden[0]} beside $ref; put both into allOf"
                raise SchemaRefused("ref_siblings", message, f"{at}/{hidden[0]}")
        if not ref.isascii():
            schema[key] = quote(ref, safe="#/%~!$&'()*+,;=:@?")  # engines take URI references, not IRIs
        self._refs.append((at, key, ref))

    def _pattern(self, pattern: object, at: str) -> None:
        if not isinstance(pattern, str):
            raise SchemaRefused("bad_pattern", "a pattern must be text", at)
        if len(pattern) > self.limits.max_pattern:
            raise SchemaRefused("pattern_too_long", f"is over {self.limits.max_pattern} characters", at)
        self.patterns.append((pattern, at))
        if len(self.patterns) > self.limits.max_patterns:
            raise SchemaRefused("too_many_patterns", f"has over {self.limits.max_patterns} patterns", at)

    def _children(self, schema: Mapping[str, object], at: str) -> Iterator[tuple[object, str]]:
        for key, item in schema.items():
            here = f"{at}/{key}"
            if key in SUB_MAP:
                yield from self._named(key, item, here)
            elif key in SUB_LIST and isinstance(item, list):
                yield from ((child, f"{here}/{index}") for index, child in enumerate(item))
            elif key in SUB_ONE:
                yield item, here
            elif key in SUB_LIST:
                raise SchemaRefused("bad_subschema", f"{key} must be an array", here)

    def _named(self, key: str, item: object, here: str) -> Iterator[tuple[object, str]]:
        if not isinstance(item, dict):
            raise SchemaRefused("bad_subschema", f"{key} must be an object", here)
        if len(item) > self.limits.max_properties and key not in CONTAINERS:
            raise SchemaRefused("too_many_properties", f"has over {self.limits.max_properties} properties", here)
        for name, child in item.items():
            if len(name) > self.limits.max_name:
                raise SchemaRefused("bad_name", f"a name is over {self.limits.max_name} characters", here)
            if key == "patternProperties":
                self._pattern(name, here)
            if key != "dependencies" or not isinstance(child, list):
                yield child, here + pointer([name])

    def resolve(self) -> dict[str, tuple[str, ...]]:
        """Resolve every reference to pointers of subschemas of this document."""
        for here, ref, base in self._outer:
            address, _, fragment = _joined(base, ref).partition("#")
            if (place := self._places.get(address)) is None:
                message = f"{clip(ref, 60)} is outside this document; only references such as #/$defs/name are followed"
                raise SchemaRefused("external_ref", message, here)
            target = clip(f"#{place}{fragment if fragment.startswith('/') else ''}", 100)
            message = f"{clip(ref, 60)} is {target}, by its nested $id; refer to {target}, and remove the $id"
            raise SchemaRefused("nested_id", message, here)
        if self._refs and self._nested_id is not None:
            message = "a nested $id changes what references mean; remove it"
            raise SchemaRefused("nested_id", message, self._nested_id)
        targets: dict[str, tuple[str, ...]] = {}
        for at, key, ref in self._refs:
            fragment = unquote(ref[1:])
            found = tuple(self._anchors.get(fragment, ()))
            if fragment == "" or fragment.startswith("/"):
                found = (fragment,) if fragment in self.nodes else ()
            if not found:
                message = f"{clip(ref, 60)} is not a subschema of this document; keep shared parts under $defs"
                raise SchemaRefused("unresolved_ref", message, f"{at}/{key}")
            targets[at] = targets.get(at, ()) + found
        return targets
