"""The task runner: one word for each thing a developer does. Needs only Python 3.11 or newer.

    python3 tasks.py demo      install into .venv if need be, and run the demo
    python3 tasks.py quick     lint, types and the nearest tests of what changed: a minute
    python3 tasks.py tests-of remora/recall     the tests that concern a folder
    python3 tasks.py unit      the tests without real servers: two minutes
    python3 tasks.py test      every behaviour, with real SQLite, LanceDB, PostgreSQL, HTTP
    python3 tasks.py check     what CI runs: lint, types, package, site, test, a framework
    python3 tasks.py nightly   all the rest, with a report: build/nightly.md

Also: setup, lint, format, types, typescript (the client's types and its npm package), imports,
pytest (every test, the nightly ones too), prop, fault, prop-soak, soak, memory-soak, frameworks,
coverage, mutants, bench, build (sdist, wheel and SBOM, made twice and tried by themselves), release
(``release name``, ``audit`` and ``ready``: what is asked before one), container (the image of
``remora http``, without an engine), site (the documents as web pages: build/site/index.html),
checklist, browser and pooler (Debian's Chromium and PgBouncer, for root).
Words after the task go to the tool, as in ``python3 tasks.py test -k recall``; ``quick --since
main`` looks at what differs from a commit.
Tests run in three processes for two CPUs; ``-n 0`` runs them in one, as a debugger needs it.
Inside an active virtual environment that one is used, otherwise ``.venv`` is made.

``soak 60`` is an hour of mixed load with faults and kills, ``memory-soak 60`` an hour of load on
data of constant size, whose memory must not grow, ``prop-soak`` the property tests with
thousands of examples; ``mutants`` changes operators of the package, after ``coverage``, and shows
which changes no test notices.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = Path(sys.prefix) if sys.prefix != sys.base_prefix else ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")


def run(*command: str | Path, **environment: str) -> None:
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env={**os.environ, **environment}, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)


GROUPS: dict[str, tuple[str, ...]] = {"run": (), "dev": ("dev",), "docs": ("dev", "docs")}
"""Groups of dependencies, by what they are for; each has what the one before has."""


def setup(level: str = "dev") -> None:
    """Make the environment, unless it is there and nothing that it depends on has changed."""
    wanted = hashlib.sha256(
        (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    ).hexdigest()
    levels = list(GROUPS)
    stamps = [VENV / f".remora-{enough}" for enough in levels[levels.index(level) :]]
    if any(mark.exists() and mark.read_text() == f"{ROOT} {wanted}" for mark in stamps):
        return
    if not PYTHON.exists():
        print(f"making {VENV}", flush=True)
        venv.create(VENV, with_pip=True)
    pip = (PYTHON, "-m", "pip", "--disable-pip-version-check")
    print("installing (lancedb is large: this may take a few minutes)", flush=True)
    run(*pip, "install", "--upgrade", "pip>=25.1")  # dependency groups
    what = [word for group in GROUPS[level] for word in ("--group", group)]
    run(*pip, "install", "--constraint", "constraints.txt", "--editable", ".", *what)
    stamps[0].write_text(f"{ROOT} {wanted}")


def demo(*words: str) -> None:
    setup("run")
    run(BIN / "remora", "demo", *words)


BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
"""What tests drive, the first that is there."""

NOT_NIGHTLY = ("-m", "not nightly")


def pytest(*words: str, **environment: str) -> None:
    """Run tests in several processes."""
    setup()
    spread = ("-n", str(workers()), "--dist", "worksteal")
    run(PYTHON, "-m", "pytest", *spread, *words, **environment)


def workers() -> int:
    """How many processes run tests: eight at most, as each needs some 300 MB.

    Three run on two CPUs: a test waits for a third of its time, for disks and other processes.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(max(usable * 3 // 2, 1), 8)


def quick(*words: str) -> None:
    """Lint, types, and the tests that are nearest to what changed, in one process."""
    setup()
    lint()
    types()
    run(PYTHON, "-m", "tools.quick", *words)


def tests_of(*words: str) -> None:
    """Which tests concern a folder or a file; ``--run`` runs them."""
    setup()
    run(PYTHON, "-m", "tools.quick", "tests-of", *words)


def system(*words: str) -> None:
    """Types as this operating system has them, and the tests that every system runs.

    Those of the suite need what `tests/conftest.py` needs: signals and clocks of POSIX.
    """
    types("remora")
    plain = ("--noconftest", "-o", "addopts=--import-mode=importlib -p no:asyncio")
    file = "tests/integration/test_systems.py"
    run(PYTHON, "-m", "pytest", "-q", *plain, "-o", "filterwarnings=", file, *words)


def unit(*words: str) -> None:
    pytest("tests/unit", "tests/simulation", "tests/property", *NOT_NIGHTLY, *words)


def test(*words: str) -> None:
    pytest(*NOT_NIGHTLY, *words)


def nightly(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "tools.nightly", *words)


def coverage(*words: str) -> None:
    """Run every test but those of the night, and write which of them execute which lines."""
    setup()
    data = ROOT / "build" / "coverage"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    measured = (PYTHON, "-m", "coverage")
    spread = ("-n", str(workers()), "--dist", "worksteal", "-p", "tools.coverage_contexts")
    try:
        run(*measured, "run", "-m", "pytest", *spread, *NOT_NIGHTLY, *words)
    finally:  # what the others execute is known though one has failed
        run(*measured, "combine", "--quiet")
        run(*measured, "report", "--skip-covered", "--skip-empty")


def prop(*words: str) -> None:
    pytest("tests/property", *NOT_NIGHTLY, *words)


def prop_soak(*words: str) -> None:
    where = ("tests/property", "tests/simulation/test_seeds.py")
    seeds = os.environ.get("REMORA_SEEDS", "50")
    endless = ("-o", "quiet_limit=1000000", "-o", "processor_limit=1000000")
    pytest(*where, *endless, *words, REMORA_HYPOTHESIS="soak", REMORA_SEEDS=seeds)


def soak(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "benchmarks.lab.soak", *minutes_first(words))


def memory_soak(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "benchmarks.memory_soak", *minutes_first(words))


def minutes_first(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and not words[0].startswith("-"):
        return ("--minutes", *words)
    return words


def fault(*words: str) -> None:
    pytest("tests/faults", *words)


def mutants(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "tools.mutants", *words)


def frameworks(*words: str) -> None:
    """Adapters of frameworks that developers do not install; those that pip cannot are skipped.

    ``changed`` is one of them: that whose adapter changed last, else each in its turn.
    """
    setup()
    results = ("--results", ROOT / "build" / "frameworks.json")
    run(PYTHON, "-m", "benchmarks.lab.frameworks", "own", *words, *results)


def lint(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "ruff", "check", *words)
    run(PYTHON, "-m", "ruff", "format", "--check")
    run(PYTHON, "-m", "tools.lint")


def format_(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "ruff", "check", "--fix", *words)
    run(PYTHON, "-m", "ruff", "format")


def types(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "mypy", "--num-workers", "auto", *words)


def typescript() -> None:
    """Types and npm package of the TypeScript client, where npm can install the compiler."""
    setup()
    run(PYTHON, "-m", "tools.typescript_types")
    run(PYTHON, "-m", "tools.npm_package")


def imports() -> None:
    setup()
    run(BIN / "lint-imports")


def bench(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "benchmarks.speed", *words)


def build(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "tools.package", *words)


def release(*words: str) -> None:
    setup()
    run(PYTHON, "-m", "tools.release", *words)


def container() -> None:
    """The image of `remora http`, without an engine of containers."""
    setup()
    run(PYTHON, "-m", "tools.container")


def site(*words: str) -> None:
    setup("docs")
    run(PYTHON, "-m", "tools.site", *words)


def checklist(*words: str) -> None:
    run(sys.executable, "tools/checklist.py", *words)  # needs nothing installed


def browser() -> None:
    """Install Debian's Chromium, which tests drive, where that is possible; else they skip."""
    _install_debian(BROWSERS, "the tests of the page in a browser")


def pooler() -> None:
    """Install Debian's PgBouncer, before the tests' PostgreSQL; else tests of poolers skip."""
    _install_debian(("pgbouncer",), "the tests of PostgreSQL behind a pooler")


def _install_debian(programs: Sequence[str], tests: str) -> None:
    """Install the first of these programs if there is none of them."""
    if any(map(shutil.which, programs)):
        return
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"no {programs[0]}: {tests} are skipped", flush=True)
        return
    apt = ("apt-get", "--quiet", "--assume-yes")
    install = (*apt, "install", "--no-install-recommends", programs[0])
    for words in ((*apt, "update"), install):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(words, env=quiet, check=False)
        if done.returncode:
            print(f"{' '.join(words)} failed: {tests} are skipped", flush=True)
            return


def check() -> None:
    junit = "build/junit.xml"
    lint()
    types()
    typescript()
    imports()
    build()
    site()
    browser()
    pooler()
    # one word: a file that is there would be taken for tests
    test(f"--junitxml={junit}", "--probes=build/probes.txt")
    frameworks("changed")
    checklist("--check", "--junit", junit)


TASKS: dict[str, Callable[..., None]] = {
    "setup": setup,
    "demo": demo,
    "quick": quick,
    "tests-of": tests_of,
    "system": system,
    "unit": unit,
    "test": test,
    "pytest": pytest,
    "nightly": nightly,
    "coverage": coverage,
    "prop": prop,
    "prop-soak": prop_soak,
    "soak": soak,
    "memory-soak": memory_soak,
    "fault": fault,
    "frameworks": frameworks,
    "mutants": mutants,
    "lint": lint,
    "format": format_,
    "types": types,
    "typescript": typescript,
    "imports": imports,
    "bench": bench,
    "build": build,
    "release": release,
    "container": container,
    "site": site,
    "checklist": checklist,
    "browser": browser,
    "pooler": pooler,
    "check": check,
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TASKS:
        print(__doc__)
        raise SystemExit(0 if sys.argv[1:2] in (["-h"], ["--help"], []) else 2)
    TASKS[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        sys.exit("remora needs Python 3.11 or newer")
    main()
