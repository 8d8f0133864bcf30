"""The validators of a definition from outside, which its record keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callgate.errors import SchemaRefused
from callgate.tools.definition import ToolDefinition
from callgate.tools.schemas.admission import admit
from callgate.tools.schemas.engines.base import Validator
from callgate.tools.schemas.engines.budget import Budget
from callgate.tools.schemas.engines.dialect import Formats, Role
from callgate.tools.schemas.engines.document import Document
from callgate.tools.schemas.engines.raw import INPUT_LIMITS, OUTPUT_LIMITS
from callgate.tools.schemas.engines.rust import RustEngine
from callgate.tools.values import clip
from callgate.tools.visible import hidden_text_in

LIMITS = {"parameters": INPUT_LIMITS, "output": OUTPUT_LIMITS}


@dataclass(frozen=True, slots=True)
class AdmittedSchema:
    """A schema that was admitted and is not compiled yet."""

    role: Role
    document: Document
    budget: Budget

    def compile(self, formats: Formats | None) -> Validator:
        """Compile it.

        Raises:
            SchemaRefused: the engine refuses it.
        """
        return RustEngine(LIMITS[self.role], formats).build(self.document, self.budget, trusted=False)


def admit_schema(schema: Mapping[str, object], role: Role) -> AdmittedSchema:
    """Admit a schema from outside.

    Raises:
        SchemaRefused: see ``admit``; or parameters are no object.
    """
    document, budget = admit(schema, LIMITS[role])
    if role == "parameters" and document.schema.get("type", "object") != "object":
        message = 'the root of a parameters schema must be {"type": "object", …}'
        raise SchemaRefused("root_type", message, "/type")
    return AdmittedSchema(role, document, budget)


def refuse_hidden(schema: Mapping[str, object]) -> None:
    """Refuse a schema with text that a model reads and a person does not see, at any depth.

    Raises:
        SchemaRefused: a text or a name has invisible characters.
    """
    if (found := hidden_text_in(schema)) is not None:
        raise SchemaRefused("hidden_text", f"a text or a name has invisible characters: {clip(found)}")


def compile_outside(definition: ToolDefinition, formats: Formats | None) -> dict[Role, Validator]:
    """Admit and compile the schemas of a definition from outside.

    Raises:
        SchemaRefused: a schema is refused, or hides text.
    """
    given: dict[Role, Mapping[str, object] | None] = {
        "parameters": definition.parameters,
        "output": definition.output_schema,
    }
    admitted: dict[Role, AdmittedSchema] = {
        role: admit_schema(one, role) for role, one in given.items() if one is not None
    }
    for one in admitted.values():
        refuse_hidden(one.document.schema)
    return {role: one.compile(formats) for role, one in admitted.items()}
