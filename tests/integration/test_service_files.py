"""The files by which `remora http` and nodes are deployed: checked, and run on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.integration.test_client import free_port
from tests.patience import wait_until
from tests.programs import ROOT, run_program

FILES = ROOT / "examples" / "deployment"
pytestmark = pytest.mark.blocking


def instructions() -> dict[str, str]:
    """The last instruction of each kind in the container's file."""
    found = {}
    for line in (FILES / "http.Containerfile").read_text().splitlines():
        kind, _, rest = line.partition(" ")
        found[kind] = rest
    return found


@pytest.mark.parametrize("name", ["http.service", "node.service"])
def test_the_unit(tmp_path: Path, name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    text = (FILES / name).read_text()
    program = tmp_path / "remora"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / name
    unit.write_text(re.sub(r"/opt/\w+/bin/remora", str(program), text))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    wrong = [line for line in done.stderr.splitlines() if name in line]
    assert not wrong


def test_the_composition() -> None:
    (memory,) = yaml.safe_load((FILES / "compose.yaml").read_text())["services"].values()
    build = memory["build"]
    context = (FILES / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    (volume,) = memory["volumes"]
    assert volume.endswith(f":{instructions()['VOLUME']}")
    (port,) = memory["ports"]
    assert port.endswith(f":{instructions()['EXPOSE']}")


def test_the_command_of_the_container(tmp_path: Path) -> None:
    """Its key, its server and its probe, run here with another directory and port."""
    found, port = instructions(), free_port()
    assert found["USER"] == "10001"  # a number: Kubernetes can tell that it is not root
    assert json.loads(found["ENTRYPOINT"]) == ["remora"]
    key = run_program("remora", "keys", tmp_path / "keys.txt", "--add", "shop").stdout.strip()
    command = [one.replace("/memory", str(tmp_path)) for one in json.loads(found["CMD"])]
    command[command.index("0.0.0.0")] = "127.0.0.1"
    probe = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    probe = [sys.executable, *(one.replace("8765", str(port)) for one in probe[1:])]
    program = [sys.executable, "-m", "remora", *command, "--port", str(port)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "serving" in process.stdout.readline()
            headers = {"authorization": f"Bearer {key}"}
            asked = Request(f"http://127.0.0.1:{port}/v1/users", headers=headers)
            assert json.load(urlopen(asked)) == {"users": [], "after": None}

            def is_ready() -> bool:
                assert process.poll() is None
                return subprocess.run(probe, capture_output=True, check=False).returncode == 0

            wait_until(is_ready, "the owner has loaded its models")
        finally:
            process.terminate()
            assert process.wait() in {0, -15}
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
