"""Outputs as JSON: what a tool or a hook gave, converted once by pydantic's serialiser, in a copy that nothing else holds."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any, Protocol

import orjson

from callgate.errors import Invalid
from callgate.tools.calls import Issue
from callgate.tools.limits import DEFAULT_LIMITS, Limits
from callgate.tools.schemas.validation import Validator, explain
from callgate.tools.values import SCALARS, clip, deeper_than, pointer

PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""Options of the fast encoder with which it gives the same JSON as pydantic."""
OUTPUT_REFUSED = {
    "invalid_output": "The tool's output is not valid.",
    "output_too_large": "The tool's output is too large.",
    "output_too_deep": "The tool's output nests too deep.",
}
_COPIED = (list, tuple, set, frozenset, deque)
_BYTES = (bytes, bytearray, memoryview)
_TEXTS = (str, *_BYTES)
_EMPTY_ITEM = 2
"""The least bytes that one item of an array is counted with: a digit and its comma."""


def bad_output(message: str, *, code: str = "invalid_output", issues: Sequence[Issue] = ()) -> Invalid:
    """Return the refusal of an output; *message* is for developers."""
    return Invalid(message, stage="output", code=code, public=OUTPUT_REFUSED[code], issues=issues)


def output_refusal(validator: Validator, value: object) -> Invalid:
    """Return the refusal of an output that breaks the output schema; developers see the issues, the model does not."""
    issues = [
        one if one.keyword == "type" else replace(one, expected=f"{one.expected}, found {_found(one, value)}")
        for one in explain(validator, value)
    ]
    return bad_output("the output breaks the output schema: " + "; ".join(map(str, issues))[:2000], issues=issues)


def too_deep(deepest: int) -> Invalid:
    """Return the refusal of an output that nests deeper than *deepest*."""
    return bad_output(f"the output nests deeper than {deepest} levels", code="output_too_deep")


def too_large(size: str, maximum: int) -> Invalid:
    """Return the refusal of an output of *size*."""
    return bad_output(f"the output has {size}; {maximum} is the most", code="output_too_large")


def check_content(largest: int, total: int, limits: Limits) -> None:
    """Check the bytes of the largest content block of an output, and of all.

    Raises:
        Invalid: they exceed a limit.
    """
    for size, name, what in (
        (largest, "max_block_bytes", "a content block of"),
        (total, "max_content_bytes", "content of"),
    ):
        if size > (maximum := getattr(limits, name)):
            raise bad_output(
                f"the output has {what} {size} bytes; {maximum} is the most. Return a ResourceLink to it, or write "
                f"limits=Limits({name}={size}) at the tool or in Options",
                code="output_too_large",
            )


class HoldsOutput(Protocol):
    """The state of a call, as far as it knows which output keeps the limits."""

    limited: object


class Unread(Exception):
    """An output holds an iterator, and the event loop may not wait for it: read the output in a thread."""


