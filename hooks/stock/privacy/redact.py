"""``Redact``: masks values by member name, JSON Pointer or detector in records, errors, logs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack

from callgate.errors import CallgateError, HookError
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.options import HookOptions, checked, set_options
from callgate.providers.content_json import data_member, masked_text
from callgate.providers.detectors import DETECTORS, MASK, detect
from callgate.providers.redaction import plain_key, pointer_of_path
from callgate.providers.registry import MISSING
from callgate.providers.scrubbing import Scrubber
from callgate.tools.naming import did_you_mean

_ANY = "*"
_POINTER = re.compile(r"(?:/(?!\*\*)(?:[^~/$\[]|~[01])+)+")
"""A JSON Pointer without what other forms of paths are written with: ``$``, ``[0]``, ``**``, or a slash at the end."""
_SIDES = ("input", "output")


class _Node:
    """One segment of the pointers: the segments below it, and ``ends`` if a pointer ends here."""

    __slots__ = ("below", "ends")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.ends = False


class Redact(Hook):
    """Masking of sensitive values in records of the input, and in the output for the reader.

    The tool gets the original arguments. Logs, the audit log, spans and histories get ``ctx.masked_input``. Masked values
    are also removed from the errors and logs of the call.

    Args:
        names: names of members, at any depth: ``Redact("password", "token")``. Case and punctuation are ignored:
            ``apiKey`` is ``API-KEY``.
        pointers: JSON Pointers such as ``"/card/number"``; ``*`` matches every member or item: ``"/people/*/iban"``.
        detectors: kinds of values to find in texts, member names and whole numbers: ``"card"``, ``"email"``, ``"jwt"``,
            ``"bearer"``, ``"api_key"``, ``"private_key"``.
        at: the sides that it masks; default: input and output.
        mask: the replacement of a masked value. Text inside a text is always replaced by ``***``.
        options: the options of every hook: ``tools``, ``tags``, ``tenants``, ``filter``, ... With ``mode="shadow"`` it
            masks nothing, and records how many values it would mask.

    Raises:
        HookError: nothing to mask, an unknown detector, or an invalid JSON Pointer.
    """

    concern = "redact"
    priority = 0
    whole = True

    @checked
    def __init__(
        self,
        *names: str,
        pointers: Iterable[str] = (),
        detectors: Iterable[str] = (),
        at: Iterable[Literal["input", "output"]] = ("input", "output"),
        mask: object = MASK,
        **options: Unpack[HookOptions],
    ) -> None:
        set_options(self, options)
        for setting, given in (("pointers", pointers), ("detectors", detectors), ("at", at)):
            if isinstance(given, str):
                raise HookError(f"Redact: {setting} takes a collection; write {setting}=[{given!r}]")
        self._pointers = _tree(pointers)
        self._names = frozenset(map(_name, names))
        kinds = list(detectors)
        for kind in kinds:
            if kind not in DETECTORS:
                raise HookError(f"Redact: there is no detector {kind!r}{did_you_mean(kind, DETECTORS)}")
        self._detectors = tuple(DETECTORS[kind] for kind in kinds)
        sides = frozenset(at)
        if not sides or not sides <= frozenset(_SIDES):
            raise HookError(f"Redact: at is {sorted(sides)}; choose from {', '.join(_SIDES)}")
        if not (self._pointers.below or self._pointers.ends or self._names or kinds):
            raise HookError("Redact masks nothing; write Redact('password'), or give pointers= or detectors=")
        self._input, self._output = "input" in sides, "output" in sides
        self._mask = mask

    # ------------------------------------------------------------------ stages

    def did_create_invoke_context(self, ctx: InvokeContext) -> None:
        """Register the mask for calls that end early, denied or invalid: their records show masked input too."""
        if self._input and not ctx.run.step.shadow:
            ctx.run.maskers = (*ctx.run.maskers, self._mask_raw)
            Scrubber.of(ctx).add_masked((), self._detectors)

    def will_redact_input(self, ctx: InvokeContext) -> None:
        """Write ``ctx.masked_input``, and remove masked values from errors and logs."""
        if not self._input:
            return
        found: list[object] = []
        masked = self.masked(ctx.run.input, found)
        if ctx.run.step.shadow:
            _would("input", found)
        if found:
            alone = ctx.run.masked is MISSING and len(ctx.run.maskers) == 1
            ctx.masked_input = masked if alone else self.masked(ctx.masked_input)
            Scrubber.of(ctx).add_masked(_texts(found))

    def will_redact_output(self, ctx: InvokeContext) -> None:
        """Mask the output and its history."""
        if not self._output:
            return
        found: list[object] = []
        masked = self.masked(ctx.run.output, found)
        if not found:
            return
        if ctx.run.step.shadow:
            _would("output", found)
        ctx.mask_output(masked)
        Scrubber.of(ctx).add_masked(_texts(found))

    # ------------------------------------------------------------------ masking

    def masked(self, value: object, found: list[object] | None = None) -> Any:
        """Mask a JSON value; the same object comes back when nothing is masked.

        The original of each masked value is appended to *found*.
        """
        found = [] if found is None else found
        if self._pointers.ends:
            found.append(value)
            return self._mask
        return self._walk(value, (self._pointers,), found)

    def _mask_raw(self, value: object) -> object:
        """Mask raw input. Text that is not parsed yet has no members, so it is masked as a whole."""
        return self.masked(value) if isinstance(value, Mapping | list) else MASK

    def _walk(self, value: object, nodes: tuple[_Node, ...], found: list[object]) -> object:
        if isinstance(value, str):
            return self._text(value, found)
        if isinstance(value, Mapping):
            if nodes or self._names or self._detectors:
                return self._members(value, nodes, found)
        elif isinstance(value, list | tuple):
            if nodes or self._names or self._detectors:
                return self._items(value, nodes, found)
        elif self._detectors and isinstance(value, int) and not isinstance(value, bool):
            shown = str(value)
            if detect(shown, self._detectors, MASK) != shown:
                found.append(value)
                return self._mask
        return value

    def _members(self, value: Mapping[object, object], nodes: tuple[_Node, ...], found: list[object]) -> object:
        before = len(found)
        masked: dict[object, object] = {}
        data = data_member(value)
        for key, item in value.items():
            below = _below(nodes, key)
            shown = self._text(key, found) if isinstance(key, str) else key
            while shown in masked:  # two masked names stay two members
                shown = f"{shown}*"
            if any(node.ends for node in below) or (
                self._names and isinstance(key, str) and (plain_key(key) or key) in self._names
            ):
                found.append(item)
                masked[shown] = self._mask
            elif key == data:  # detectors would find numbers in base64
                masked[shown] = masked_text(str(item), value.get("mimeType"), lambda text: self._text(text, found))
            else:
                masked[shown] = self._walk(item, below, found)
        return masked if len(found) > before else value

    def _items(self, value: list[object] | tuple[object, ...], nodes: tuple[_Node, ...], found: list[object]) -> object:
        before = len(found)
        masked: list[object] = []
        for index, item in enumerate(value):
            below = _below(nodes, str(index))
            if any(node.ends for node in below):
                found.append(item)
                masked.append(self._mask)
            else:
                masked.append(self._walk(item, below, found))
        return masked if len(found) > before else value

    def _text(self, text: str, found: list[object]) -> str:
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
        if not isinstance(pointer, str) or (pointer and not _POINTER.fullmatch(pointer)):
            write = pointer_of_path(f"/{pointer}")
            raise HookError(f"Redact: {pointer!r} is not a JSON Pointer; write {write!r}")
        node = root
        for part in pointer.split("/")[1:]:
            node = node.below.setdefault(part.replace("~1", "/").replace("~0", "~"), _Node())
        node.ends = True
    return root


def _name(given: object) -> str:
    if isinstance(given, list | tuple | set | frozenset):
        raise HookError(f"Redact takes names one by one; write Redact({', '.join(map(repr, given))})")
    if not isinstance(given, str) or not given:
        raise HookError(f"Redact: {given!r} is not the name of a member; write Redact('password')")
    if (path := pointer_of_path(given)) is not None:
        raise HookError(f"Redact: {given!r} is a path, not the name of a member; write Redact(pointers=[{path!r}])")
    return plain_key(given) or given


def _texts(values: Iterable[object]) -> Iterable[str]:
    """Yield the texts and numbers inside masked values."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list | tuple):
            yield from _texts(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def _would(side: str, found: list[object]) -> None:
    if found:
        raise CallgateError(f"Redact would have masked {len(found)} values of the {side}", code="shadow")
