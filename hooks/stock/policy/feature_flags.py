"""``FeatureFlags``: tools that are switched on and off while the service runs, by OpenFeature or by a source of your own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from string import Formatter
from typing import Any, Literal, TypeAlias, Unpack

from callgate.errors import Denied, HookError, InvocationError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.options import HookOptions, set_options
from callgate.providers.principal import User
from callgate.tools.definition import ToolDefinition

Value: TypeAlias = bool | None
Source: TypeAlias = Mapping[str, bool] | Callable[[str, User, ToolDefinition], Value | Awaitable[Value]]
"""A mapping that is read at every call, or a function of key, user and definition; None says that there is no such flag."""
_Ask: TypeAlias = Callable[[str, User, ToolDefinition], Any]


class FeatureFlags(Hook):
    """Runs a tool only while its flags are on; they are read at every call, so a change needs no new start.

    Args:
        client: an OpenFeature client (extra ``flags``), asked for booleans with the user as targeting key and tenant,
            tool, version, effect, roles and scopes as attributes; without it and without *source* the client of the
            application's default provider.
        source: instead of a client, a mapping or a function.
        keys: names of the flags that all have to be on, with ``{tool}`` and ``{tenant}`` filled in. For somebody
            without a tenant a key with ``{tenant}`` counts as missing.
        missing: what a flag means that does not exist: ``"off"``, or ``"on"`` where flags are kill switches.
        unreachable: ``"off"`` denies when the provider fails or does not answer; ``"on"`` lets the call pass and records
            it. A value that is no boolean always denies.
        time_limit: seconds for one flag, where asking has to wait. A plain function cannot be interrupted.
        options: those of ``Hook``: ``priority``, ``tools``, ``tags``, ``tenants``, ``timeout``, ``mode``, ``filter``.

    Raises:
        HookError: both a client and a source, a key with an unknown part, an option that means nothing, or neither a
            client nor a source and openfeature-sdk is not installed.
    """

    concern = "flags"
    priority = 100

    def __init__(
        self,
        client: Any = None,
        *,
        source: Source | None = None,
        keys: str | Sequence[str] = ("callgate.{tool}",),
        missing: Literal["off", "on"] = "off",
        unreachable: Literal["off", "on"] = "off",
        time_limit: float = 2.0,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        if client is not None and source is not None:
            raise HookError("FeatureFlags takes a client or a source, not both")
        for name, choice in (("missing", missing), ("unreachable", unreachable)):
            if choice not in ("off", "on"):
                raise HookError(f"FeatureFlags: {name} is {choice!r}; choose 'off' or 'on'")
        if not time_limit > 0:
            raise HookError(f"FeatureFlags: time_limit is {time_limit!r}; give seconds above 0")
        self._keys = tuple(_parts(key) for key in ((keys,) if isinstance(keys, str) else keys))
        if not self._keys:
            raise HookError("FeatureFlags: keys is empty; give at least one, such as 'callgate.{tool}'")
        self._ask = _from_source(source) if source is not None else _from_client(client)
        self._by_tool: dict[str, tuple[tuple[str, ...], ...]] = {}
        self.missing = missing
        self.unreachable = unreachable
        self.time_limit = time_limit

    async def will_check_feature_flags(self, ctx: InvokeContext) -> None:
        """Every flag of the call has to be on."""
        tenant = ctx.user.tenant
        for parts in self._by_tool.get(ctx.tool_id) or self._keys_of(ctx.tool_id):
            if len(parts) == 1:
                key, on = parts[0], await self._value(ctx, parts[0])
            elif tenant is None:
                key, on = "{tenant}".join(parts), None
            else:
                key = tenant.join(parts)
                on = await self._value(ctx, key)
            if on is None:
                on = self.missing == "on"
            if not on:
                ctx.abort(f"flag {key!r} is off", code="switched_off", public="This tool is switched off.")

    async def _value(self, ctx: InvokeContext, key: str) -> Value:
        """The flag, None when there is none; what is unreachable denies here, or is recorded and counts as on."""
        try:
            answer = self._ask(key, ctx.user, ctx.tool)
            if isinstance(answer, Awaitable):
                answer = await self._in_time(answer)
        except _NoBoolean:
            answer = _NoBoolean
        except Exception as error:
            if self.unreachable == "on":
                ctx.suppress(error)
                return True
            told = f"flag {key!r} could not be read: {type(error).__name__}"
            raise Denied(told, code="flag_unreadable") from error
        if answer is not None and not isinstance(answer, bool):
            ctx.abort(f"flag {key!r} is no boolean", code="flag_unreadable")
        return answer

    async def _in_time(self, answer: Awaitable[Any]) -> Any:
        limit = asyncio.timeout(self.time_limit)
        async with limit:
            value = await answer
        if limit.expired():  # it swallowed its cancellation: what it says now comes too late
            raise TimeoutError
        return value

    def _keys_of(self, tool: str) -> tuple[tuple[str, ...], ...]:
        made = self._by_tool[tool] = tuple(
            tuple(part.replace("{tool}", tool) for part in parts) for parts in self._keys
        )
        return made


class _NoBoolean(InvocationError):
    """A flag there is, that is no boolean."""


class _Unreachable(InvocationError):
    """The provider of flags could not be asked."""


def _parts(key: str) -> tuple[str, ...]:
    """A key, cut at ``{tenant}``: what a tenant is called cannot be taken for a part of the pattern."""
    if not isinstance(key, str) or not key:
        raise HookError(f"FeatureFlags: a key is a text such as 'callgate.{{tool}}', not {key!r}")
    try:
        found = {name for _, name, _, _ in Formatter().parse(key) if name is not None}
    except ValueError as error:
        raise HookError(f"FeatureFlags: key {key!r}: {error}") from error
    if not found <= {"tool", "tenant"} or key.count("{") != key.count("{tool}") + key.count("{tenant}"):
        raise HookError(f"FeatureFlags: key {key!r} may hold {{tool}} and {{tenant}}, nothing else in braces")
    return tuple(key.split("{tenant}"))


def _from_source(source: Any) -> _Ask:
    if isinstance(source, Mapping):
        flags: Mapping[str, Any] = source
        return lambda key, *_: flags.get(key)
    if not callable(source):
        raise HookError(f"FeatureFlags: source is {type(source).__name__}; give a mapping or a function")
    ask: _Ask = source
    return ask


def _from_client(client: Any) -> _Ask:
    try:
        from openfeature import api
        from openfeature.evaluation_context import EvaluationContext
        from openfeature.exception import ErrorCode
        from openfeature.flag_evaluation import Reason
        from openfeature.provider.no_op_provider import NoOpProvider
    except ImportError as error:
        raise HookError(
            'FeatureFlags needs openfeature-sdk; install it with pip install "callgate[flags]", or give source='
        ) from error
    asked = api.get_client() if client is None else client
    if not hasattr(asked, "get_boolean_details_async"):
        raise HookError(
            f"FeatureFlags takes an OpenFeature client, not {type(asked).__name__}; for others give source="
        )

    async def ask(key: str, user: User, tool: ToolDefinition) -> Value:
        attributes: dict[str, Any] = {
            "tool": tool.name,
            "version": tool.version,
            "roles": sorted(user.roles),
            "scopes": sorted(user.scopes),
        }
        if user.tenant is not None:
            attributes["tenant"] = user.tenant
        if tool.effect is not None:
            attributes["effect"] = tool.effect.value
        if isinstance(getattr(asked, "provider", None), NoOpProvider):
            raise _Unreachable("no OpenFeature provider is set")
        found = await asked.get_boolean_details_async(key, False, EvaluationContext(user.id, attributes))
        if found.error_code is ErrorCode.FLAG_NOT_FOUND:
            return None
        if found.error_code is ErrorCode.TYPE_MISMATCH:
            raise _NoBoolean
        if found.error_code is not None or found.reason == Reason.ERROR:
            raise _Unreachable(str(found.error_code))
        value: Value = found.value
        return value

    return ask
