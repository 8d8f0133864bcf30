"""``Secrets``: binds secrets for tools, and removes them from outputs, errors and records."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, Unpack

from callgate.errors import CallgateError, HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.options import HookOptions, checked, set_options
from callgate.providers.logs import log_warnings
from callgate.providers.scrubbed_parts import PartScrubber
from callgate.providers.scrubbing import Scrubber
from callgate.providers.spellings import SHORTEST_SECRET, spellings

_TOO_SHORT = f"has fewer than {SHORTEST_SECRET} characters: it cannot be masked in texts, so no tool gets it"
Source: TypeAlias = Callable[[InvokeContext], str | Awaitable[str]]
"""A function that reads one secret for an invocation; plain or async."""


class SecretMissing(CallgateError):
    """A source has no value, or a value too short to be kept secret. The message names the secret, never its value."""

    code = "secret_missing"


def from_env(name: str) -> Source:
    """Make a source that reads an environment variable at every call."""
    return _FromEnv(name)


class _FromEnv:
    """Reads an environment variable."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, _ctx: InvokeContext | None = None) -> str:
        return os.environ.get(self.name, "")


def from_keyring(service: str, username: str) -> Source:
    """Make a source that reads the system's keyring at every call, in a thread. Needs the extra ``keyring``.

    Raises:
        HookError: the extra is not installed.
    """
    try:
        import keyring
    except ImportError as error:
        raise HookError('from_keyring needs keyring; run pip install "callgate[keyring]"') from error

    async def read(_ctx: InvokeContext) -> str:
        return await asyncio.to_thread(keyring.get_password, service, username) or ""

    return read


class Secrets(Hook):
    """Secret injection: binds secrets for the tools that declare them, and removes them from all results and records.

    A tool declares a secret with ``key: Annotated[str, Provide["billing_key"]]``; a model can neither see nor send it.
    Each injected value becomes ``***`` in the output, cache, errors, logs, spans, histories, audit log, progress and
    questions. Its spellings in URLs, base64, hexadecimal and JSON are found, too, and those in pieces of a stream: parts are held back while
    a secret may have begun in them.

    Args:
        sources: by token, as in ``Provide[...]``, a function that reads the value for an invocation:
            ``from_env("BILLING_KEY")``, ``from_keyring("billing", "callgate")``, or a function of the context, plain or
            async. Values have at least 4 characters: a shorter one cannot be distinguished from other text.
        options: the options of every hook: ``tools``, ``tags``, ``tenants``, ``filter``, ... With ``mode="shadow"`` it
            binds nothing: it reads the sources and records their failures.

    Raises:
        HookError: no sources, or a source that is not a function.
    """

    concern = "secrets"
    priority = 0
    whole = True

    @checked
    def __init__(self, sources: Mapping[Any, Source], **options: Unpack[HookOptions]) -> None:
        set_options(self, options)
        if not isinstance(sources, Mapping) or not sources:
            raise HookError("Secrets needs sources by token; write Secrets({'billing_key': from_env('BILLING_KEY')})")
        for token, source in sources.items():
            if not callable(source):
                raise HookError(
                    f"Secrets: the source of {_name(token)} is a {type(source).__name__}, not a function; "
                    "write from_env(...), from_keyring(...) or a function of the context"
                )
        self._sources = dict(sources)
        self._is_checked = False
        self.binds = tuple(sources)
        self._known: dict[object, tuple[str, tuple[str, ...]]] = {}  # by token: the last value and its spellings

    def check_tools(self, _tools: object) -> None:
        """Warn once, when a gate opens, of environment variables whose calls would fail."""
        if self._is_checked:
            return
        self._is_checked = True
        for token, source in self._sources.items():
            if isinstance(source, _FromEnv) and len(value := source()) < SHORTEST_SECRET:
                fault = _TOO_SHORT if value else "is not set, and calls that need it fail"
                log_warnings("*", [f"secret {_name(token)}: the environment variable {source.name} {fault}"])

    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        """Read the sources and bind their values.

        Raises:
            SecretMissing: a source has no value.
        """
        found: dict[object, str] = {}
        hidden: list[str] = []
        for token, source in self._sources.items():
            value = source(ctx)
            found[token] = value = await value if inspect.isawaitable(value) else value
            hidden += self._spellings(token, value)
        if ctx.run.step.shadow:
            return
        Scrubber.of(ctx).add_secrets(hidden)
        ctx.bind_providers(found.items())

    def did_execute(self, ctx: InvokeContext) -> None:
        """Remove secrets from the tool's output before a cache, a history or another hook reads it."""
        self._scrub(ctx)

    def will_redact_output(self, ctx: InvokeContext) -> None:
        """Remove secrets from outputs that bypassed ``did_execute``: of a wrapper, or a streamed part."""
        self._scrub(ctx)

    def _scrub(self, ctx: InvokeContext) -> None:
        if ctx.run.step.shadow or ctx.run.scrubber is None:
            return
        clean = ctx.run.scrubber.value(ctx.run.output)
        if ctx.run.plan.record.streams and isinstance(clean, list):  # the parts of a generator, each a piece
            whole = PartScrubber(ctx.run.scrubber.secrets)
            clean = [part for each in clean for part in whole.feed(each)] + whole.flush()
        if clean is not ctx.run.output and clean != ctx.run.output:
            ctx.mask_output(clean)

    def _spellings(self, token: object, value: object) -> tuple[str, ...]:
        known = self._known.get(token)
        if known is not None and known[0] == value:
            return known[1]
        if not isinstance(value, str) or not value:
            source = self._sources[token]
            reason = f"it returned {'an empty text' if value == '' else type(value).__name__}"
            if isinstance(source, _FromEnv):
                reason = f"the environment variable {source.name} is not set; set it before the call"
            raise SecretMissing(f"the source of {_name(token)} has no value: {reason}")
        if len(value) < SHORTEST_SECRET:
            raise SecretMissing(f"the value of {_name(token)} {_TOO_SHORT}")
        made = spellings(value)
        self._known[token] = (value, made)
        return made


def _name(token: object) -> str:
    return repr(token) if isinstance(token, str) else str(getattr(token, "__name__", type(token).__name__))