class Reader:
    """Reads the iterators in one output, within the limits of outputs.

    ``stop`` raises an exception once the call is over. With ``waits`` False, an iterator raises ``Unread`` instead.
    """

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, stop: Callable[[], None] = lambda: None, *, waits: bool = True
    ) -> None:
        self.max_bytes, self.deepest, self._limits = limits.max_output_bytes, limits.max_output_depth, limits
        self.stop, self.waits = stop, waits
        self.size = 1
        self.content = 0  # bytes of data in content blocks, which ``size`` leaves out
        self.ran = False  # an iterator has run: it is part of the body, which had not ended with its return
        self.by_alias: bool | None = True  # None once a model decides by its own ``serialize_by_alias``

    def read(self, items: Iterable[object], convert: Callable[[object], object]) -> list[object]:
        """Return the converted items; an iterator that exceeds the limits is closed.

        Raises:
            Invalid: the items exceed the limit of bytes.
            Unread: *items* is an iterator, and this reader may not wait.
        """
        if not self.waits and isinstance(items, Iterator):
            raise Unread
        found: list[object] = []
        self.ran = self.ran or isinstance(items, Iterator)
        try:
            for item in items:
                self.stop()
                before, content = self.size, self.content
                found.append(convert(item))  # which counts the iterators within
                size, largest, total = _size(found[-1])
                self.size, self.content = before + max(size + 1, _EMPTY_ITEM), content + total
                if self.size > self.max_bytes:
                    raise too_large(f"over {self.max_bytes} bytes", self.max_bytes)
                check_content(largest, self.content, self._limits)
        finally:
            close = getattr(items, "close", None) if isinstance(items, Iterator) else None
            if close is not None:
                close()
        return found

    def whole(self, value: object, depth: int = 0) -> object:
        """Return *value* with its iterators as lists, and other mappings and collections as dicts and lists.

        Raises:
            Invalid: it nests too deep, an iterator is too long, or two keys of an object are the same in JSON.
        """
        if value.__class__ in SCALARS or isinstance(value, _TEXTS):
            return value
        if depth > self.deepest:
            raise too_deep(self.deepest)
        if isinstance(value, Mapping):
            _distinct(value)
            found = {key: self.whole(part, depth + 1) for key, part in value.items()}
            return value if isinstance(value, dict) and _same(found.values(), value.values()) else found
        if isinstance(value, Iterator):
            return self.read(value, lambda part: self.whole(part, depth + 1))
        if isinstance(value, _COPIED):
            parts = [self.whole(part, depth + 1) for part in value]
            return value if _same(parts, value) else parts
        if isinstance(value, Sequence | AbstractSet | ValuesView):
            return [self.whole(part, depth + 1) for part in value]
        return self._fields(value, depth)

    def _fields(self, value: object, depth: int) -> object:
        """Return a dataclass or a model with its iterators as lists; other values unchanged."""
        from callgate.tools.content import Block  # most outputs have no content

        if isinstance(value, Block):
            return self._block(value)
        config: object = getattr(type(value), "model_config", None) or getattr(type(value), "__pydantic_config__", None)
        if isinstance(config, Mapping) and config.get("serialize_by_alias") is not None:
            self.by_alias = None
        changed = value
        for name, part in _fields_of(value):
            found = self.whole(part, depth + 1)
            if found is not part:
                changed = copy(value) if changed is value else changed
                object.__setattr__(changed, name, found)
        return changed

    def _block(self, block: Any) -> object:
        """Return a content block as JSON; its data is measured before it is encoded."""
        size = len(getattr(block, "data", b""))
        self.content += size
        check_content(size, self.content, self._limits)
        return block.to_json()


class Dump:
    """Converts what a tool returned to JSON. Without *adapter*, by the values alone; *each* converts the items of an array.

    ``first`` is a conversion of the author's own, before this one. ``named`` is the schema of a type with named
    members. ``members`` are those of a TypedDict of plain JSON: an object of these needs no conversion.
    """

    def __init__(
        self,
        adapter: Any = None,
        *,
        by_alias: bool | None = True,
        is_open: bool = True,
        first: Callable[[object], object] | None = None,
        each: Dump | None = None,
        named: Mapping[str, object] | None = None,
        members: frozenset[str] | None = None,
    ) -> None:
        self._dump: Callable[..., object] | None = None
        if adapter is not None:
            self._dump = partial(adapter.serializer.to_python, mode="json", by_alias=by_alias)
        self._named, self.members = named, members
        self._is_open, self._first, self._each = is_open, first, each
        self._loose = adapter is None and first is None and each is None

    @classmethod
    def of(cls, to_json: Callable[[object], object] | None) -> Dump:
        """Return the conversion of a tool whose record has this ``to_json``."""
        return to_json if isinstance(to_json, cls) else cls(first=to_json)

    def __call__(self, value: object, reader: Reader | None = None) -> object:
        """Convert a value.

        Raises:
            Invalid: it has no JSON form; the text names the path and the type.
            Unread: see ``Reader``.
        """
        reader = reader or Reader()
        if self._first is not None:
            value = self._first(value)
        each = self._each
        if each is not None and isinstance(value, Iterable) and not isinstance(value, (*_TEXTS, Mapping)):
            return reader.read(value, lambda item: each(item, reader))
        if self._is_open:
            value = reader.whole(value)
        try:
            return self._serialised(value, reader)
        except Exception as error:  # noqa: BLE001  (a serialiser of the author may raise anything; the text may hold values)
            refused = error if isinstance(error, Invalid) else not_json(value, reader.deepest)
        raise refused

    @property
    def takes_plain(self) -> bool:
        """True if plain JSON needs no conversion, or does not if it is an object of the ``members``."""
        return self._loose or self.members is not None

    def _serialised(self, value: object, reader: Reader) -> object:
        if self._dump is not None:
            named = self._named
            return self._dump(value, warnings=False) if named is None else _typed(value, self._dump, named)
        if value.__class__ in SCALARS:
            return value
        return _serialiser().to_python(value, mode="json", by_alias=reader.by_alias, warnings=False)


def _typed(value: object, dump: Callable[..., object], schema: Mapping[str, object]) -> object:
    """Convert a value of a type with named members. Of a dict for a model, pydantic would keep members that the model lacks.

    Those of an instance of a subclass are left out, too.
    """
    from pydantic_core import PydanticSerializationError

    try:
        return dump(value, warnings="error")
    except PydanticSerializationError:
        if (path := not_finite(value)) is not None:  # it would become null
            raise infinite(path) from None
        from callgate.tools.output_members import only_known  # most outputs are of their type

        return only_known(dump(value, warnings=False), schema)


