"""``Secrets``: values that tools need and nobody may see: bound as request providers, scrubbed from all that comes back."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

from callgate.errors import CallgateError, HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.providers.scrubbing import SHORTEST, Scrubber, spellings

Source: TypeAlias = Callable[[InvokeContext], str | Awaitable[str]]
"""Reads one secret for an invocation; plain or async."""


class SecretMissing(CallgateError):
    """A source had no value, or one that cannot be kept secret; the message names the secret, never its value."""

    code = "secret_missing"


def from_env(name: str) -> Source:
    """A secret from an environment variable, read at every call."""

    def read(_ctx: InvokeContext) -> str:
        return os.environ.get(name, "")

    return read


def from_keyring(service: str, username: str) -> Source:
    """A secret from the system's keyring, read in a thread at every call. Needs the extra ``keyring``.

    Raises:
        HookError: the extra is not installed.
    """
    try:
        import keyring
    except ImportError as error:
        raise HookError("from_keyring needs the extra: pip install 'callgate[keyring]'") from error

    async def read(_ctx: InvokeContext) -> str:
        return await asyncio.to_thread(keyring.get_password, service, username) or ""

    return read


class Secrets(Hook):
    """Binds secrets for the tools that declare them, and takes them out of everything that comes back.

    A tool asks for one with ``key: Annotated[str, Provide["billing_key"]]``; a model can neither see nor send it. Each
    value that was injected becomes ``***`` in output, cache, errors, logs, spans, histories, audit and progress, also
    where it is written as URLs, base64 or JSON write it.

    Args:
        sources: by token, as ``Provide[...]`` names it, a function that reads the value for an invocation:
            ``from_env("BILLING_KEY")``, ``from_keyring("billing", "callgate")``, or any function of the context, plain
            or async. Values are texts of at least 4 characters: a shorter one could not be told from other text.
        mode: ``"shadow"`` binds nothing; it reads the sources and records which of them failed.

    Raises:
        HookError: no sources, or one that is no function.
    """

    concern = "secrets"
    priority = 0

    def __init__(self, sources: Mapping[Any, Source], *, mode: Literal["enforce", "shadow"] = "enforce") -> None:
        if not sources:
            raise HookError("Secrets: give at least one source, such as {'billing_key': from_env('BILLING_KEY')}")
        for token, source in sources.items():
            if not callable(source):
                raise HookError(
                    f"Secrets: the source of {_name(token)} is a {type(source).__name__}, not a function; "
                    "write from_env(...), from_keyring(...) or a function of the context"
                )
        self._sources = dict(sources)
        self.binds = tuple(sources)
        self.mode = mode
        self._known: dict[Any, tuple[str, tuple[str, ...]]] = {}  # what a source gave last, and its spellings

    async def will_inject_secrets(self, ctx: InvokeContext) -> None:
        """Read the sources and bind what they give.

        Raises:
            SecretMissing: a source has no value.
        """
        found: dict[Any, str] = {}
        hidden: list[str] = []
        for token, source in self._sources.items():
            value = source(ctx)
            found[token] = value = await value if inspect.isawaitable(value) else value
            hidden += self._spellings(token, value)
        if ctx.step.shadow:
            return
        Scrubber.of(ctx).add_secrets(hidden)
        ctx.bind_providers(found.items())

    def did_execute(self, ctx: InvokeContext) -> None:
        """Scrub what the tool returned, before a cache, a history or another hook's record has it."""
        self._scrub(ctx, ctx._output_json)

    def will_redact_output(self, ctx: InvokeContext) -> None:
        """Scrub what came from elsewhere: a hook that wraps the tool, a part that is streamed."""
        self._scrub(ctx, None)

    def _scrub(self, ctx: InvokeContext, data: bytes | None) -> None:
        if ctx.step.shadow or ctx.scrubber is None:
            return
        clean = ctx.scrubber.value(ctx.output, data)
        if clean is not ctx.output:
            ctx.mask_output(clean)

    def _spellings(self, token: Any, value: Any) -> tuple[str, ...]:
        known = self._known.get(token)
        if known is not None and known[0] == value:
            return known[1]
        if not isinstance(value, str) or not value:
            raise SecretMissing(f"the source of {_name(token)} has no value: it gave {type(value).__name__}")
        if len(value) < SHORTEST:
            raise SecretMissing(f"the value of {_name(token)} has fewer than {SHORTEST} characters")
        made = spellings(value)
        self._known[token] = (value, made)
        return made


def _name(token: Any) -> str:
    return repr(token) if isinstance(token, str) else str(getattr(token, "__name__", type(token).__name__))


__all__ = ["SecretMissing", "Secrets", "Source", "from_env", "from_keyring"]
