"""Run each measurement in a child process, in the contestant's environment, with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed.claim import Case

__all__ = ["ENVIRONMENTS", "in_smoke", "measured"]

ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENTS = {
    "openai_agents": "openai_agents",
    "langgraph": "langgraph",
    "langgraph_store": "langgraph",
    "llama_index": "llama_index",
    "adk": "adk",
    "mem0": "mem0",
    "redis": "redis",
    "redis-everysec": "redis",
    "gigatoken": "gigatoken",
    "rs_bpe": "rs_bpe",
    "bpe_openai": "bpe_openai",
    "kitoken": "kitoken",
}
"""Which of `benchmarks.peers.pins.LIBRARIES` a contestant runs in; all others run in the
environment of the script.
"""

_OURS = ("remora", "aiosqlite", "anyio", "msgspec", "tiktoken", "lancedb", "uvloop")


def in_smoke(contestant: str) -> bool:
    """A smoke run has remora and the limits."""
    return contestant == "remora" or contestant.startswith("limit")


def measured(
    case: Case,
    contestant: str,
    python: Path,
    *,
    directory: Path,
    seed: int,
    smoke: bool,
    shown: tuple[str, ...] = _OURS,
    vocabularies: Path,
) -> dict[str, Any]:
    """One measurement.

    Args:
        case: what is measured.
        contestant: of whom.
        python: the interpreter of its environment.
        directory: where a temporary directory is made, and removed.
        seed: of all that is random.
        smoke: just whether it works.
        shown: distributions whose versions are wanted.
        vocabularies: tiktoken's, so that no child fetches them.

    Returns:
        ``figures``, ``skipped`` (why) or ``failed`` (the error's last line); and ``versions``.
    """
    with tempfile.TemporaryDirectory(
        prefix="speed-", dir=directory, ignore_cleanup_errors=True
    ) as temporary:
        home, data = Path(temporary) / "home", Path(temporary) / "data"
        home.mkdir()
        data.mkdir()
        command = [
            str(python),
            "-m",
            "benchmarks.speed.child",
            case.claim,
            case.name,
            contestant,
            str(data),
            str(seed),
        ]
        command += ["--distributions", ",".join(shown)] + ["--smoke"] * smoke
        with (Path(temporary) / "stderr").open("w+") as errors:
            child = subprocess.Popen(
                command,
                cwd=ROOT,
                env=_environment(home, vocabularies),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            try:
                out, _ = child.communicate(timeout=case.limit_s)
            except BaseException as e:
                # With whatever servers it started, before it is waited for: then its number may be
                # another's.
                _kill_all(child)
                out, _ = child.communicate()
                if not isinstance(e, subprocess.TimeoutExpired):
                    raise
                return {"failed": f"did not end within {case.limit_s:.0f} s"}
            if child.returncode:
                _kill_all(child)  # servers that it left behind
            errors.seek(0)
            said = errors.read().strip().splitlines()
        with contextlib.suppress(ValueError):
            return dict(json.loads(out))
        return {"failed": f"crashed ({child.returncode}): {(said or ['no word'])[-1][:200]}"}


def _environment(home: Path, vocabularies: Path) -> dict[str, str]:
    secrets = ("_API_KEY", "_TOKEN")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("REMORA_") and not name.endswith(secrets)
    }
    return kept | {
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "TIKTOKEN_CACHE_DIR": str(vocabularies),
        "MEM0_TELEMETRY": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
    }


def _kill_all(child: subprocess.Popen[str]) -> None:
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