@cache
def _serialiser() -> Any:
    """Return pydantic's serialiser of values of any type."""
    from pydantic_core import SchemaSerializer, core_schema

    return SchemaSerializer(core_schema.any_schema(), {"ser_json_inf_nan": "constants"})  # as typed ones do


LOOSE = Dump()
"""The conversion of outputs without an annotated type."""


def not_finite(value: object, path: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    """Return the path of the first number in JSON that is not finite; None if there is none."""
    if isinstance(value, float):
        return None if value - value == 0.0 else path
    for key, part in _parts(value):
        found = None if part.__class__ is str else not_finite(part, (*path, key))
        if found is not None:
            return found
    return None


def infinite(path: tuple[str | int, ...]) -> Invalid:
    """Return the refusal of an output with a number that is not finite."""
    issue = Issue(_shown(path), "type", "must be a finite number, found NaN or an infinity")
    return bad_output(f"the output holds a number that is not finite: {issue}", issues=[issue])


def not_json(value: object, deepest: int) -> Invalid:
    """Return the refusal of a value that pydantic does not serialise, with the path to its first such part."""
    if deeper_than(value, deepest):
        return too_deep(deepest)
    path: tuple[str | int, ...] = ()
    while (inner := next((one for one in _parts(value) if not _has_json(one[1])), None)) is not None:
        path, value = (*path, inner[0]), inner[1]
        if len(path) > deepest:
            return too_deep(deepest)
    expected = f"must be a value with a JSON form, found {type(value).__qualname__}"
    issue = Issue(_shown(path), "type", expected)
    advice = "return a dict, a model or a dataclass"
    if isinstance(value, _BYTES):
        advice = "return File(data, mime_type) of callgate.content"
    elif inspect.iscoroutine(value):
        advice = f"`await` is missing before {value.__name__}(...)"
    return bad_output(f"the output is not JSON: {issue}; {advice}", issues=[issue])


def _has_json(value: object) -> bool:
    from pydantic_core import to_json

    try:
        to_json(value)
    except Exception:  # noqa: BLE001  (as in ``Dump``)
        return False
    return True


def _parts(value: object) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, _COPIED):
        yield from enumerate(value)
    else:
        yield from _fields_of(value)


def _fields_of(value: object) -> Iterator[tuple[str, object]]:
    """Yield the fields of a dataclass or a model."""
    kind: object = type(value)
    names: Any = getattr(kind, "__pydantic_fields__", None) or getattr(kind, "__dataclass_fields__", ())
    for name in names:
        try:
            yield name, object.__getattribute__(value, name)
        except AttributeError:  # a field that was never set
            continue


def _distinct(value: Mapping[object, object]) -> None:
    """Refuse an object of which two keys are one in JSON, such as ``1`` and ``"1"``: a part would be lost."""
    if all(key.__class__ is str for key in value):
        return
    from pydantic_core import to_jsonable_python

    try:
        names = to_jsonable_python(dict.fromkeys(value))
    except Exception:  # noqa: BLE001  (the conversion itself names the key)
        return
    if len(names) != len(value):
        raise bad_output("the output is not JSON: two keys of one object are the same text in JSON")


def _same(found: Iterable[object], before: Iterable[object]) -> bool:
    return all(one is other for one, other in zip(found, before, strict=True))


def _size(value: object) -> tuple[int, int, int]:
    """Return the bytes of a value as JSON without its content, of its largest content block, and of all its content.

    They are 0 where it has no JSON form, which the conversion then refuses.
    """
    try:
        return size_without_content(value, orjson.dumps(value))
    except TypeError:
        pass
    from pydantic_core import to_json

    try:
        return size_without_content(value, to_json(value))
    except Exception:  # noqa: BLE001  (as in ``Dump``)
        return 0, 0, 0


def size_without_content(value: object, data: bytes) -> tuple[int, int, int]:
    """Return the bytes of JSON *data* of a value without its content, of its largest content block, and of all content."""
    from callgate.providers.content_json import may_hold, measured  # most calls need it not

    if not may_hold(data):
        return len(data), 0, 0
    largest, total, characters = measured(value)
    return len(data) - characters, largest, total


_JSON_TYPES = {dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean"}


def _found(issue: Issue, value: Any) -> str:
    """Return the JSON type of the part of *value* that an issue points to."""
    for name in issue.pointer.split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return "nothing"
    return _JSON_TYPES.get(value.__class__, "null")


def _shown(path: tuple[object, ...]) -> str:
    return pointer(clip(str(part)) for part in path)
