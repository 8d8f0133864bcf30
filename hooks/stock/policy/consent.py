"""``Consent``: a tool runs only with the consent of its user, granted per tool and scope until it is revoked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias, Unpack
from weakref import ReferenceType, ref

from callgate.errors import HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.host import Host
from callgate.hooks.stock.options import HookOptions, check_choice, check_seconds, checked, keep, set_options
from callgate.hooks.stock.store_time import store_time
from callgate.providers.kinds import refuse_result
from callgate.providers.principal import ANONYMOUS, User
from callgate.providers.stores.base import Grant, Store
from callgate.tools.definition import ToolDefinition

Scopes: TypeAlias = str | Collection[str] | Callable[[ToolDefinition], str | Collection[str]]
DAY = 86_400.0


class Consent(Hook):
    """User consent: asks once per tool and scope, and stores the grant until it expires or is revoked.

    Without a grant the tool does not run, and the call ends with a challenge. Your application shows the challenge to
    the user, and calls ``await consent.grant(user, tool)`` when they agree; the next call passes. The challenge is made
    of the tool's name and the scopes, never of text from a model. Anonymous calls are denied, and so are all calls while
    the store fails.

    Args:
        scope: the scope of the consent: a name, several, or a function from the tool's definition to them. A tool for
            which the function returns none needs no consent.
        ttl: seconds until a grant expires; None: never. Default: 30 days.
        ask: ``"respond"`` ends the call with the challenge as its output. ``"suspend"`` suspends the call until its user
            resumes it with ``Respond({"granted": True})``.
        expires: with ``ask="suspend"``, seconds until the suspension expires; None: the setting of the gate.
        text: a function from definition and missing scopes to the sentence that the user reads.
        store: where grants are kept; default: the store of the gate of the last call.
        now: wall clock for ``grant``, in seconds since the epoch; default: the clock of the gate after the first call.
        options: the options of every hook: ``priority``, ``tools``, ``tags``, ``tenants``, ``mode``, ``filter``, ...

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "consent"
    priority = 100

    @checked
    def __init__(
        self,
        scope: Scopes = "use",
        *,
        ttl: float | None = 30 * DAY,
        ask: Literal["respond", "suspend"] = "respond",
        expires: float | None = None,
        text: Callable[[ToolDefinition, Sequence[str]], str] | None = None,
        store: Store | None = None,
        now: Callable[[], float] | None = None,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        check_choice("Consent", "ask", ask, ("respond", "suspend"))
        for name, seconds in (("ttl", ttl), ("expires", expires)):
            if seconds is not None:
                check_seconds("Consent", name, seconds)
        self._fixed = None if callable(scope) else _scopes(scope)
        if self._fixed == ():
            raise HookError("Consent: scope is empty; give a name such as 'mail:read', or a function of the definition")
        self._scope = scope
        self._store = store
        self._last: Store | None = None
        self._host: Host[InvokeContext] | None = None
        self._text = text or _sentence
        self._by_tool: dict[str, tuple[ReferenceType[ToolDefinition], tuple[str, ...]]] = {}
        self._now = now
        self.ask = ask
        self.ttl = ttl
        self.expires = expires

    async def will_check_consent(self, ctx: InvokeContext) -> None:
        """Look up a grant for every scope, and ask the user for the missing ones."""
        scopes = self._fixed or self._scopes_of(ctx.tool)
        if not scopes:
            return
        user = ctx.user
        if user.id == ANONYMOUS.id:
            ctx.abort("consent needs an authenticated user", code="consent_required")
        host = ctx.run.plan.host
        if self._store is None:
            self._host, store = host, host.store
        else:
            store = self._last = host.own_store(self._store)
        find, tenant, tool = store.consents.find, user.tenant or "", ctx.tool_id
        with store_time(ctx):
            missing = [scope for scope in scopes if await find(tenant, user.id, tool, scope) is None]
        if missing:
            answer = self._challenge(ctx, missing)
            if not answer["granted"]:
                ctx.abort("consent was refused", code="consent_refused", public="The user does not agree.")
            await self.grant(user, tool, missing, store=store)

    def _challenge(self, ctx: InvokeContext, missing: list[str]) -> dict[str, bool]:
        message: object = self._text(ctx.tool, missing)
        if not isinstance(message, str):
            refuse_result("Consent", "text", message, "a text")
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
        answer: dict[str, bool] = ctx.suspend("consent", message, schema=schema, expires=self.expires)
        return answer

    def _scopes_of(self, tool: ToolDefinition) -> tuple[str, ...]:
        known = self._by_tool.get(tool.name)
        if known is None or known[0]() is not tool:
            assert callable(self._scope)
            scopes: object = self._scope(tool)
            if not isinstance(scopes, str | Collection):
                refuse_result("Consent", "scope", scopes, "a scope, or several")
            known = keep(self._by_tool, tool.name, (ref(tool), _scopes(scopes)))
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
        """Store a user's consent; a newer grant replaces an older one.

        Call it for a user whom your application has authenticated, never because of the output of a model.

        Args:
            user: the user who agreed.
            tool: the tool's name or definition.
            scope: the scopes of the consent; default: those that the hook asks for.
            ttl: seconds until the grant expires; default: the setting of the hook.
            store: where to store it; default: the store of the hook.

        Raises:
            HookError: the user is anonymous, there is no scope, or the store is not known yet.
        """
        if user.id == ANONYMOUS.id:
            raise HookError(
                "Consent.grant: an anonymous user cannot consent, all of them share one id; authenticate the user"
            )
        name = tool if isinstance(tool, str) else tool.name
        lasts = self.ttl if ttl is None else ttl
        if lasts is not None:
            check_seconds("Consent.grant", "ttl", lasts)
        kept, now = self._store_for(store), self._time()
        until = None if lasts is None else now + lasts
        grants = tuple(Grant(user.id, name, one, now, until) for one in self._agreed(tool, scope))
        for one in grants:
            await kept.consents.grant(user.tenant or "", one)
        return grants

    async def revoke(
        self, user: User, tool: str | None = None, scope: str | None = None, *, store: Store | None = None
    ) -> int:
        """Revoke a user's grants: all, those of a tool, or of one scope. Returns their number; the next call asks again."""
        return await self._store_for(store).consents.revoke(user.tenant or "", user.id, tool, scope)

    async def list(self, user: User, *, store: Store | None = None) -> Sequence[Grant]:
        """Return a user's grants, the oldest first."""
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
            raise HookError("Consent.grant: the scope of this tool is not known yet; write grant(user, tool, scope)")
        return agreed

    def _time(self) -> float:
        if self._now is not None:
            return self._now()
        host = self._host
        return time.time() if host is None else host.monotonic() + host.clock.offset

    def _store_for(self, given: Store | None) -> Store:
        for store in (given, self._last, self._store, None if self._host is None else self._host.store):
            if store is not None:
                return store
        raise HookError(
            "Consent: the store is not known before the first call; give it the store of the gate: Consent(store=...)"
        )


def _scopes(given: object) -> tuple[str, ...]:
    if not isinstance(given, str | Collection):
        raise HookError(f"Consent: scope is {given!r:.80}; give a name such as 'mail:read' (a store goes to store=)")
    found = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    if not all(isinstance(one, str) and one for one in found):
        raise HookError("Consent: a scope is a name such as 'mail:read'")
    return found


def _sentence(tool: ToolDefinition, scopes: Sequence[str]) -> str:
    return f"The tool {tool.name} needs your consent: {', '.join(scopes)}."
