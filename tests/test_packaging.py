"""The house: what the wheel holds, what the files may import, how long they may be."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import callgate
from callgate.__main__ import main
from callgate._lazy import FACES

ROOT = Path(__file__).resolve().parents[1]
FACE = ROOT / "src" / "callgate"
FOLDERS = ("runtime", "hooks", "providers", "tools")
IGNORED = re.compile(r"(^|/)(\.|__pycache__/)|\.py[co]$")  # what a tool left behind
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def sources() -> list[Path]:
    """Every Python file of the package, by its real path."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted([*found, *FACE.glob("*.py")])


def package_files() -> set[str]:
    """What a user must get, as paths in the wheel."""
    files = {f"callgate/{path.name}" for path in FACE.iterdir() if path.is_file()}
    for folder in FOLDERS:
        found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
        files |= {f"callgate/{path.as_posix()}" for path in found if not IGNORED.search(path.as_posix())}
    return files


def build(target: str, source: Path, into: Path) -> Path:
    """Build with the hatchling of this environment: no isolation, so no network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (made,) = into.iterdir()
    return made


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return content(build("wheel", ROOT, tmp_path_factory.mktemp("wheel")))


def test_the_wheel_holds_the_tree_and_nothing_else(wheel: dict[str, bytes]) -> None:
    packaged = {name for name in wheel if name.startswith("callgate/")}
    expected = package_files()
    assert expected - packaged == set(), "in the tree, not in the wheel: list it in pyproject.toml"
    assert packaged - expected == set(), "in the wheel, not in the tree"
    assert {"callgate/__init__.py", "callgate/__main__.py", "callgate/errors.py", "callgate/py.typed"} <= packaged


def test_the_wheel_installs_only_callgate_and_its_pytest_plugin(wheel: dict[str, bytes]) -> None:
    version = project()["project"]["version"]
    beside = "pytest_callgate.py"  # inside the package, pytest would import all of Callgate to find its plugin
    assert {PurePosixPath(name).parts[0] for name in wheel} == {"callgate", f"callgate-{version}.dist-info", beside}


def test_the_wheel_has_the_command_that_the_module_is(wheel: dict[str, bytes]) -> None:
    (listed,) = (text.decode() for name, text in wheel.items() if name.endswith(".dist-info/entry_points.txt"))
    parser = ConfigParser()
    parser.read_string(listed)
    ((name, value),) = parser.items("console_scripts")
    assert (name, EntryPoint(name, value, "console_scripts").load()) == ("callgate", main)


def test_the_sdist_builds_the_same_wheel(wheel: dict[str, bytes], tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    again = content(build("wheel", source, tmp_path / "wheel"))
    assert again.keys() == wheel.keys()
    assert [name for name in wheel if wheel[name] != again[name]] == []


def test_the_editable_links_show_the_folders() -> None:
    if Path(callgate.__file__).resolve().parent != FACE:
        pytest.skip("callgate is not installed from this checkout in editable mode")
    for folder in FOLDERS:
        assert (FACE / folder).resolve() == ROOT / folder, "run: make install"


def test_all_is_sorted_and_every_name_is_there() -> None:
    def order(name: str) -> tuple[int, str]:  # the linter's order: CONSTANTS, Classes, functions
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert list(vars(callgate)["__all__"]) == sorted(set(vars(callgate)["__all__"]), key=order)
    assert [name for name in vars(callgate)["__all__"] if not hasattr(callgate, name)] == []


def test_the_command_line_says_the_version() -> None:
    script = Path(sys.executable).with_name("callgate")
    for command in ([sys.executable, "-m", "callgate"], [str(script)], [str(script), "--version"]):
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert project()["project"]["version"] in said


# What is pinned, and what is not said


def normal(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def constraints() -> list[str]:
    return (ROOT / "constraints.txt").read_text("utf-8").splitlines()


def test_constraints_are_names_and_versions_only() -> None:
    assert [line for line in constraints() if not re.fullmatch(r"[A-Za-z0-9_.-]+==[^ ]+", line)] == []
    names = [normal(line) for line in constraints()]
    assert names == sorted(set(names))


def test_every_requirement_is_pinned() -> None:
    table = project()
    extras = table["project"]["optional-dependencies"].values()
    wanted = [*table["build-system"]["requires"], *table["project"]["dependencies"], "uv"]
    wanted += [requirement for extra in extras for requirement in extra]
    assert {normal(line) for line in wanted} - {normal(line) for line in constraints()} == set()


def repository_files() -> list[Path]:
    """Tracked files, and new ones that are not ignored."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_file_names_a_package_registry() -> None:
    registry = re.compile(
        rb"https?://\S*(?:pypi|pythonhosted|npmjs)|(?:pypi|pythonhosted|registry\.npmjs)\.org", re.IGNORECASE
    )
    options = re.compile(rb"(?:extra-)?index-url|^\s*(?:--find-links|-f )", re.MULTILINE)
    files = repository_files()
    assert [str(path.relative_to(ROOT)) for path in files if registry.search(path.read_bytes())] == []
    assert options.search((ROOT / "constraints.txt").read_bytes()) is None
    locks = {"uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock", "package-lock.json"}
    assert [path.name for path in files if path.name in locks] == []


# What may be imported


