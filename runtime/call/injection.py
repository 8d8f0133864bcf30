"""Dependency injection: the marked parameters of tools, hook methods and hook classes, found at registration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import CoroutineType
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.providers.markers import Injected
from callgate.providers.ranks import Rank
from callgate.providers.recipes import MISSING, Recipe, scoped_among, takes_built_in
from callgate.providers.registry import ProviderRegistry


class Supply:
    """The values for the marked parameters of one callable, in the scope of an invocation.

    *bound* are the keys that hooks bind. ``in_unit`` means that a value is part of the unit of work, ``carries`` that this
    part takes the claim of the effect.

    Raises:
        ProviderError: no provider exists, or it depends on itself. Names *owner*, the parameter, the path and the
        token.
    """

    __slots__ = ("_given", "_plain", "_seen", "_world", "carries", "in_unit", "wanted")

    def __init__(
        self, registry: ProviderRegistry, injected: Iterable[Injected], bound: Collection[object] = (), owner: str = ""
    ) -> None:
        self._world = registry.world
        self.wanted = tuple((one.name, registry.recipes.of(one.token, one.modifier)) for one in injected)
        for name, recipe in self.wanted:
            registry.recipes.check(recipe, bound, f"{owner}: parameter {name!r}")
        self.in_unit = any(recipe.rank is Rank.EXECUTION for _, recipe in self.wanted)
        self.carries = self.in_unit and any(takes_built_in(recipe) for _, recipe in self.wanted)
        # By name: its recipe, and the provider of dependency-injector that needs no scope.
        self._plain = tuple((name, recipe, _lone(recipe)) for name, recipe in self.wanted)
        # The last values, if all are global instances, and the state of the providers at that time.
        self._given: dict[str, Any] = {}
        self._seen: Any = self

    def take(self, ctx: InvokeContext) -> dict[str, Any]:
        """Return the instances by parameter, without waiting. Raises ``ProviderError`` if one is asynchronous."""
        return {name: ctx.run.innermost_scope().take(recipe) for name, recipe in self.wanted}

    def ready(self, ctx: InvokeContext) -> dict[str, Any] | None:
        """Return the cached result of ``get``, which is read-only, or None if a provider has to run."""
        if self._seen is self._world.plain and ctx.run.scope is None and not ctx.run.session_id:
            return self._given
        return None

    async def get(self, ctx: InvokeContext) -> dict[str, Any]:
        """Return the instances by parameter, read-only; make those that their scope does not have yet."""
        if (supplied := self.ready(ctx)) is not None:
            return supplied
        supplied = {}
        if ctx.run.scope is not None or ctx.run.session_id or self._world.overrides:
            provide = ctx.run.innermost_scope().provide
            for name, recipe in self.wanted:
                supplied[name] = await provide(recipe)
            return supplied
        # Without bindings and overrides, global instances are final.
        made, plain = self._world.scope.instances, self._world.plain
        lasts = True
        for name, recipe, ask in self._plain:
            if ask is not None:
                found, lasts = ask(), False
                if found.__class__ is CoroutineType or hasattr(found.__class__, "__await__"):
                    found = await found
            elif (found := recipe.value) is MISSING:
                lasts = lasts and recipe.scoped is None
                if recipe.is_overridden or (found := made.get(recipe, MISSING)) is MISSING:
                    found, lasts = await ctx.run.innermost_scope().provide(recipe), False
            supplied[name] = found
        if lasts:
            self._given, self._seen = supplied, plain
        return supplied


def _lone(recipe: Recipe) -> Callable[[], Any] | None:
    return recipe.foreign if recipe.foreign is not None and not scoped_among(recipe) else None
