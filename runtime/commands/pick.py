"""``callgate pick "query" --catalog FILE``: pick the tools of a catalogue that fit a query, with scores."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from callgate.runtime.commands.common import failed
from callgate.tools.picking.entry import entry_of
from callgate.tools.picking.pick import pick_tools
from callgate.tools.picking.results import PickResult
from callgate.tools.picking.scorers import keyword_overlap

MAX_BYTES = 256 * 1024 * 1024
CATALOG = (
    "tools as JSON lines, a JSON array, or the listing of an MCP server ({tools: [...]}, {servers: [...]}); .gz too"
)


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate pick ...``; 0: a tool fits, 1: no tool fits, 2: the catalogue cannot be read."""
    parser = argparse.ArgumentParser(prog="callgate pick", description="Pick the tools that fit a query. Runs nothing.")
    parser.add_argument("query", help="the request, in plain words")
    parser.add_argument("--catalog", type=Path, required=True, metavar="FILE", help=CATALOG)
    parser.add_argument("--max", type=int, default=3, metavar="N", help="maximum number of tools (3)")
    parser.add_argument("--min-score", type=float, default=0.05, metavar="S", help="minimum score, 0 to 1 (0.05)")
    parser.add_argument("--allow-unsafe", action="store_true", help="also tools that say safe: false")
    parser.add_argument("--scorer", choices=["bm25f", "overlap"], default="bm25f", help="default: bm25f")
    parser.add_argument("--json", action="store_true", help="write JSON")
    args = parser.parse_args(arguments)
    try:
        tools = read_catalog(args.catalog)
        picks = asyncio.run(
            pick_tools(
                args.query,
                tools,
                max_candidates=args.max,
                min_score=args.min_score,
                allow_unsafe=args.allow_unsafe,
                scorer=keyword_overlap if args.scorer == "overlap" else None,
                debug=True,
            )
        )
    except (OSError, ValueError) as error:
        return failed(out, f"cannot pick: {error}", 2)
    (_show_json if args.json else _show)(picks, len(tools), out)
    return 0 if picks else 1


def read_catalog(path: Path) -> list[Mapping[str, object]]:
    """Read the tools of a catalogue file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no catalogue; the message says where.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            raw = file.read(MAX_BYTES + 1)
        except (EOFError, zlib.error) as error:
            raise ValueError(f"{path.name} is truncated or damaged: {error}") from None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text") from None
    tools: list[Mapping[str, object]] = []
    for number, one in enumerate(_tools_in(_parse(text, path.name)), 1):
        if not isinstance(one, Mapping) or not entry_of(one).name:
            raise ValueError(f"{path.name}: entry {number} is no tool: it has no name")
        tools.append(one)
    if not tools:
        raise ValueError(f"{path.name} holds no tools")
    return tools


def _parse(text: str, name: str) -> object:
    """One JSON value, or else one a line.

    Raises:
        ValueError: neither.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if len(text.splitlines()) < 2 or text.lstrip()[:2] in {"{\n", "[\n", "{\r", "[\r"}:
            raise ValueError(f"{name} is not JSON: {error}") from None
    found: list[object] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{name}, line {number} is not JSON: {error}") from None
    return found


def _tools_in(value: object) -> Iterator[object]:
    """Yield the tools of a catalogue: a list, the list under ``tools``, or the ``tools`` of each of ``servers``.

    In a file of JSON lines, a line may hold a list of tools.
    """
    if isinstance(value, list):
        for one in value:
            yield from one if isinstance(one, list) else [one]
    elif isinstance(value, Mapping):
        result = value.get("result")
        holder = result if isinstance(result, Mapping) and "tools" in result else value
        if isinstance(holder.get("tools"), list):
            yield from holder["tools"]
        elif isinstance(holder.get("servers"), list):
            for server in holder["servers"]:
                yield from _tools_in(server)
        else:
            yield holder


def _show(picks: Sequence[PickResult], total: int, out: TextIO) -> None:
    if not picks:
        out.write(f"no tool of {total} fits\n")
        return
    names = [entry_of(one.tool).name for one in picks]
    width = max(len(name) for name in names)
    out.writelines(
        f"{one.score:.3f}  {_plain(name):<{width}}  {_plain(one.reason or '')}{_matched(one)}\n"
        for name, one in zip(names, picks, strict=True)
    )
    out.write(f"{len(picks)} of {total} tools\n")


def _matched(one: PickResult) -> str:
    details = one.provenance.details if one.provenance is not None else None
    words = [f"{word} {weight:.2f}" for word, weight in details.items() if word[0] != "~"] if details else []
    related = len(details) - len(words) if details else 0
    words += [f"{related} related"] if related else []
    return f" ({', '.join(words)})" if words else ""


def _show_json(picks: Sequence[PickResult], total: int, out: TextIO) -> None:
    rows = [
        {
            "name": entry_of(one.tool).name,
            "score": one.score,
            "reason": one.reason,
            "terms": one.provenance.details if one.provenance is not None else None,
        }
        for one in picks
    ]
    out.write(json.dumps({"tools": total, "picks": rows}, indent=2) + "\n")  # in ASCII: see ``_plain``


def _plain(text: str) -> str:
    """Replace control characters: a catalogue comes from outside, and a terminal would obey them."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
