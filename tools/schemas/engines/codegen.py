"""Leaner code from fastjsonschema for what nearly every tool has: an object with known properties.

The library builds a set of the keys, takes each property out of it and looks at what is left, and makes a second set
for ``required``. Asking the object itself says the same in less than half the instructions (see ``make bench``), and
this check is run twice in every call. Only these three keywords are generated here; every other is the library's own.
That both engines still agree on every schema is a property test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fastjsonschema.draft2019 import CodeGeneratorDraft2019
from fastjsonschema.ref_resolver import RefResolver

_Library: Any = CodeGeneratorDraft2019  # its methods carry no types


class LeanGenerator(_Library):  # type: ignore[misc]
    """fastjsonschema's generator with three keywords written shorter."""

    def _is_plain(self) -> bool:
        extra = self._definition.get("additionalProperties", True)
        return "patternProperties" not in self._definition and (isinstance(extra, bool) or extra == {})

    def generate_required(self) -> None:
        """``required``: one membership test a name."""
        self.create_variable_is_dict()
        with self.l("if {variable}_is_dict:"):
            self.l("pass")
            for name in self._definition["required"]:
                with self.l("if {} not in {variable}:", repr(name)):
                    self.exc("{name} lacks a required property", rule="required")

    def generate_properties(self) -> None:
        """``properties``: without a set of keys that only ``additionalProperties`` would need."""
        if not self._is_plain():
            super().generate_properties()
            return
        self.create_variable_is_dict()
        with self.l("if {variable}_is_dict:"):
            self.l("pass")
            for key, definition in self._definition["properties"].items():
                short = re.sub(r"[^a-zA-Z0-9]", "", key)
                with self.l("if {} in {variable}:", repr(key)):
                    self.l("{variable}__{0} = {variable}[{1}]", short, repr(key))
                    shown = f"{self._variable_name}.{self.e(key).replace('{', '{{').replace('}', '}}')}"
                    self.generate_func_code_block(definition, f"{self._variable}__{short}", shown, clear_variables=True)

    def generate_additional_properties(self) -> None:
        """``additionalProperties: false``: every key is one of the known."""
        if not self._is_plain() or self._definition["additionalProperties"] is not False:
            super().generate_additional_properties()
            return
        known = [*self._definition.get("properties", {})]
        self.create_variable_is_dict()
        with self.l("if {variable}_is_dict:"), self.l("for {variable}_key in {variable}:"):
            names = "{" + ", ".join(map(repr, known)) + "}" if known else "()"
            with self.l("if {variable}_key not in {}:", names):
                self.exc("{name} has a property that is not known", rule="additionalProperties")


def compile_lean(schema: dict[str, Any], handlers: Mapping[str, Callable[[str], Any]]) -> Callable[[Any], object]:
    """``fastjsonschema.compile`` with ``LeanGenerator``; raises whatever that raises."""
    resolver = RefResolver.from_schema(schema, handlers=handlers, store={})
    generator = LeanGenerator(
        schema, resolver=resolver, formats={}, use_default=False, use_formats=False, detailed_exceptions=False
    )
    state = generator.global_state
    exec(generator.func_code, state)  # noqa: S102  (as the library does; the source is built from reprs)
    check: Callable[[Any], object] = state[resolver.get_scope_name()]
    return check
