"""Run a core selection of the tests under each supported version of Python that is installed, and under uvloop.

Versions that are missing are named. Environments are kept in .venv/interpreters, so only the first run installs anything.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TOOLS = (
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "hypothesis",
    "anyio",
    "aiosqlite",
    "sqlalchemy[asyncio]",
    "alembic",
)
CORE = (
    "tests/runtime/pipeline/test_deadlines.py",
    "tests/runtime/pipeline/test_output_bounds.py",
    "tests/runtime/pipeline/test_bodies.py",
    "tests/tools/arguments/test_parsing.py",
    "tests/tools/schemas/test_worst_cases.py",
    "tests/providers/test_faults.py",
)
UVLOOP = "tests/runtime/pipeline/test_cancellation.py::test_uvloop_behaves_the_same"


def interpreter(version: str) -> str | None:
    """Return a working interpreter of *version*; a name on PATH may be a shim that cannot run."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate is not None and succeeds(
            candidate, "-c", f"import sys, venv; assert sys.version.startswith('{version}.')"
        ):
            return candidate
    return None


def succeeds(*command: str) -> bool:
    """Run a command without its output."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0  # noqa: S603


def passes(python: str, *tests: str) -> bool:
    """Run tests, and show what they print."""
    command = [python, "-m", "pytest", "-q", "--no-header", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0  # noqa: S603


def environment(version: str, found: str) -> str | None:
    """Return the Python of the environment for *version*; None where it cannot be installed."""
    folder = ROOT / ".venv" / "interpreters" / version
    python = str(folder / "bin" / "python")
    if (folder / ".installed").exists():
        return python
    uv = (sys.executable, "-m", "uv")
    install = (
        *uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--constraints",
        "constraints.txt",
        *TOOLS,
        "hatchling",
    )
    editable = ("--no-build-isolation-package", "callgate", "--editable", ".")
    made = succeeds(*uv, "venv", "--quiet", "--clear", "--python", found, str(folder))
    if not made or not (succeeds(*install, "--offline") or succeeds(*install)) or not succeeds(*install, *editable):
        return None
    (folder / ".installed").touch()
    return python


def main() -> int:
    """Return 1 where a test fails; a version that is missing is no failure."""
    failed, missing = list[str](), list[str]()
    for version in VERSIONS:
        found = interpreter(version)
        python = None if found is None else environment(version, found)
        if python is None:
            missing.append(
                f"Python {version}: {'not installed' if found is None else 'its packages cannot be installed'}"
            )
            continue
        print(f"--- Python {version}", flush=True)
        if not passes(python, *CORE):
            failed.append(version)
    print("--- uvloop", flush=True)
    if not succeeds(sys.executable, "-c", "import uvloop"):
        missing.append("uvloop: not installed")
    elif not passes(sys.executable, UVLOOP):
        failed.append("uvloop")
    for one in missing:
        print(f"!!! NOT TESTED: {one}")
    for one in failed:
        print(f"!!! FAILED: {one}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
