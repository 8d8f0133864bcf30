"""``Consent``: a tool runs only after its user has agreed to it, once for each scope, until they take it back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, TypeAlias, Unpack

from callgate.errors import HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.host import Host
from callgate.hooks.stock.options import HookOptions, set_options
from callgate.providers.principal import ANONYMOUS, User
from callgate.providers.stores.base import Grant, Store
from callgate.tools.definition import ToolDefinition

Scopes: TypeAlias = str | Collection[str] | Callable[[ToolDefinition], str | Collection[str]]
DAY = 86_400.0


class Consent(Hook):
    """Asks a user once for each tool and scope, and remembers the answer until it expires or is revoked.

    Without a grant the call is answered with a challenge instead of running the tool. Your application shows it to the
    person, and calls ``await consent.grant(user, tool)`` when they agree; the next call passes. What a challenge says is
    made from the tool's name and the scopes, never from what a model wrote. Nobody who is not signed in can agree:
    anonymous calls are denied. A store that fails denies.

    Args:
        store: where grants are kept; default: the store of the gate that it was last called in.
        ask: ``"respond"`` ends the call with the challenge as its output; ``"suspend"`` ends it as suspended, and a
            person who resumes it with ``Respond({"granted": True})`` has agreed.
        ttl: seconds that a grant lasts, None for ever; default 30 days.
        scope: what the user agrees to: a name, several, or a function from the tool's definition to them. A function
            that gives none says that the tool needs no consent.
        text: a function from definition and missing scopes to the sentence that the person reads.
        wait: with ``ask="suspend"``, seconds until the suspension expires; None leaves that to the gate.
        now: wall clock for ``grant``, in seconds since the epoch; default: the gate's, once a call has been seen.
        options: those of ``Hook``: ``priority``, ``tools``, ``tags``, ``tenants``, ``timeout``, ``mode``, ``filter``.

    Raises:
        HookError: an option that means nothing.
    """

    concern = "consent"
    priority = 100

    def __init__(
        self,
        store: Store | None = None,
        *,
        ask: Literal["respond", "suspend"] = "respond",
        ttl: float | None = 30 * DAY,
        scope: Scopes = "use",
        text: Callable[[ToolDefinition, Sequence[str]], str] | None = None,
        wait: float | None = None,
        now: Callable[[], float] | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        if ask not in ("respond", "suspend"):
            raise HookError(f"Consent: ask is {ask!r}; choose 'respond' or 'suspend'")
        for name, seconds in (("ttl", ttl), ("wait", wait)):
            if seconds is not None and not seconds > 0:
                raise HookError(f"Consent: {name} is {seconds!r}; give seconds above 0, or None")
        self._fixed = None if callable(scope) else _scopes(scope)
        if self._fixed == ():
            raise HookError("Consent: scope names nothing to agree to; give a name, or a function of the definition")
        self._scope = scope
        self._store = store
        self._host: Host | None = None
        self._text = text or _sentence
        self._by_tool: dict[str, tuple[ToolDefinition, tuple[str, ...]]] = {}
        self._now = now
        self.ask = ask
        self.ttl = ttl
        self.wait = wait

    async def will_check_consent(self, ctx: InvokeContext) -> None:
        """Look for a grant of every scope; ask for those that are missing."""
        scopes = self._fixed or self._scopes_of(ctx.tool)
        if not scopes:
            return
        user = ctx.user
        if user.id == ANONYMOUS.id:
            ctx.abort("consent needs somebody who is signed in", code="consent_required")
        store = self._store
        if store is None:
            self._host = ctx.host
            store = ctx.host.store
        find, tenant, tool = store.consents.find, user.tenant or "", ctx.tool_id
        missing = [scope for scope in scopes if await find(tenant, user.id, tool, scope) is None]
        if missing:
            answer = self._challenge(ctx, missing)
            if not answer["granted"]:
                ctx.abort("consent was refused", code="consent_refused", public="The user does not agree.")
            await self.grant(user, tool, missing, store=store)

    def _challenge(self, ctx: InvokeContext, missing: list[str]) -> dict[str, bool]:
        message = self._text(ctx.tool, missing)
        if self.ask == "respond":
            ctx.respond(
                {"type": "consent_required", "tool": ctx.tool_id, "scopes": missing, "message": message},
                validate=False,
            )
        schema = {
            "type": "object",
            "properties": {"granted": {"type": "boolean"}},
            "required": ["granted"],
            "additionalProperties": False,
        }
        answer: dict[str, bool] = ctx.suspend("consent", message, schema=schema, expires=self.wait)
        return answer

    def _scopes_of(self, tool: ToolDefinition) -> tuple[str, ...]:
        known = self._by_tool.get(tool.name)
        if known is None or known[0] is not tool:
            assert callable(self._scope)
            known = self._by_tool[tool.name] = (tool, _scopes(self._scope(tool)))
        return known[1]

    # ------------------------------------------------------------------ what the application calls

    async def grant(
        self,
        user: User,
        tool: str | ToolDefinition,
        scope: str | Collection[str] | None = None,
        *,
        ttl: float | None = None,
        store: Store | None = None,
    ) -> tuple[Grant, ...]:
        """Remember that a user agreed; a newer grant takes the place of an older one.

        Call it for the person who agreed, authenticated by you, never because a model says so. *tool* is its wire name
        or definition, *scope* what was agreed to: by default what the hook asks for. *ttl* is in seconds, by default the
        hook's.

        Raises:
            HookError: nobody who is signed in, no scope, or no store is known yet.
        """
        if user.id == ANONYMOUS.id:
            raise HookError("an anonymous user cannot agree to anything: all of them would have")
        name = tool if isinstance(tool, str) else tool.name
        lasts = self.ttl if ttl is None else ttl
        if lasts is not None and not lasts > 0:
            raise HookError(f"Consent.grant: ttl is {ttl!r}; give seconds above 0")
        kept, now = self._store_for(store), self._time()
        until = None if lasts is None else now + lasts
        grants = tuple(Grant(user.id, name, one, now, until) for one in self._agreed(tool, scope))
        for one in grants:
            await kept.consents.grant(user.tenant or "", one)
        return grants

    async def revoke(
        self, user: User, tool: str | None = None, scope: str | None = None, *, store: Store | None = None
    ) -> int:
        """Take back a user's grants: all, those of a tool, or of one scope; how many there were. The next call asks."""
        return await self._store_for(store).consents.revoke(user.tenant or "", user.id, tool, scope)

    async def list(self, user: User, *, store: Store | None = None) -> Sequence[Grant]:
        """A user's grants, the oldest first."""
        return await self._store_for(store).consents.list(user.tenant or "", user.id)

    def _agreed(self, tool: str | ToolDefinition, scope: str | Collection[str] | None) -> tuple[str, ...]:
        if scope is not None:
            agreed = _scopes(scope)
        elif self._fixed is not None:
            agreed = self._fixed
        elif isinstance(tool, str):
            known = self._by_tool.get(tool)
            agreed = () if known is None else known[1]
        else:
            agreed = self._scopes_of(tool)
        if not agreed:
            raise HookError("Consent.grant: say which scope was agreed to")
        return agreed

    def _time(self) -> float:
        if self._now is not None:
            return self._now()
        host = self._host
        return time.time() if host is None else host.monotonic() + host.wall_offset

    def _store_for(self, given: Store | None) -> Store:
        for store in (given, self._store, None if self._host is None else self._host.store):
            if store is not None:
                return store
        raise HookError(
            "Consent knows no store before its first call; give it one, the same as the gate's: Consent(store=...)"
        )


def _scopes(given: Any) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    if not all(isinstance(one, str) and one for one in found):
        raise HookError("Consent: a scope is a text such as 'refunds'")
    return found


def _sentence(tool: ToolDefinition, scopes: Sequence[str]) -> str:
    return f"The tool {tool.name} needs your consent: {', '.join(scopes)}."
