"""``ToolRegistry``: the registered tools by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from callgate.errors import DefinitionError, UnknownTool
from callgate.providers.guesses import Explained, explain_camel_case
from callgate.providers.logs import LogEvent, emit
from callgate.tools.declaring.declare import as_tool
from callgate.tools.declaring.executor import ToolSchema
from callgate.tools.definition import ToolDefinition
from callgate.tools.naming import Enabled, check_enabled, did_you_mean, is_enabled
from callgate.tools.record import ToolRecord
from callgate.tools.schemas.engines.dialect import Role
from callgate.tools.values import clip

_ROLES: tuple[Role, ...] = ("parameters", "output")
_VERIFIED: WeakValueDictionary[int, ToolRecord] = WeakValueDictionary()
"""The trusted records whose schemas were checked, by identity: another gate does not check them again."""
Change: TypeAlias = Mapping[str, ToolRecord | None]
"""The new records by name; None for a tool that goes."""
Changing: TypeAlias = Callable[[Change], AbstractContextManager[None]]
"""Called around a change of a registry."""


def _unchecked(_change: Change) -> AbstractContextManager[None]:
    return nullcontext()


def validate_tool(tool: object) -> ToolRecord:
    """Make the record of a tool and check its definition and schemas. Takes the same as ``as_tool``.

    Raises:
        DefinitionError: the object is not a tool yet, or a rule is broken.
        SchemaRefused: a schema is invalid or unsafe, or no engine would enforce it in full.
    """
    record = as_tool(tool)
    if _VERIFIED.get(id(record)) is record:  # a subclass may say that it is equal to another record
        return record
    if record.trusted:
        from callgate.tools.schemas.validation import verify_schema  # loads the engines

        for role in _ROLES:
            if (schema := record.schema_of(role)) is not None:
                verify_schema(schema, role)
        _VERIFIED[id(record)] = record
    elif not record.validators:
        from callgate.tools.schemas.outside import compile_outside  # most gates have no tool from outside

        record.validators.update(compile_outside(record.definition, record.formats_for(None)))
    return record


@explain_camel_case
class ToolRegistry(metaclass=Explained):
    """Tools by wire name, in the order of registration. A tool enters only by registration.

    ``version`` grows with every change. A gate sets ``changing``, a context manager around each change: it may refuse
    the change before it is made.

    Raises:
        DefinitionError: two of the given tools have one name, or one of them is refused.
    """

    def __init__(self, tools: Iterable[object] = ()) -> None:
        self._records: dict[str, ToolRecord] = {}
        self.changing: Changing = _unchecked
        self.version = 0
        self._listeners: dict[object, Callable[[], object]] = {}
        self._index: Any = None
        self._known: dict[int, tuple[object, str]] = {}  # by identity of the registered object: the object and its name
        self._ids: dict[str, set[int]] = {}  # by name: the keys of its entries there
        self._alike = Counter[str]()  # by case-folded name: how many tools a reader takes for one
        given = list(tools)
        records = [validate_tool(tool) for tool in given]
        names = [record.id for record in records]
        _refuse_duplicates(name for name in dict.fromkeys(names) if names.count(name) > 1)
        for tool, record in zip(given, records, strict=True):
            self._put(tool, record)

    def register(self, tool: object, *, replace: bool = False) -> ToolRecord:
        """Check a tool in full and add it; takes a function, a class, an executor or a record.

        Raises:
            DefinitionError: the tool is refused, or the name is taken and ``replace`` is not set.
        """
        return self.add_validated(tool, replace=replace)

    def add_validated(self, tool: object, *, replace: bool = False) -> ToolRecord:
        """Add a tool after a check of its definition and schemas. Raises like ``register``."""
        return self._add(tool, validate_tool(tool), replace)

    def add_inline(self, tool: object, *, replace: bool = False) -> ToolRecord:
        """Add a tool whose schemas were checked elsewhere. Raises like ``register``."""
        return self._add(tool, as_tool(tool), replace)

    def remove(self, name: str) -> ToolRecord:
        """Remove a tool and return its record.

        Raises:
            UnknownTool: there is no tool of that name.
        """
        record = self.get(name)
        self._change({name: None}, ())
        return record

    def exchange(
        self, add: Iterable[object] = (), remove: Iterable[str] = (), *, replace: bool = False
    ) -> tuple[ToolRecord, ...]:
        """Add and remove tools at once, and return the records of the new ones. Nothing changes if one is refused.

        Raises:
            UnknownTool: there is no tool of a name to remove.
            DefinitionError: a tool is refused, or its name is taken, neither removed here nor to be replaced.
        """
        given = [(tool, validate_tool(tool)) for tool in add]
        names = [record.id for _, record in given]
        gone = [self.get(name).id for name in remove]
        _refuse_duplicates(name for name in dict.fromkeys(names) if names.count(name) > 1)
        if replace is not True:  # a text such as "false" replaces nothing
            _refuse_duplicates(name for name in names if name in self._records and name not in gone)
        self._change({**dict.fromkeys(gone), **{record.id: record for _, record in given}}, given)
        return tuple(record for _, record in given)

    def on_change(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call *listener* after each change, in the thread that makes it; return the function that ends this."""
        key = object()
        self._listeners[key] = listener

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def get(self, name: str) -> ToolRecord:
        """Return the tool of a wire name.

        Raises:
            UnknownTool: there is none. Its ``str()`` names the nearest tool; its text for a model does not.
        """
        record = self._records.get(name)
        if record is None:
            raise UnknownTool(f"no tool {clip(str(name))!r}{did_you_mean(str(name), self.names)}")
        return record

    def id_of(self, tool: object) -> str:
        """Return the wire name under which a tool object was registered: a function, class, executor or record.

        Raises:
            UnknownTool: the object was not registered, or another tool has taken its name.
        """
        known = self._known.get(id(tool))
        if known is not None and known[0] is tool:
            return known[1]
        record = as_tool(tool)
        registered = self.get(record.id)
        if registered is record or registered.execute == record.execute:
            return record.id
        raise UnknownTool(f"{clip(repr(tool))} is not registered; another tool is named {record.id!r}")

    def list(self) -> tuple[ToolRecord, ...]:
        """All tools, in the order of registration."""
        return tuple(self._records.values())

    @property
    def records(self) -> Mapping[str, ToolRecord]:
        """All tools by wire name, as they are now; a change makes another mapping."""
        return self._records

    @property
    def index(self) -> Any:
        """The search index of the tools; built at first use, and updated from then on."""
        if self._index is None:
            from callgate.tools.picking.index import ToolIndex

            self._index = ToolIndex(self._records.values())
        return self._index

    @property
    def names(self) -> tuple[str, ...]:
        """All wire names, in the order of registration."""
        return tuple(self._records)

    def definitions(self, enabled: Enabled | None = None) -> tuple[ToolDefinition, ...]:
        """The definitions of the enabled tools, by name; None means all, an empty collection none.

        Raises:
            TypeError: *enabled* is a text or a mapping, or a function that returned another type than a boolean.
        """
        check_enabled("ToolRegistry", enabled)
        return tuple(record.definition for record in self.list() if is_enabled("ToolRegistry", enabled, record.id))

    def schemas(self, enabled: Enabled | None = None) -> tuple[ToolSchema, ...]:
        """The schemas of the enabled tools for a planner; ``enabled`` as in ``definitions``."""
        return tuple(ToolSchema.from_definition(definition) for definition in self.definitions(enabled))

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[ToolRecord]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"ToolRegistry({', '.join(self._records)})"

    def _add(self, tool: object, record: ToolRecord, replace: bool) -> ToolRecord:
        if replace is not True:
            _refuse_duplicates([record.id] if record.id in self._records else [])
        self._put(tool, record)
        return record

    def _put(self, tool: object, record: ToolRecord) -> None:
        self._change({record.id: record}, [(tool, record)])

    def _change(self, change: Change, given: Iterable[tuple[object, ToolRecord]]) -> None:
        """Make a change. Other threads see the tools before it, or those after it."""
        with self.changing(change):
            alike = self._counted(change)
            records, known = self._records.copy(), self._known
            if any(name in records for name in change):  # a new name leaves no old record behind
                known = known.copy()
                for name in change:
                    for key in self._ids.pop(name, ()):
                        if known[key][1] == name:
                            del known[key]
            for name, record in change.items():
                if record is not None:
                    records[name] = record
                else:
                    del records[name]
                if self._index is not None:
                    self._index.remove(name) if record is None else self._index.put(name, record, record.definition)
            for tool, record in given:
                known[id(tool)] = (tool, record.id)
                known[id(record)] = (record, record.id)
                self._ids[record.id] = {id(tool), id(record)}
            self._records, self._known = records, known
            self._alike.update(alike)
            self.version += 1
        self._notify()

    def _counted(self, change: Change) -> dict[str, int]:
        """Return what a change adds to ``_alike``.

        Raises:
            DefinitionError: a tool from outside has a name that looks like that of another tool: people approve by name.
        """
        more = Counter[str]()
        for name, record in change.items():
            more[name.casefold()] += (record is not None) - (name in self._records)
        for name, record in change.items():
            if (
                record is not None
                and record.definition.outside
                and self._alike[name.casefold()] + more[name.casefold()] > 1
            ):
                raise DefinitionError(
                    f"tool {clip(name)!r} from outside has a name that looks like that of another tool: give its names a prefix"
                )
        return more

    def _notify(self) -> None:
        for listener in tuple(self._listeners.values()):
            try:
                listener()
            except Exception as error:  # noqa: BLE001  (the change has been made)
                emit(LogEvent.PROVIDER_FAILED, provider="on_tools_changed", phase="notify", error=error)


def _refuse_duplicates(names: Iterable[str]) -> None:
    if found := ", ".join(names):
        raise DefinitionError(f"Duplicate tool names: {found}")
