"""Answer what must be known before a release; publishes nothing.

    python -m tools.release name [NAME]    is the name free at the package index?
    python -m tools.release audit          has a part of the SBOM a known vulnerability?
    python -m tools.release ready          are the version, address and pages those of a release?

``name`` asks the index that pip uses, and no other. ``audit`` needs the SBOM of ``tasks.py build``.
Both say so and succeed where the index cannot be asked: ``SKIPPED`` on the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tools.package import ROOT, install_tools, program, project

__all__ = ["audit", "main", "name", "problems", "ready", "summary"]

_SIMPLE = "application/vnd.pypi.simple.v1+json"
_PATIENCE_S = 60


# -- name ------------------------------------------------------------------------------------------


def name(wanted: str, index: str | None = None) -> int:
    """Print whether the index has a project of a name; returns 1 if it has, else 0."""
    index = (index or _index()).rstrip("/")
    normal = re.sub(r"[-_.]+", "-", wanted).lower()
    if urlsplit(index).scheme not in {"http", "https"}:
        return _skip(f"{index} is not asked over HTTP")
    request = Request(f"{index}/{normal}/", headers={"Accept": _SIMPLE})  # noqa: S310
    try:
        with urlopen(request, timeout=_PATIENCE_S) as answer:  # noqa: S310
            page = json.load(answer)
    except HTTPError as e:
        if e.code != 404:
            return _skip(f"{index} answered {e.code} for {normal}")
        print(f"{normal} is free at {index}: the index answered 404")
        print("whether it is too similar to another name, only the first upload tells")
        return 0
    except (URLError, ValueError) as e:
        return _skip(f"{index} cannot be asked for {normal}: {e}")
    versions = ", ".join(page.get("versions", ())) or "none"
    print(f"{normal} is taken at {index}: {len(page['files'])} files, versions: {versions}")
    return 1


def _index() -> str:
    """The index that pip uses."""
    command = (sys.executable, "-m", "pip", "config", "get", "global.index-url")
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    default = told.stdout.strip() if not told.returncode else "https://pypi.org/simple"
    return os.environ.get("PIP_INDEX_URL", default)


def _skip(why: str) -> int:
    print(f"SKIPPED: {why}", flush=True)
    return 0


# -- audit -----------------------------------------------------------------------------------------


def audit() -> int:
    """Print the known vulnerabilities of what the wheel needs; returns 1 if there is one."""
    version = project()["project"]["version"]
    bill = ROOT / "dist" / "sbom" / f"remora-{version}.cdx.json"
    if not bill.exists():
        raise SystemExit(f"{bill} is not there: python3 tasks.py build writes it")
    parts = json.loads(bill.read_text(encoding="utf-8"))["components"]
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        pins = directory / "parts.txt"
        pins.write_text("".join(f"{one['name']}=={one['version']}\n" for one in parts))
        try:
            install_tools(directory / "tools")
        except SystemExit:  # pip said why
            return _skip("pip-audit cannot be installed")
        options = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json")
        auditor = program(directory / "tools", "pip-audit")
        command = [str(word) for word in (auditor, *options, "--requirement", pins)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answered = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return _skip(f"pip-audit got no answer: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return summary(answered)


def summary(answered: Sequence[dict[str, Any]]) -> int:
    """Print what pip-audit found; returns 1 if a part has a known vulnerability.

    Args:
        answered: ``dependencies`` of its JSON; one with ``skip_reason`` was not audited.
    """
    audited = [one for one in answered if "skip_reason" not in one]
    found = [(one, each) for one in audited for each in one["vulns"]]
    for one, each in found:
        fixed = ", ".join(each["fix_versions"]) or "no release"
        print(f"{one['name']} {one['version']}: {each['id']}, fixed in {fixed}")
    if len(audited) < len(answered):
        left = ", ".join(one["name"] for one in answered if "skip_reason" in one)
        print(f"not audited, as the service does not know them: {left}")
    if not audited:
        return _skip("no part was audited: there is no service that knows vulnerabilities")
    print(f"{len(audited)} of {len(answered)} parts audited, {len(found)} vulnerabilities")
    return 1 if found else 0


# -- ready -----------------------------------------------------------------------------------------


def ready() -> int:
    """Print what must be changed before this tree can be published; returns 1 if anything must."""
    pages = ("CHANGELOG.md", "README.md", "skills/remora/SKILL.md")
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages}
    found = problems(project()["project"], texts, os.environ)
    print("\n".join(found) or "the version, the address and the pages are those of a release")
    return 1 if found else 0


def problems(
    about: dict[str, Any], pages: Mapping[str, str], environment: Mapping[str, str]
) -> list[str]:
    """What must be changed before a release, a line each.

    Args:
        about: the table `project` of pyproject.toml.
        pages: their texts; CHANGELOG.md is one of them.
        environment: in a workflow, GITHUB_SERVER_URL and GITHUB_REPOSITORY say where it runs, and
            GITHUB_REF_TYPE and GITHUB_REF_NAME for which tag.
    """
    found = []
    version, address = about["version"], about["urls"]["Repository"]
    runs_at = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}"
    if (urlsplit(address).hostname or "invalid").endswith("invalid"):
        found.append(f"pyproject.toml: project.urls.Repository is a place-holder: {address}")
    elif "GITHUB_REPOSITORY" in environment and address != runs_at.format_map(environment):
        found.append(
            f"pyproject.toml: project.urls.Repository is {address}, and this is"
            f" {runs_at.format_map(environment)}"
        )
    if environment.get("GITHUB_REF_TYPE") == "tag":
        tag = environment["GITHUB_REF_NAME"]
        if tag != f"v{version}":
            found.append(f"the tag is {tag}, and the version is {version}: name it v{version}")
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, pages["CHANGELOG.md"], re.MULTILINE):
        found.append(f"CHANGELOG.md: no heading '## {version} (YYYY-MM-DD)'")
    found += [
        f"{page}: says that there is no release yet"
        for page, text in pages.items()
        if "no release yet" in re.sub(r"\s+", " ", text)
    ]
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Answer one of the questions; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    questions: dict[str, Callable[[], int]] = {"audit": audit, "ready": ready}
    parser.add_argument("question", choices=["name", *questions])
    parser.add_argument("name", nargs="?", default=project()["project"]["name"])
    given = parser.parse_args(words)
    if given.question == "name":
        return name(given.name)
    return questions[given.question]()


if __name__ == "__main__":
    sys.exit(main())
