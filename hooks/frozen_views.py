"""Views of an invocation: its values, deeply immutable, and its providers. Errors of a write say what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from callgate.errors import StageError
from callgate.hooks.host import CallPlan
from callgate.hooks.stages import STAGES, May, Stage
from callgate.providers.registry import MISSING
from callgate.providers.scope import ProviderScope
from callgate.tools.values import SCALARS, FrozenDict, FrozenList, freeze


def stages_that_may(power: May) -> str:
    """Return the names of the stages that have a power, for an error."""
    return ", ".join(row.stage for row in STAGES.values() if power in row.may)


def _views(text: str) -> Callable[[Any], object]:
    """Return a function that makes views; a change of one raises ``StageError`` with *text*."""
    members: dict[str, Any] = {"__slots__": (), "refusal": (StageError, text)}
    mapping: type[FrozenDict] = type("ObjectView", (FrozenDict,), members)
    sequence: type[FrozenList] = type("ArrayView", (FrozenList,), members)

    def view(value: Any) -> Any:
        if value.__class__ is dict:  # most objects are flat
            for member in value.values():
                if member.__class__ not in SCALARS:
                    return freeze(value, mapping, sequence)
            return mapping(value)
        return freeze(value, mapping, sequence)

    return view


def _settable(name: str, power: May) -> Callable[[Any], object]:
    return _views(
        f"{name} cannot be changed in place; set a new value, as in {name} = {{**{name}, ...}}; "
        f"stages that may: {stages_that_may(power)}"
    )


input_view = _settable("ctx.input", May.INPUT)
"""Return a view of parsed arguments, or of what a hook set before they were parsed."""
output_view = _settable("ctx.output", May.OUTPUT)
"""Return a view of an output."""
masked_view = _settable("ctx.masked_input", May.MASK)
"""Return a view of the arguments that records may show, as a hook set them."""
raw_view = _views(
    f"ctx.raw_input cannot be changed; a hook of {Stage.WILL_PARSE_INPUT} or earlier sets ctx.input instead"
)
"""Return a view of the arguments as the caller gave them."""

_REFUSAL = (
    "ctx.providers is read-only; write ctx.bind_provider(token, instance), or return bindings from "
    f"will_bind_providers; stages that may: {stages_that_may(May.BIND)}"
)


class _Run(Protocol):
    @property
    def plan(self) -> CallPlan[Any]: ...

    def request_scope(self) -> ProviderScope: ...


class _Call(Protocol):
    """The part of ``InvokeContext`` that looks up providers."""

    tool_id: str

    @property
    def run(self) -> _Run: ...

    def get(self, token: Any) -> Any: ...

    def try_get(self, token: Any, default: Any = None) -> Any: ...


class ProvidersView(Mapping[Any, Any]):
    """The providers that a call can look up: those of the request, then of its session, then global ones.

    A look-up is ``ctx.get``: the first one makes the instance. ``in``, ``len`` and iteration make nothing. They list the
    tokens that are bound in the call or its session, and those that the gate has; a container's own providers are found,
    but not listed. *own* are the bindings of a hook in shadow mode.

    Raises:
        StageError: a write; the message says what to write instead.
        ProviderMissing: a look-up of a token that no scope has; ``get`` returns the default instead.
    """

    __slots__ = ("_ctx", "_own")

    def __init__(self, ctx: _Call, own: Mapping[Any, object]) -> None:
        self._ctx = ctx
        self._own = own

    def __getitem__(self, token: object) -> Any:
        return self._ctx.get(token)

    def get(self, token: Any, default: Any = None) -> Any:
        """Return the provider for a token, or *default* if no scope has it; errors of a factory are raised."""
        return self._ctx.try_get(token, default)

    def __contains__(self, token: object) -> bool:
        run = self._ctx.run
        recipe = run.plan.host.registry.recipes.of(token)
        return recipe.key in self._own or recipe.is_provided or run.request_scope().peek(recipe) is not MISSING

    def __iter__(self) -> Iterator[Any]:
        run = self._ctx.run
        scope = run.request_scope()
        session = scope.session(False)
        bound = () if session is None else session.bindings
        return iter(dict.fromkeys((*self._own, *scope.bindings, *bound, *run.plan.host.registry.tokens)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<providers of a call of {self._ctx.tool_id}>"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StageError(_REFUSAL)

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse
