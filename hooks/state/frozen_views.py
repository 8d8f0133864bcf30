"""Views of an invocation: its values, deeply immutable, and its providers. Errors of a write say what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from callgate.errors import StageError
from callgate.hooks.stages import STAGES, May, Stage
from callgate.providers.registry import MISSING, ProviderRegistry
from callgate.providers.scope import ProviderScope
from callgate.tools.values import SCALARS, FrozenDict, FrozenList, freeze

LATER_THAN_INPUT = {
    Stage.WILL_INJECT_SECRETS: ". To hand a secret over, write ctx.bind_provider(token, secret), and let the tool take "
    "Annotated[str, Provide[token]]",
}
"""By stage, what else to write in place of ``ctx.input = ...`` once the arguments are frozen."""


def stages_that_may(power: May) -> str:
    """Return the names of the stages that have a power, for an error."""
    return ", ".join(row.stage for row in STAGES.values() if power in row.may)


def _views(text: str) -> Callable[[object], object]:
    """Return a function that makes views; a change of one raises ``StageError`` with *text*."""
    members: dict[str, object] = {"__slots__": (), "refusal": (StageError, text)}
    mapping: type[FrozenDict] = type("ObjectView", (FrozenDict,), members)
    sequence: type[FrozenList] = type("ArrayView", (FrozenList,), members)

    def view(value: Any) -> object:
        if value.__class__ is dict:  # most objects are flat
            for member in value.values():
                if member.__class__ not in SCALARS:
                    return freeze(value, mapping, sequence)
            return mapping(value)
        return freeze(value, mapping, sequence)

    return view


def _settable(name: str, power: May) -> Callable[[object], object]:
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


class _Call(Protocol):
    """The part of ``InvokeContext`` that looks up providers."""

    tool_id: str

    def get(self, token: object) -> object: ...

    def try_get(self, token: object, default: object = None) -> object: ...


class ProvidersView(Mapping[object, object]):
    """The providers that a call can look up: those of the request, then of its session, then global ones.

    A look-up is ``ctx.get``: the first one makes the instance. ``in``, ``len`` and iteration make nothing. They list the
    tokens that are bound in the call or its session, and those that the gate has; a container's own providers are found,
    but not listed. *own* are the bindings of a hook in shadow mode.

    Raises:
        StageError: a write; the message says what to write instead.
        ProviderMissing: a look-up of a token that no scope has; ``get`` returns the default instead.
    """

    __slots__ = ("_ctx", "_own", "_registry", "_scope")

    def __init__(self, ctx: _Call, scope: ProviderScope, registry: ProviderRegistry, own: Mapping[Any, object]) -> None:
        self._ctx, self._scope, self._registry, self._own = ctx, scope, registry, own

    def __getitem__(self, token: object) -> object:
        return self._ctx.get(token)

    def get(self, token: object, default: object = None) -> object:
        """Return the provider for a token, or *default* if no scope has it; errors of a factory are raised."""
        return self._ctx.try_get(token, default)

    def __contains__(self, token: object) -> bool:
        recipe = self._registry.recipes.of(token)
        return recipe.key in self._own or recipe.is_provided or self._scope.peek(recipe) is not MISSING

    def __iter__(self) -> Iterator[object]:
        session = self._scope.session(False)
        bound = () if session is None else session.bindings
        return iter(dict.fromkeys((*self._own, *self._scope.bindings, *bound, *self._registry.tokens)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<providers of a call of {self._ctx.tool_id}>"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StageError(_REFUSAL)

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse
