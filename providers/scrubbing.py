"""The scrubber of one invocation: takes known values out of whatever may show them. One place for all who have to.

Secrets are taken out of everything. What a redaction masked in the input is taken out of texts alone: errors and logs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, quote_plus

import orjson

from callgate.providers.detectors import MASK, Detector, detect

SHORTEST = 4
"""Characters that a value must have to be looked for: what is shorter cannot be told from other text."""


def spellings(secret: str) -> tuple[str, ...]:
    """A secret as it is, and as URLs, base64 and JSON spell it; the longest first."""
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


class Scrubber:
    """Knows what one invocation must not show. ``text``, ``value`` and ``error`` take it out."""

    __slots__ = ("_detectors", "_masked", "_needles", "_new", "_secrets")

    def __init__(self) -> None:
        self._secrets: tuple[str, ...] = ()
        self._needles: tuple[bytes, ...] = ()
        self._masked: tuple[str, ...] = ()
        self._detectors: tuple[Detector, ...] = ()
        self._new: list[Iterable[str]] = []  # looked at when there is a text to clean

    @classmethod
    def of(cls, ctx: Any) -> Scrubber:
        """The scrubber of an invocation, made when the first hook asks for it."""
        known: Scrubber | None = ctx.scrubber
        if known is None:
            known = ctx.scrubber = cls()
        return known

    def add_secrets(self, known: Iterable[str]) -> None:
        """Take these, as ``spellings`` gives them, out of everything."""
        self._secrets = tuple(sorted({*self._secrets, *known}, key=len, reverse=True))
        self._needles = tuple({_within_json(one).encode() for one in self._secrets})

    def add_masked(self, values: Iterable[str], detectors: Collection[Detector] = ()) -> None:
        """Take these, and what the detectors find, out of texts."""
        if values:
            self._new.append(values)
        if detectors:
            self._detectors = tuple(dict.fromkeys((*self._detectors, *detectors)))

    def _take_in(self) -> None:
        new = {one for values in self._new for one in values if len(one) >= SHORTEST}
        self._new = []
        self._masked = tuple(sorted({*self._masked, *new}, key=len, reverse=True))

    def text(self, text: str) -> str:
        """A text of an error or a log."""
        if self._new:
            self._take_in()
        for one in (*self._secrets, *self._masked):
            if one in text:
                text = text.replace(one, MASK)
        return detect(text, self._detectors, MASK)

    def value(self, value: Any, data: bytes | None = None) -> Any:
        """A JSON value without the secrets: the same object where there are none. *data* is its JSON, if at hand."""
        if not self._secrets:
            return value
        try:
            shown = data if data is not None else orjson.dumps(value)
        except TypeError:
            return self._taken_out(value)
        return self._taken_out(value) if any(needle in shown for needle in self._needles) else value

    def _taken_out(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._without_secrets(value)
        if isinstance(value, Mapping):
            return {self._taken_out(key): self._taken_out(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._taken_out(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return MASK if self._without_secrets(repr(value)) != repr(value) else value
        return value

    def _without_secrets(self, text: str) -> str:
        for one in self._secrets:
            if one in text:
                text = text.replace(one, MASK)
        return text

    def error(self, error: BaseException) -> BaseException:
        """The error, with the texts of it and of all that it hangs together with changed in place.

        One that cannot be changed is taken out of the chain; if it is the error itself, a stand-in comes back.
        """
        seen: set[int] = set()
        return self._clean(error, seen) or _stand_in(error)

    def _clean(self, error: BaseException, seen: set[int]) -> BaseException | None:
        """The error made clean, None when it cannot be."""
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
        if isinstance(error, asyncio.CancelledError):  # its message is how a cancel scope knows it
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
        for name in _MEMBERS:  # of the built-in exceptions, which keep them elsewhere
            told = getattr(error, name, None)
            if isinstance(told, str) and (clean := self.text(told)) != told:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(error, name, clean)

    def _member(self, member: Any) -> Any:
        """Texts cleaned, also within plain containers and records; anything else that would show one becomes the mask."""
        if isinstance(member, str):
            return self.text(member)
        if isinstance(member, BaseException) or member is None or isinstance(member, bool | float):
            return member
        try:
            shown = repr(member)
        except Exception:  # noqa: BLE001  (what cannot say what it is shows nothing)
            return member
        return member if self.text(shown) == shown else self._rebuilt(member)

    def _rebuilt(self, member: Any) -> Any:
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
        except Exception:  # noqa: BLE001  (the same)
            return False
        return self.text(shown) != shown


def _stand_in(error: BaseException) -> BaseException:
    """What stands in the place of an error whose text cannot be changed."""
    told = RuntimeError(f"{type(error).__name__}: {MASK}")
    told.__suppress_context__ = True
    return told


CURRENT: ContextVar[Scrubber | None] = ContextVar("callgate_scrubber", default=None)
"""The scrubber of the invocation that is being logged, for the redaction of log events."""
