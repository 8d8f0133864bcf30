"""Count what each provider's form of a schema says of real tools: the tables of ``docs/reference/provider-schemas.md``.

The tools are sample data that is not part of the project: ``CALLGATE_DATA`` names its folder. ``python
scripts/provider_schemas.py`` prints the tables and brings the page up to date, ``--check`` only compares;
``tests/runtime/models/test_view_table.py`` fails when the page is stale.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from callgate.runtime.models.wire.anthropic_view import strict_views
from callgate.runtime.models.wire.gemini_view import gemini_view, openapi_view
from callgate.runtime.models.wire.schema_views import View, plain_view
from callgate.runtime.models.wire.schema_walk import ASSERTIONS
from callgate.runtime.models.wire.strict_view import openai_view
from callgate.tools.definition import ToolDefinition

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CALLGATE_DATA") or ROOT.parent / "shared" / "data")
PAGE = ROOT / "docs" / "reference" / "provider-schemas.md"
_BLOCK = re.compile(r"(?<=<!-- measured: )([a-z-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Form:
    """One way to show a tool: how the docs call it, what asks for it, and whether it respells the schema."""

    title: str
    strict: bool | None
    view: Callable[[ToolDefinition], View]
    respells: bool = False


def alone(definition: ToolDefinition) -> View:
    """Anthropic's strict view of a tool that is the only one in its request."""
    return strict_views()(definition)


FORMS: dict[str, Form] = {
    "openai": Form("OpenAI, Chat and Responses", None, openai_view),
    "openai strict": Form("OpenAI, strict", True, openai_view, respells=True),
    "anthropic": Form("Anthropic", None, plain_view),
    "anthropic strict": Form("Anthropic, strict", True, alone, respells=True),
    "gemini": Form("Gemini, `parametersJsonSchema`", None, gemini_view),
    "gemini openapi": Form("Gemini, `parameters`", None, openapi_view, respells=True),
    "ollama": Form("Ollama", None, plain_view),
}


def catalogues(data: Path = DATA) -> dict[str, dict[str, Any]]:
    """The input schema of every tool in the MCP catalogues, by server and name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((data / "mcp_catalogs").glob("*.json")):
        whole = json.loads(path.read_text("utf-8"))
        for server in whole.get("servers", [whole]):
            found |= {f"{path.stem}/{server['server']}/{tool['name']}": tool["inputSchema"] for tool in server["tools"]}
    return found


def live(data: Path = DATA) -> dict[str, dict[str, Any]]:
    """The input schemas that running MCP servers gave, by line, package and name."""
    lines = (data / "mcp_tool_schemas.jsonl").read_text("utf-8").splitlines()
    tools = [json.loads(line) for line in lines]
    return {f"{number}/{tool['package']}/{tool['name']}": tool["inputSchema"] for number, tool in enumerate(tools)}


def views(form: Form, schemas: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, ToolDefinition, View]]:
    """Every schema as a definition, and its view."""
    for number, (name, schema) in enumerate(schemas.items()):
        definition = ToolDefinition(name=f"tool_{number}", parameters=schema, strict=form.strict)
        yield name, definition, form.view(definition)


@dataclass
class Count:
    """What a form says of some tools; keywords and reasons are counted once for a tool."""

    tools: int = 0
    lossless: int = 0
    told: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    keywords: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def of(cls, form: Form, schemas: Mapping[str, dict[str, Any]]) -> Count:
        """The count for these tools."""
        count = cls()
        for _, _, made in views(form, schemas):
            count.tools += 1
            if made.fallback is not None:
                count.reasons[kind_of(made.fallback)] += 1
                continue
            words = {dropped.keyword for dropped in made.dropped}
            count.keywords.update(words)
            count.told += bool(words & ASSERTIONS)
            count.lossless += not words & ASSERTIONS
        return count


def kind_of(reason: str) -> str:
    """A reason without its place and names, as a kind of reason."""
    return re.sub(r"'.*?'", "…", re.sub(r" at /.*", "", reason))


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    titles = list(head)
    lines: list[Iterable[object]] = [titles, ["---", *["--:"] * (len(titles) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


@cache
def counts() -> dict[str, tuple[Count, Count]]:
    """Every form's count of the catalogues' tools and of the live ones."""
    return {name: (Count.of(form, catalogues()), Count.of(form, live())) for name, form in FORMS.items()}


def form_table(which: int) -> str:
    """What every form says of the catalogues' tools (0) or of the live ones (1)."""
    rows: list[list[object]] = []
    tools = 0
    for name, pair in counts().items():
        count, tools = pair[which], pair[which].tools
        shares = (count.lossless, count.told, count.reasons.total())
        rows.append([FORMS[name].title, *(f"{share:,} ({share / tools:.1%})" if share else "0" for share in shares)])
    return table((f"{tools:,} tools", "Lossless", "Some keywords only in words", "Not in this form"), rows)


def detail_table(title: str, counted: Callable[[Count], Counter[str]]) -> str:
    """A counter of every form that respells, side by side, for all tools."""
    columns = {
        FORMS[name].title: counted(pair[0]) + counted(pair[1])
        for name, pair in counts().items()
        if FORMS[name].respells
    }
    total = sum(columns.values(), Counter[str]())
    rows = [
        [f"`{key}`" if key in ASSERTIONS | {"default"} else key, *(column[key] or "" for column in columns.values())]
        for key, _ in sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return table((title, *columns), rows)


MEASURED: dict[str, Callable[[], str]] = {
    "catalogues": lambda: form_table(0),
    "live": lambda: form_table(1),
    "keywords": lambda: detail_table("Keyword", lambda count: count.keywords),
    "reasons": lambda: detail_table("Reason", lambda count: count.reasons),
}


def refreshed(page: str) -> str:
    """The page with its tables made anew.

    Raises:
        KeyError: it asks for a table that there is none of.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{MEASURED[found[1]]()}\n", page)


def main() -> int:
    """Print the tables; compare the page or bring it up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare: 1 if the page is stale")
    check = parser.parse_args().check
    if not catalogues():
        print(f"no sample data at {DATA}; set CALLGATE_DATA to the folder", file=sys.stderr)
        return 2
    text = PAGE.read_text("utf-8")
    made = refreshed(text)
    print("\n".join(found[0].partition("-->\n")[2] for found in _BLOCK.finditer(made)))
    if made == text:
        return 0
    if check:
        print(f"{PAGE.name} is stale: run python scripts/provider_schemas.py", file=sys.stderr)
        return 1
    PAGE.write_text(made, "utf-8")
    print(f"{PAGE.name}: brought up to date")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
