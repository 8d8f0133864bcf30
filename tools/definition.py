"""``ToolDefinition``: the frozen declaration of a tool."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Self

from callgate.errors import DefinitionError
from callgate.providers.argument_mask import names_of_properties
from callgate.providers.guesses import explain_camel_case
from callgate.tools import definition_rules as rules
from callgate.tools.naming import did_you_mean, legal_tool_name
from callgate.tools.schemas.engines.dialect import TEXTS, without_texts
from callgate.tools.values import digest, thaw


class DefinitionWarning(UserWarning):
    """A setting of a definition has no effect, such as a no-schema flag beside a schema."""


class Effect(StrEnum):
    """The effect of a tool on the world; it decides the defaults of retry, cache and effect ledger."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    KEYED = "keyed"
    IRREVERSIBLE = "irreversible"


def fault_of_effects(names: Collection[str] | None) -> str | None:
    """Return why a hook or rule for these effects could match no call; None if it can, or if it is for all."""
    known = [effect.value for effect in Effect]
    if names is not None and not names:
        return f"is empty; leave it out, or name one of {', '.join(known)}"
    odd = next((name for name in names or () if name not in known), None)
    return None if odd is None else f"has {odd!r}{did_you_mean(odd.lower(), known)}"


class NoSchemaMode(StrEnum):
    """The permission of a tool without a schema."""

    READ_ONLY = "read-only"
    HUMAN_APPROVAL = "human-approval"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class ToolAnnotations:
    """Hints in MCP's vocabulary; hints from outside never decide policy."""

    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None

    def to_dict(self) -> dict[str, bool]:
        """The hints that are set, under MCP's names."""
        return {wire: getattr(self, name) for name, wire in _HINTS.items() if getattr(self, name) is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read MCP's names or Python's; anything else in ``data`` is left out.

        Raises:
            DefinitionError: a hint is neither true, false nor null.
        """
        found = {name: data.get(wire, data.get(name)) for name, wire in _HINTS.items()}
        for name, value in found.items():
            if not isinstance(value, bool | None):
                raise DefinitionError(f"the annotation {name} must be true, false or absent")
        return cls(**found)


@explain_camel_case
@dataclass(frozen=True)
class ToolDefinition:
    """The declaration of a tool: names, schemas and policy. Deeply frozen; schemas are kept verbatim.

    ``name`` is the wire name, 1-64 characters of ``[A-Za-z0-9_-]``; ``title`` is for people.
    ``parameters`` and ``output_schema`` are JSON Schemas; ``provider_schema`` is an optional compact view for
    models only: validation always uses ``parameters``.
    ``effect`` is None when the author declared none: then the tool is never cached or retried.
    ``key`` names the argument fields that identify a ``keyed`` or ``irreversible`` effect; a set of them is sorted.
    ``tags`` and ``allowed_roles`` may be given as any collection of names and are kept as frozen sets. An empty
    ``allowed_roles`` allows no user; None, the default, allows every user.
    ``safe=False`` hides the tool from ``pick_tools``; None counts as safe.
    ``deprecated`` says what to use instead. Models read it at the end of the description, the linter reports it, and
    ``Metrics`` counts the calls.
    ``tolerant`` allows the lexical parsing rules; default: yes, but not for ``irreversible`` tools.
    ``lints`` are remarks on settings that are legal and probably a mistake.
    ``outside``: the definition was read from data, by ``from_dict`` or pickle, so its schemas are not trusted.

    Raises:
        DefinitionError: a rule is broken; the message names the rule and the correction.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    title: str | None = None
    output_schema: Mapping[str, Any] | None = None
    effect: Effect | None = None
    key: Sequence[str] = ()
    tags: AbstractSet[str] = frozenset()
    safe: bool | None = None
    safety: Mapping[str, object] = field(default_factory=dict[str, object])
    allowed_roles: AbstractSet[str] | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    annotations: ToolAnnotations = ToolAnnotations()
    examples: Sequence[Any] = ()
    version: str = "1"
    deprecated: str | None = None
    strict: bool | None = None
    provider_schema: Mapping[str, object] | None = None
    allow_no_schema: bool = False
    no_schema_mode: NoSchemaMode | None = None
    tolerant: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    type: Literal["function"] = "function"
    lints: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    outside: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = self.name
        rules.check_name(name)
        rules.check_version(name, self.version)
        self._set("deprecated", rules.deprecation(name, self.deprecated))
        self._set("description", rules.with_deprecation(self.description, self.deprecated))
        rules.check_text(name, "description", self.description, rules.DESCRIPTION_LIMIT)
        rules.check_text(name, "title", self.title, rules.TEXT_LIMIT)
        for flag in ("safe", "strict", "tolerant", "allow_no_schema"):
            rules.check_flag(name, flag, getattr(self, flag))
        for schema in _SCHEMAS:
            if getattr(self, schema) is not None:
                self._set(schema, rules.frozen_object(name, schema, getattr(self, schema), "a JSON Schema object"))
        for item in ("safety", "capabilities", "metadata"):
            self._set(item, rules.frozen_object(name, item, getattr(self, item)))
        self._set("tags", frozenset(rules.names(name, "tags", self.tags)))
        if self.allowed_roles is not None:
            self._set("allowed_roles", frozenset(rules.names(name, "allowed_roles", self.allowed_roles)))
        self._set("key", tuple(rules.names(name, "key", self.key)))
        self._set("examples", rules.frozen_examples(name, self.examples))
        self._set("effect", rules.choice(name, "effect", self.effect, Effect))
        self._set("no_schema_mode", rules.choice(name, "no_schema_mode", self.no_schema_mode, NoSchemaMode))
        if isinstance(self.annotations, Mapping):
            self._set("annotations", ToolAnnotations.from_dict(self.annotations))
        if self.type != "function" or not isinstance(self.annotations, ToolAnnotations):
            raise rules.refusal(name, "type must be 'function' and annotations ToolAnnotations")
        lints = [] if self.description else ["no description: models choose tools by it"]
        lints += self._settle_no_schema()
        lints += rules.check_key(name, tuple(self.key), self.effect, self.parameters)
        self._set("lints", tuple(lints))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _settle_no_schema(self) -> list[str]:
        """Check the no-schema flags; a schema takes precedence over them."""
        if self.parameters is None:
            return rules.check_no_schema(self.name, self.allow_no_schema, self.no_schema_mode, self.effect)
        if not self.allow_no_schema and self.no_schema_mode is None:
            return []
        self._set("allow_no_schema", False)
        self._set("no_schema_mode", None)
        text = "allow_no_schema and no_schema_mode are ignored: there is a schema"
        warnings.warn(f"tool {self.name!r}: {text}", DefinitionWarning, stacklevel=4)
        return [text]

    def __hash__(self) -> int:
        return hash(self.digest)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: Mapping[int, object]) -> Self:
        return self  # already deeply frozen; a copy would be mutable

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), {item.name: thaw(getattr(self, item.name)) for item in fields(self) if item.init})

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the whole declaration; changes with every part of it."""
        return digest(self.to_dict() | {"version": self.version})

    @cached_property
    def binding_digest(self) -> str:
        """SHA-256 of what decides how a call runs. Suspended calls and jobs are bound to it.

        It leaves out the texts for models and people: description, title, examples and ``deprecated``, also within the schemas.
        """
        shown = {key: item for key, item in self.to_dict().items() if key not in TEXTS and key != "deprecated"}
        schemas = {key: without_texts(shown[key]) for key in map(_WIRE.__getitem__, _SCHEMAS) if key in shown}
        return digest({**shown, **schemas, "version": self.version})

    @property
    def property_names(self) -> frozenset[str]:
        """The names of all properties that the schema of the arguments declares, at any depth."""
        return self._property_names

    @cached_property
    def _property_names(self) -> frozenset[str]:
        return frozenset(names_of_properties(self.parameters))

    def allows(self, roles: Iterable[str]) -> bool:
        """Check that a user with these roles may see and call the tool."""
        return self.allowed_roles is None or not frozenset(self.allowed_roles).isdisjoint(roles)

    @property
    def has_schema(self) -> bool:
        """True when arguments are validated; False only for a tool with ``allow_no_schema``."""
        return self.parameters is not None

    @property
    def tolerates(self) -> bool:
        """``tolerant``, or its default: True for all but ``irreversible`` tools."""
        return self.effect is not Effect.IRREVERSIBLE if self.tolerant is None else self.tolerant

    @cached_property
    def takes_nothing(self) -> bool:
        """True if the schema admits nothing but ``{}``: absent arguments can then mean nothing else."""
        schema = self.parameters
        if (
            schema is None
            or schema.get("type") != "object"
            or schema.get("required")
            or not schema.keys() <= _PLAIN_WORDS
        ):
            return False
        return schema.get("additionalProperties") is False and not schema.get("properties")

    def verify(self, *, trusted: bool = True) -> None:
        """Check the schemas, as registration does.

        ``trusted=False`` applies the limits for schemas from outside.

        Raises:
            SchemaRefused: a schema is invalid or unsafe, or no engine would enforce it in full.
        """
        from callgate.tools.schemas.validation import verify_schema

        if self.parameters is not None:
            verify_schema(self.parameters, role="parameters", trusted=trusted)
        if self.output_schema is not None:
            verify_schema(self.output_schema, role="output", trusted=trusted)

    def to_dict(self) -> dict[str, Any]:
        """Return the flat, neutral JSON form: a fresh copy with the members that are set."""
        shown: dict[str, object] = {"type": "function", "name": self.name}
        for name, wire in _WIRE.items():
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                shown[wire] = _plain(value)
        return shown

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Read the flat form or the wrapped one, ``{type: function, function: {...}}``.

        Keys may be spelled as on the wire or as in Python; ``inputSchema`` is another name for ``parameters``.
        A null counts as absent, and so does a blank description, because catalogues from outside have them. Unknown keys
        are kept in ``metadata``. A name of MCP that is longer than 64 characters, or has dots, is replaced by a legal name,
        which depends on it alone; ``metadata["foreign_name"]`` keeps it, and ``title`` where there is none.

        Raises:
            DefinitionError: the form is another, a key looks misspelt, or a rule is broken.
        """
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in rules.flatten(data).items():
            name = _ATTRIBUTES.get(key)
            if name is None:
                rules.check_unknown(key, _ATTRIBUTES)
                extra[key] = value
            elif name in known:
                raise DefinitionError(f"the tool definition gives {name} twice")
            elif value is not None and not (name == "description" and rules.is_blank(value)):
                known[name] = value
        if "name" not in known:
            raise DefinitionError("the tool definition has no name")
        name = known["name"]
        if isinstance(name, str) and rules.FOREIGN_NAME.fullmatch(name) and not rules.NAME.fullmatch(name):
            known["name"] = legal_tool_name(name)
            known.setdefault("title", name)
            extra["foreign_name"] = name
        if extra:
            known["metadata"] = {**known.get("metadata", {}), **extra}
        return cls(**known).as_outside()

    def as_outside(self) -> Self:
        """Return the definition with ``outside``; this one itself stays as it is."""
        if self.outside:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._set("outside", True)
        return made


