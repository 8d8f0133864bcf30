"""The real tools of the sample data, each offered in every form."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from scripts.provider_schemas import FORMS, Form, alone, catalogues, live, views
from tests.conftest import DATA
from tests.runtime.models.making import OpenAPI, Speaker, Strict

__all__ = ["FORMS", "SPEAKERS", "Form", "alone", "catalog", "everything", "views"]

SPEAKERS: dict[str, type[Speaker]] = {"openai strict": Strict, "gemini openapi": OpenAPI}
"""How a model speaks that is held to a form; to any other, it says values as they are."""


@cache
def catalog(data: Path = DATA) -> dict[str, dict[str, Any]]:
    """The input schema of every tool in the MCP catalogues."""
    return catalogues(data)


@cache
def everything(data: Path = DATA) -> dict[str, dict[str, Any]]:
    """Those, and the ones that running servers gave."""
    return {**catalogues(data), **live(data)}
