"""``FeatureFlags``: enables and disables tools at run time, by OpenFeature or your own source of flags."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from string import Formatter
from typing import Any, Literal, Protocol, TypeAlias, Unpack

from callgate.errors import Denied, HookError, InvocationError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.options import HookOptions, check_choice, check_seconds, checked, keep, set_options
from callgate.providers.principal import User
from callgate.tools.definition import ToolDefinition

Value: TypeAlias = bool | None
Source: TypeAlias = Mapping[str, bool] | Callable[[str, User, ToolDefinition], Value | Awaitable[Value]]
"""A mapping, read at every call, or a function of key, user and definition. None: there is no such flag."""
_Read: TypeAlias = Callable[[str, User, ToolDefinition], object]


class FlagClient(Protocol):
    """A client of OpenFeature."""

    @property
    def get_boolean_details_async(self) -> Callable[..., Awaitable[object]]:
        """Evaluate a boolean flag."""
        ...


class FeatureFlags(Hook):
    """Feature flags: a tool runs only while all its flags are on. Flags are read at every call.

    Args:
        source: a mapping, a function of key, user and definition, or an OpenFeature client (extra ``flags``). Default:
            the OpenFeature client of the application. The client gets the user as targeting key; tenant, tool, version,
            effect, roles and scopes are attributes.
        keys: the flags that all have to be on; ``{tool}`` and ``{tenant}`` are filled in. For a user without a tenant, a
            flag with ``{tenant}`` does not exist.
        default: the value of a flag that does not exist; True where flags are kill switches.
        on_provider_failure: ``"deny"`` denies the call when the flag cannot be read; ``"allow"`` lets it pass and
            records the failure. A value that is not a boolean always denies.
        flag_timeout: seconds to read one flag asynchronously. A plain function cannot be interrupted.
        options: the options of every hook: ``priority``, ``tools``, ``tags``, ``tenants``, ``mode``, ``filter``, ...

    Raises:
        HookError: a key with an unknown part, a setting with an invalid value, or openfeature-sdk is not installed and
            there is no source.
    """

    concern = "flags"
    priority = 100

    @checked
    def __init__(
        self,
        source: Source | FlagClient | None = None,
        *,
        keys: str | Sequence[str] = ("callgate.{tool}",),
        default: bool = False,
        on_provider_failure: Literal["deny", "allow"] = "deny",
        flag_timeout: float = 2.0,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        if not isinstance(default, bool):
            raise HookError(f"FeatureFlags: default is {default!r}; give True or False")
        check_choice("FeatureFlags", "on_provider_failure", on_provider_failure, ("deny", "allow"))
        check_seconds("FeatureFlags", "flag_timeout", flag_timeout)
        self._keys = tuple(_parts(key) for key in ((keys,) if isinstance(keys, str) else keys))
        if not self._keys:
            raise HookError("FeatureFlags: keys is empty; give at least one, such as 'callgate.{tool}'")
        self._read = _reader_of(source)
        self._by_tool: dict[str, tuple[tuple[str, ...], ...]] = {}
        self.default = default
        self.on_provider_failure = on_provider_failure
        self.flag_timeout = flag_timeout

    async def will_check_feature_flags(self, ctx: InvokeContext) -> None:
        """Deny the call unless all its flags are on."""
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
                on = self.default
            if not on:
                ctx.abort(f"flag {key!r} is off", code="switched_off", public="This tool is switched off.")

    async def _value(self, ctx: InvokeContext, key: str) -> Value:
        """Read a flag; None when it does not exist. After a failure deny the call, or record the failure and return True."""
        try:
            value = self._read(key, ctx.user, ctx.tool)
            if isinstance(value, Awaitable):
                value = await self._in_time(value)
        except _NotBoolean:
            value = _NotBoolean
        except Exception as error:
            if self.on_provider_failure == "allow":
                ctx.suppress(error)
                return True
            failure = f"flag {key!r} could not be read: {type(error).__name__}"
            raise Denied(failure, code="flag_unreadable") from error
        if value is not None and not isinstance(value, bool):
            ctx.abort(f"flag {key!r} is not a boolean", code="flag_unreadable")
        return value

    async def _in_time(self, pending: Awaitable[object]) -> object:
        limit = asyncio.timeout(self.flag_timeout)
        async with limit:
            value = await pending
        if limit.expired():  # the source suppressed its cancellation; its value is too late
            raise TimeoutError
        return value

    def _keys_of(self, tool: str) -> tuple[tuple[str, ...], ...]:
        made = tuple(tuple(part.replace("{tool}", tool) for part in parts) for parts in self._keys)
        return keep(self._by_tool, tool, made)


class _NotBoolean(InvocationError):
    """The flag exists, but is not a boolean."""


class _Unreachable(InvocationError):
    """The provider could not evaluate the flag."""


def _parts(key: str) -> tuple[str, ...]:
    """Split a key at ``{tenant}``, so that braces in the name of a tenant are never replaced."""
    if not isinstance(key, str) or not key:
        raise HookError(f"FeatureFlags: keys has {key!r}; give texts such as 'callgate.{{tool}}'")
    try:
        found = {name for _, name, _, _ in Formatter().parse(key) if name is not None}
    except ValueError as error:
        raise HookError(f"FeatureFlags: key {key!r}: {error}") from error
    if not found <= {"tool", "tenant"} or key.count("{") != key.count("{tool}") + key.count("{tenant}"):
        raise HookError(f"FeatureFlags: key {key!r} may have {{tool}} and {{tenant}}, and no other braces")
    return tuple(key.split("{tenant}"))


def _reader_of(source: object) -> _Read:
    if isinstance(source, Mapping):
        flags: Mapping[str, object] = source
        return lambda key, *_: flags.get(key)
    if source is None or hasattr(source, "get_boolean_details_async"):
        return _from_client(source)
    if not callable(source):
        raise HookError(
            f"FeatureFlags: source is a {type(source).__name__}; give a mapping, a function or an OpenFeature client"
        )
    read: _Read = source
    return read


def _from_client(given: Any) -> _Read:
    try:
        from openfeature import api
        from openfeature.evaluation_context import EvaluationContext
        from openfeature.exception import ErrorCode
        from openfeature.flag_evaluation import Reason
        from openfeature.provider.no_op_provider import NoOpProvider
    except ImportError as error:
        raise HookError(
            'FeatureFlags needs openfeature-sdk; run pip install "callgate[flags]", or write FeatureFlags({...})'
        ) from error
    client = api.get_client() if given is None else given

    async def read(key: str, user: User, tool: ToolDefinition) -> Value:
        attributes: dict[str, str | list[str]] = {
            "tool": tool.name,
            "version": tool.version,
            "roles": sorted(user.roles),
            "scopes": sorted(user.scopes),
        }
        if user.tenant is not None:
            attributes["tenant"] = user.tenant
        if tool.effect is not None:
            attributes["effect"] = tool.effect.value
        if isinstance(getattr(client, "provider", None), NoOpProvider):
            raise _Unreachable("no OpenFeature provider is set")
        found = await client.get_boolean_details_async(key, False, EvaluationContext(user.id, attributes))
        if found.error_code is ErrorCode.FLAG_NOT_FOUND:
            return None
        if found.error_code is ErrorCode.TYPE_MISMATCH:
            raise _NotBoolean
        if found.error_code is not None or found.reason == Reason.ERROR:
            raise _Unreachable(str(found.error_code))
        value: Value = found.value
        return value

    return read