_HINTS = {
    "read_only_hint": "readOnlyHint",
    "destructive_hint": "destructiveHint",
    "idempotent_hint": "idempotentHint",
    "open_world_hint": "openWorldHint",
}
_PLAIN_WORDS = frozenset(
    {"$schema", "$id", "$defs", "$comment", "title", "description", "default", "examples"}
    | {"type", "properties", "required", "additionalProperties"}
)
_SCHEMAS = ("parameters", "output_schema", "provider_schema")
_CAMEL = {
    "allow_no_schema": "allowNoSchema",
    "no_schema_mode": "noSchemaMode",
    "output_schema": "outputSchema",
    "provider_schema": "providerSchema",
    "allowed_roles": "allowedRoles",
}
_FIRST = ("description", "parameters", "strict", "allow_no_schema", "no_schema_mode")  # the documents' order
_NAMES = dict.fromkeys((*_FIRST, *(item.name for item in fields(ToolDefinition) if item.init)))
_WIRE = {name: _CAMEL.get(name, name) for name in _NAMES if name not in {"type", "name"}}
_ATTRIBUTES = {
    **{wire: name for name, wire in _WIRE.items()},
    **dict.fromkeys(("inputSchema", "input_schema"), "parameters"),
    **{name: name for name in _NAMES},
}
_DEFAULTS = {
    item.name: item.default if item.default_factory is MISSING else item.default_factory()
    for item in fields(ToolDefinition)
}


def _rebuild(cls: type[ToolDefinition], state: dict[str, Any]) -> ToolDefinition:
    return cls(**state).as_outside()


def _plain(value: object) -> object:
    if isinstance(value, ToolAnnotations):
        return value.to_dict()
    if isinstance(value, frozenset):
        return sorted(value)
    return value.value if isinstance(value, StrEnum) else thaw(value)
