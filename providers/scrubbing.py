"""The scrubber of one tool call: removes known secrets from outputs, errors and logs.

Secrets are removed from all values. Values that a redaction hook masked in the input are removed from errors and logs only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol
from urllib.parse import quote, quote_plus

import orjson

from callgate.providers.detectors import MASK, Detector, detect

SHORTEST_SECRET = 4
"""Minimum length of a value to search for; shorter values match unrelated text."""


def spellings(secret: str) -> tuple[str, ...]:
    """Return a secret in plain form and as encoded in URLs, base64 and JSON; longest first."""
    data = secret.encode("utf-8", "surrogatepass")
    found = {
        secret,
        quote(data, safe=""),
        quote_plus(data),
        base64.b64encode(data).decode().rstrip("="),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        _within_json(secret),
    }
    return tuple(sorted(found, key=len, reverse=True))


def _within_json(text: str) -> str:
    return orjson.dumps(text.encode("utf-8", "replace").decode()).decode()[1:-1]


_MEMBERS = ("strerror", "filename", "filename2", "msg", "name", "path", "text", "reason", "value", "code")


class _ScrubbedRun(Protocol):
    scrubber: Scrubber | None


class _ScrubbedCall(Protocol):
    @property
    def run(self) -> _ScrubbedRun: ...


class Scrubber:
    """The values that one tool call must not show; ``text``, ``value`` and ``error`` remove them."""

    __slots__ = ("_detectors", "_masked", "_needles", "_new", "_secrets")

    def __init__(self) -> None:
        self._secrets: tuple[str, ...] = ()
        self._needles: tuple[bytes, ...] = ()
        self._masked: tuple[str, ...] = ()
        self._detectors: tuple[Detector, ...] = ()
        self._new: list[Iterable[str]] = []  # processed when there is a text to scrub

    @classmethod
    def of(cls, ctx: _ScrubbedCall) -> Scrubber:
        """Return the scrubber of a call, and create it on first use."""
        known = ctx.run.scrubber
        if known is None:
            known = ctx.run.scrubber = cls()
        return known

    def add_secrets(self, known: Iterable[str]) -> None:
        """Remove these values, as ``spellings`` returns them, from everything."""
        self._secrets = tuple(sorted({*self._secrets, *known}, key=len, reverse=True))
        self._needles = tuple({_within_json(one).encode() for one in self._secrets})

    def add_masked(self, values: Iterable[str], detectors: Collection[Detector] = ()) -> None:
        """Remove these values, and the findings of the detectors, from texts."""
        if values:
            self._new.append(values)
        if detectors:
            self._detectors = tuple(dict.fromkeys((*self._detectors, *detectors)))

    def _process_new(self) -> None:
        new = {one for values in self._new for one in values if len(one) >= SHORTEST_SECRET}
        self._new = []
        self._masked = tuple(sorted({*self._masked, *new}, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Scrub a text of an error or a log."""
        if self._new:
            self._process_new()
        for one in (*self._secrets, *self._masked):
            if one in text:
                text = text.replace(one, MASK)
        return detect(text, self._detectors, MASK)

    def value(self, value: Any) -> object:
        """Return a JSON value without the secrets, or the same object if it has none."""
        if not self._secrets:
            return value
        try:
            shown = orjson.dumps(value)
        except TypeError:
            return self._scrubbed(value)
        return self._scrubbed(value) if any(needle in shown for needle in self._needles) else value

    def _scrubbed(self, value: object) -> object:
        if isinstance(value, str):
            return self._text_without_secrets(value)
        if isinstance(value, Mapping):
            return {self._scrubbed(key): self._scrubbed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._scrubbed(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return MASK if self._text_without_secrets(repr(value)) != repr(value) else value
        return value

    def _text_without_secrets(self, text: str) -> str:
        for one in self._secrets:
            if one in text:
                text = text.replace(one, MASK)
        return text

    def error(self, error: BaseException) -> BaseException:
        """Scrub an error, its causes, contexts and notes in place, and return it.

        An error that cannot be changed is replaced by a ``RuntimeError`` with its type name.
        """
        seen: set[int] = set()
        return self._clean(error, seen) or _stand_in(error)

    def _clean(self, error: BaseException, seen: set[int]) -> BaseException | None:
        """Return the scrubbed error, or None when it cannot be changed."""
        if id(error) in seen:
            return error
        seen.add(id(error))
        for link in ("__cause__", "__context__"):
            linked = getattr(error, link)
            if linked is not None and self._clean(linked, seen) is None:
                hidden = error.__suppress_context__
                setattr(error, link, _stand_in(linked))
                error.__suppress_context__ = hidden
        inner = [self._clean(one, seen) for one in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
        if isinstance(error, asyncio.CancelledError):  # a cancel scope recognizes it by its message
            return error
        self._clean_members(error)
        return None if None in inner or self._shows(error) else error

    def _clean_members(self, error: BaseException) -> None:
        error.args = tuple(map(self._member, error.args))
        own = vars(error) if hasattr(error, "__dict__") else {}
        for name, member in list(own.items()):
            if not name.startswith("__"):
                own[name] = self._member(member)
        if notes := own.get("__notes__"):
            own["__notes__"] = [self._member(note) for note in notes]
        for name in _MEMBERS:  # attributes of built-in exceptions, which are not in __dict__
            text = getattr(error, name, None)
            if isinstance(text, str) and (clean := self.text(text)) != text:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(error, name, clean)

    def _member(self, member: object) -> object:
        """Scrub texts, also in containers and dataclasses. Other objects whose repr shows a secret become the mask."""
        if isinstance(member, str):
            return self.text(member)
        if isinstance(member, BaseException) or member is None or isinstance(member, bool | float):
            return member
        try:
            shown = repr(member)
        except Exception:  # noqa: BLE001  (a failing repr shows nothing)
            return member
        return member if self.text(shown) == shown else self._rebuilt(member)

    def _rebuilt(self, member: object) -> object:
        if isinstance(member, dict):
            return {self._member(key): self._member(item) for key, item in member.items()}
        if isinstance(member, list | tuple):
            return [*map(self._member, member)] if isinstance(member, list) else (*map(self._member, member),)
        if dataclasses.is_dataclass(member) and not isinstance(member, type):
            parts = {
                part.name: self._member(getattr(member, part.name)) for part in dataclasses.fields(member) if part.init
            }
            with contextlib.suppress(Exception):
                return dataclasses.replace(member, **parts)
        return MASK

    def _shows(self, error: BaseException) -> bool:
        try:
            shown = f"{error} {error!r}"
        except Exception:  # noqa: BLE001  (a failing repr shows nothing)
            return False
        return self.text(shown) != shown


def _stand_in(error: BaseException) -> BaseException:
    """Return the replacement of an error whose text cannot be changed."""
    replacement = RuntimeError(f"{type(error).__name__}: {MASK}")
    replacement.__suppress_context__ = True
    return replacement


CURRENT_SCRUBBER: ContextVar[Scrubber | None] = ContextVar("callgate_scrubber", default=None)
"""The scrubber of the call that is being logged, for the redaction of log events."""
