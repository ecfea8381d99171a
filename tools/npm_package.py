"""Build the npm package of the TypeScript client, pack it twice, and try it by itself.

    python -m tools.npm_package [--into DIR]

tsc writes JavaScript and declarations; the version and the address of the repository are those of
pyproject.toml. The two archives must have the same bytes. The package is installed in an empty
directory, where each of its exports must load, and programs that use it must have right types.
It says so and succeeds where npm cannot install the compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.package import project
from tools.typescript_types import (
    BUILD,
    CLIENT,
    ROOT,
    Unavailable,
    compile_types,
    find_node,
    install,
    npm,
)

__all__ = ["main", "manifest"]

_EMITTED = """{
  "extends": "./tsconfig.json",
  "compilerOptions": {
    "noEmit": false,
    "declaration": true,
    "rewriteRelativeImportExtensions": true,
    "outDir": "dist",
    "types": []
  }
}
"""
_USER = """import { Client, Turn, follow, RemoraError } from "remora-client";
import { rememberTurn } from "remora-client/ai";
const client: Client = new Client("http://127.0.0.1:1", { apiKey: "k" });
const begun: Promise<Turn> = Turn.begin(client, { user: "a", session: "b" }, "hello");
export const made = [begun, follow, RemoraError, rememberTurn(client, { user: "a", session: "b" })];
"""
_LOADS = """import * as all from "remora-client";
import * as ai from "remora-client/ai";
for (const name of ["Client", "Turn", "follow", "RemoraError"]) if (!(name in all)) throw name;
if (typeof ai.rememberTurn(new all.Client("http://h", { apiKey: "k" }), {}) !== "object") throw ai;
"""


def manifest(source: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """The published package.json: the one in the repository, without what developers need.

    Args:
        source: that one.
        about: the table `project` of pyproject.toml.
    """
    address = {"type": "git", "url": f"git+{about['urls']['Repository']}.git"}
    kept = {name: value for name, value in source.items() if name != "devDependencies"}
    repository = {**address, "directory": CLIENT.as_posix()}
    return {**kept, "version": about["version"], "repository": repository}


def _build(directory: Path) -> None:
    """Write the package to a new directory."""
    shutil.copytree(ROOT / CLIENT, directory)
    (directory / "node_modules").symlink_to(BUILD / "node_modules")
    settings = directory / "emitted.json"
    settings.write_text(_EMITTED)
    if code := compile_types("--project", settings):
        raise SystemExit(code)
    source = json.loads((directory / "package.json").read_text(encoding="utf-8"))
    published = manifest(source, project()["project"])
    (directory / "package.json").write_text(json.dumps(published, indent=2) + "\n")
    shutil.copy(ROOT / "LICENSE", directory)


def _pack(directory: Path, into: Path) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    told = npm("pack", "--json", "--ignore-scripts", "--pack-destination", into, in_=directory)
    answer = json.loads(told)
    (packed,) = answer if isinstance(answer, list) else answer.values()
    names = {file["path"] for file in packed["files"]}
    wanted = {"package.json", "README.md", "LICENSE"}
    wanted |= {
        f"dist/{source.stem}{suffix}"
        for source in (ROOT / CLIENT).glob("*.ts")
        for suffix in (".js", ".d.ts")
    }
    if names != wanted:
        raise SystemExit(f"the npm package lacks {wanted - names}, and has {names - wanted}")
    return into / str(packed["filename"])


def _try(archive: Path, directory: Path) -> None:
    """Use an archive as its users do."""
    (directory / "package.json").write_text('{"type": "module"}')
    offline = ("--offline", "--no-audit", "--no-fund", "--legacy-peer-deps")
    npm("install", *offline, archive, in_=directory)
    (directory / "loads.js").write_text(_LOADS)
    node = find_node()
    assert node is not None
    if subprocess.run([node, "loads.js"], cwd=directory, check=False).returncode:
        raise SystemExit("the npm package does not load")
    for name in ("ai", "@ai-sdk", "@types"):  # whose types the middleware has
        (directory / "node_modules" / name).symlink_to(BUILD / "node_modules" / name)
    (directory / "user.ts").write_text(_USER)
    options = ("--strict", "--noEmit", "--module", "nodenext", "--target", "es2022")
    if compile_types(
        *options, "--ignoreConfig", "--skipLibCheck", "--types", "node", directory / "user.ts"
    ):
        raise SystemExit("a program that uses the npm package has wrong types")


def main(words: Sequence[str] | None = None) -> None:
    """Build, pack and try; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist" / "npm", help="dist/npm/")
    into = parser.parse_args(words).into.resolve()
    try:
        install()
    except Unavailable as e:
        print(f"SKIPPED: the npm package is not built: {e}", flush=True)
        return
    with tempfile.TemporaryDirectory() as made:
        archives = []
        for name, where in (("1", into), ("2", Path(made) / "again")):
            _build(Path(made) / name)
            archives.append(_pack(Path(made) / name, where))
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in archives]
        print(f"{hashes[0]}  {archives[0].name}", flush=True)
        if hashes[0] != hashes[1]:
            raise SystemExit(f"it is not reproducible: packed again, its SHA-256 is {hashes[1]}")
        used = Path(made) / "used"
        used.mkdir()
        _try(archives[0], used)
    print(f"{archives[0].name} is in {into}, packed twice with the same bytes")


if __name__ == "__main__":
    main()