def imports(tree: ast.AST, *, inside_functions: bool) -> Iterator[tuple[int, str, int]]:
    """(line, module, level) of each import; without *inside_functions* only those that run on import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", node.level
        elif inside_functions or not (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ):
            yield from imports(node, inside_functions=inside_functions)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def test_imports_are_absolute_and_name_the_package() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {'.' * level}{module}"
        for path in sources()
        for line, module, level in imports(parsed(path), inside_functions=True)
        if level or module.partition(".")[0] in FOLDERS
    ]
    assert wrong == []


WITH_PEER = {
    "runtime/hosts/mcp": {"mcp", "mcp_types", "starlette"},
    "runtime/remote/mcp": {"cryptography", "httpx2", "jwt", "mcp", "mcp_types"},
}
"""Rooms that are loaded only with their peer, and its packages that they import. Their ``face`` imports none of them."""


def test_only_required_packages_are_imported_at_module_level() -> None:
    required = {normal(line).replace("-", "_") for line in project()["project"]["dependencies"]}
    known = required | sys.stdlib_module_names | {"callgate"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {module}: import it in the function that needs it"
        for path in sources()
        for line, module, _ in imports(parsed(path), inside_functions=False)
        if module.partition(".")[0] not in known | peers_of(path)
    ]
    assert wrong == []


def peers_of(path: Path) -> set[str]:
    """The packages that a module may import because its room is loaded only with them."""
    return set() if path.stem in {"__init__", "face"} else WITH_PEER.get(str(path.parent.relative_to(ROOT)), set())


@pytest.mark.parametrize("room", sorted(WITH_PEER))
def test_what_is_imported_of_a_room_with_a_peer_does_not_load_the_peer(room: str) -> None:
    """Nothing but the function that needs the peer loads it."""
    loading = {
        f"callgate.{room.replace('/', '.')}.{path.stem}"
        for path in sources()
        if path.parent == ROOT / room
        and WITH_PEER[room]
        & {module.partition(".")[0] for _, module, _ in imports(parsed(path), inside_functions=False)}
    }
    assert loading
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {module}"
        for path in sources()
        if path.parent != ROOT / room or path.stem in {"__init__", "face"}
        for line, module, _ in imports(parsed(path), inside_functions=False)
        if module in loading
    ]
    assert wrong == []


HEAVY = {
    *("aiosqlite", "alembic", "celery", "dependency_injector", "fastjsonschema", "httpx", "jsonschema_rs", "numpy"),
    *("opentelemetry", "procrastinate", "psycopg", "pydantic", "pydantic_core", "redis", "simpleeval", "sqlalchemy"),
    *("starlette", "structlog", "torch"),
}
LATER = (
    "callgate.hooks.stock.capacity",
    "callgate.providers.stores.redis.store",
    "callgate.providers.stores.sql.store",
    "callgate.runtime.hosts",
    "callgate.runtime.models",
    "callgate.runtime.remote",
    "callgate.runtime.testing",
)
"""Parts of Callgate that a gate without them does not load."""


@pytest.mark.parametrize(
    ("statement", "bound"),
    [
        # 488 modules before names were loaded on first use; the first bound leaves room for the standard library alone.
        ("import callgate", 60),
        # 150 modules of Callgate itself, 120 of asyncio and the standard library, orjson and jiter.
        ("from callgate import Gate, tool", 333),
    ],
)
def test_an_import_loads_few_modules_and_no_heavy_package(statement: str, bound: int) -> None:
    """Each module costs about a millisecond of CPU on a small machine: a command line tool pays it at every start."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    printed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=os.sep
    ).stdout
    loaded = printed.split()
    assert sorted({name.partition(".")[0] for name in loaded} & HEAVY) == []
    assert [name for name in loaded if name.startswith(LATER)] == []
    assert len(loaded) <= bound, "import what is seldom used in the function that uses it"


def test_pydantic_is_imported_in_functions_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {module}"
        for path in sources()
        for line, module, _ in imports(parsed(path), inside_functions=False)
        if module.partition(".")[0].startswith("pydantic")
    ]
    assert wrong == []


# How long things may be


def test_no_file_and_no_function_is_too_long() -> None:
    wrong = []
    for path in sources():
        name = path.relative_to(ROOT)
        lines = len(path.read_text("utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            wrong.append(f"{name}: {lines} lines, at most {MAX_FILE_LINES}")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                long = (node.end_lineno or node.lineno) - node.lineno + 1
                if long > MAX_FUNCTION_LINES:
                    wrong.append(f"{name}:{node.lineno} {node.name}: {long} lines, at most {MAX_FUNCTION_LINES}")
    assert wrong == []


# ---------------------------------------------------------------------- one name, one thing

SHARED = {
    "migrations define both": "downgrade upgrade",
    "commands, stores and hooks that do the same for things of their own": "main prune register show_list show_one",
    "rooms that do not meet": (
        "Answer Dialect Entry Executor Refused as_text ask definition_of explain guarded is_async "
        "is_mapping kind_of name_of plain refusal require_json resolve signed unknown"
    ),
}
"""Public names inside the rooms that two or more modules define. The list may only get shorter."""


def definitions(files: Iterable[Path]) -> dict[str, set[Path]]:
    """The modules that define each public top-level class or function."""
    found: dict[str, set[Path]] = {}
    for path in files:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                found.setdefault(node.name, set()).add(path)
    return found


def shared(files: Iterable[Path]) -> set[str]:
    return {name for name, paths in definitions(files).items() if len(paths) > 1}


def exported() -> set[str]:
    faces = map(import_module, FACES)
    return {name for face in faces for name in vars(face).get("__all__", ()) or vars(face)}


def test_a_name_that_the_package_exports_stands_for_one_thing(tmp_path: Path) -> None:
    assert shared(sources()) & exported() == set()
    (tmp_path / "another.py").write_text("class Gate: ...\n")
    assert shared([*sources(), tmp_path / "another.py"]) & exported() == {"Gate"}, "the control"


def test_the_other_names_that_stand_for_two_things_are_listed() -> None:
    assert shared(sources()) == {name for names in SHARED.values() for name in names.split()}
