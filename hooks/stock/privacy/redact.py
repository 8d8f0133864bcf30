"""``Redact``: values that logs, records, errors and readers may not see, by place, by name and by what they look like."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from callgate.errors import CallgateError, HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.providers.detectors import DETECTORS, MASK, detect
from callgate.providers.registry import MISSING
from callgate.providers.scrubbing import Scrubber
from callgate.tools.naming import did_you_mean

_ANY = "*"
_SIDES = ("input", "output")


class _Node:
    """One segment of the pointers: what lies below it, and whether a pointer ends here."""

    __slots__ = ("below", "ends")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.ends = False


class Redact(Hook):
    """Masks values in the input that records show, and in the output that its reader gets.

    The tool gets its arguments as they are. What logs, audit, spans and histories show of them is ``ctx.masked_input``,
    and what is masked there is taken out of errors and logs of the call as well.

    Args:
        pointers: JSON Pointers such as ``"/card/number"``; ``*`` stands for every member or item: ``"/people/*/iban"``.
        keys: names of members, wherever they are; case and signs make no difference (``apiKey``, ``API-KEY``).
        detectors: kinds of value by their look, in texts, keys and whole numbers: ``"card"``, ``"email"``, ``"jwt"``,
            ``"bearer"``, ``"api_key"``, ``"private_key"``.
        at: which side it masks; both by default.
        mask: what stands in the place of a masked value; text within a text is always replaced by ``***``.
        mode: ``"shadow"`` masks nothing and records how many values it would have masked.

    Raises:
        HookError: nothing to mask, no such detector, or what is no JSON Pointer.
    """

    concern = "redact"
    priority = 0

    def __init__(
        self,
        *,
        pointers: Iterable[str] = (),
        keys: Iterable[str] = (),
        detectors: Iterable[str] = (),
        at: Iterable[Literal["input", "output"]] = ("input", "output"),
        mask: Any = MASK,
        mode: Literal["enforce", "shadow"] = "enforce",
    ) -> None:
        for name, given in (("pointers", pointers), ("keys", keys), ("detectors", detectors), ("at", at)):
            if isinstance(given, str):
                raise HookError(f"Redact: {name} takes a collection; write {name}=[{given!r}]")
        self._pointers = _tree(pointers)
        self._keys = frozenset(_plain(key) for key in keys)
        names = list(detectors)
        for name in names:
            if name not in DETECTORS:
                raise HookError(f"Redact: there is no detector {name!r}{did_you_mean(name, DETECTORS)}")
        self._detectors = tuple(DETECTORS[name] for name in names)
        sides = frozenset(at)
        if not sides or not sides <= frozenset(_SIDES):
            raise HookError(f"Redact: at is {sorted(sides)}; choose from {', '.join(_SIDES)}")
        if not (self._pointers.below or self._pointers.ends or self._keys or names):
            raise HookError("Redact: give pointers, keys or detectors; without any it masks nothing")
        self._input, self._output = "input" in sides, "output" in sides
        self._mask, self.mode = mask, mode

    # ------------------------------------------------------------------ stages

    def did_create_invoke_context(self, ctx: InvokeContext) -> None:
        """A call may end before its input is masked, denied or invalid: what records show of it is masked then."""
        if self._input and not ctx.step.shadow:
            ctx._maskers = (*ctx._maskers, self._mask_raw)
            Scrubber.of(ctx).add_masked((), self._detectors)

    def will_redact_input(self, ctx: InvokeContext) -> None:
        """Write ``ctx.masked_input``, and have what was masked taken out of texts."""
        if not self._input:
            return
        found: list[Any] = []
        masked = self.masked(ctx.input, found)
        if ctx.step.shadow:
            _would("input", found)
        if found:
            alone = ctx._masked is MISSING and len(ctx._maskers) == 1
            ctx.masked_input = masked if alone else self.masked(ctx.masked_input)
            Scrubber.of(ctx).add_masked(_texts(found))

    def will_redact_output(self, ctx: InvokeContext) -> None:
        """Mask the output and its history."""
        if not self._output:
            return
        found: list[Any] = []
        masked = self.masked(ctx.output, found)
        if not found:
            return
        if ctx.step.shadow:
            _would("output", found)
        ctx.mask_output(masked)
        Scrubber.of(ctx).add_masked(_texts(found))

    # ------------------------------------------------------------------ masking

    def masked(self, value: Any, found: list[Any] | None = None) -> Any:
        """A JSON value with what this hook masks masked; the same object where that is nothing.

        What was masked is added to *found*.
        """
        found = [] if found is None else found
        if self._pointers.ends:
            found.append(value)
            return self._mask
        return self._walk(value, (self._pointers,), found)

    def _mask_raw(self, value: Any) -> Any:
        """What is not parsed yet has no places and no names: it is masked whole."""
        return self.masked(value) if isinstance(value, Mapping | list) else MASK

    def _walk(self, value: Any, nodes: tuple[_Node, ...], found: list[Any]) -> Any:
        if isinstance(value, str):
            return self._text(value, found)
        if isinstance(value, Mapping):
            if nodes or self._keys or self._detectors:
                return self._members(value, nodes, found)
        elif isinstance(value, list | tuple):
            if nodes or self._keys or self._detectors:
                return self._items(value, nodes, found)
        elif self._detectors and isinstance(value, int) and not isinstance(value, bool):
            shown = str(value)
            if detect(shown, self._detectors, MASK) != shown:
                found.append(value)
                return self._mask
        return value

    def _members(self, value: Mapping[Any, Any], nodes: tuple[_Node, ...], found: list[Any]) -> Any:
        before = len(found)
        masked: dict[Any, Any] = {}
        for key, item in value.items():
            below = _below(nodes, key)
            shown = self._text(key, found) if isinstance(key, str) else key
            while shown in masked:  # two masked keys are two members still
                shown = f"{shown}*"
            if any(node.ends for node in below) or (self._keys and isinstance(key, str) and _plain(key) in self._keys):
                found.append(item)
                masked[shown] = self._mask
            else:
                masked[shown] = self._walk(item, below, found)
        return masked if len(found) > before else value

    def _items(self, value: list[Any] | tuple[Any, ...], nodes: tuple[_Node, ...], found: list[Any]) -> Any:
        before = len(found)
        masked: list[Any] = []
        for index, item in enumerate(value):
            below = _below(nodes, str(index))
            if any(node.ends for node in below):
                found.append(item)
                masked.append(self._mask)
            else:
                masked.append(self._walk(item, below, found))
        return masked if len(found) > before else value

    def _text(self, text: str, found: list[Any]) -> str:
        if not self._detectors:
            return text
        shown = detect(text, self._detectors, MASK)
        if shown == text:
            return text
        found.append(text)
        return shown


def _below(nodes: tuple[_Node, ...], segment: Any) -> tuple[_Node, ...]:
    if not nodes:
        return ()
    chosen = [node.below[name] for node in nodes for name in {segment, _ANY} if name in node.below]
    return tuple(chosen)


def _tree(pointers: Iterable[str]) -> _Node:
    root = _Node()
    for pointer in pointers:
        if pointer and not pointer.startswith("/"):
            raise HookError(f"Redact: {pointer!r} is no JSON Pointer; write {'/' + pointer!r}")
        node = root
        for part in pointer.split("/")[1:]:
            node = node.below.setdefault(part.replace("~1", "/").replace("~0", "~"), _Node())
        node.ends = True
    return root


def _plain(key: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", key).casefold())) or key


def _texts(values: Iterable[Any]) -> Iterable[str]:
    """The texts and numbers within values that were masked."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list | tuple):
            yield from _texts(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def _would(side: str, found: list[Any]) -> None:
    if found:
        raise CallgateError(f"Redact would have masked {len(found)} values of the {side}", code="shadow")


__all__ = ["Redact"]
