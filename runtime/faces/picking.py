"""``gate.pick``: tool selection among the tools that a user may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.providers.principal import User
from callgate.runtime.call.calls import refuse_user
from callgate.runtime.plans import Plans
from callgate.tools.picking.filters import Visible
from callgate.tools.picking.pick import pick_tools
from callgate.tools.picking.results import PickResult
from callgate.tools.registry import ToolRegistry


async def pick(
    plans: Plans, registry: ToolRegistry, query: Any, user: User, options: Mapping[str, Any]
) -> list[PickResult]:
    """Run ``pick_tools`` over the tools of a gate that *user* may see.

    The option ``visible`` narrows the tools further; it never widens them. ``tool`` of a result is the ``ToolRecord``.
    """
    refuse_user(user)
    options = dict(options)
    also: Visible | None = options.pop("visible", None)

    def visible(definition: Any) -> bool:
        if not plans.may_see(registry.get(definition.name), user):
            return False
        return also is None or also(definition)

    return await pick_tools(query, registry.index, visible=visible, **options)
