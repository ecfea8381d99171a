"""The files by which machines share a memory: checked, and run as far as one machine can."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import anyio
import yaml

from remora.rest.keys import is_open
from tests.machines import SECRET, owned_by, placed, write_certificate
from tests.patience import wait_until
from tests.postgres import Cluster
from tests.processes import bound, free_port
from tests.workers import OWNERS

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "deployment"
REMORA = [sys.executable, "-m", "remora"]
pytestmark = OWNERS


def manifests() -> dict[str, Any]:
    """Each by its kind and name."""
    found = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def pod_of(name: str) -> Any:
    return manifests()[name]["spec"]["template"]["spec"]


def container_of(name: str) -> Any:
    (found,) = pod_of(name)["containers"]
    return found


def named(found: object, kind: str) -> set[str]:
    """The names of all references of a kind, `configMap` for instance."""
    if isinstance(found, list):
        return {name for one in found for name in named(one, kind)}
    if not isinstance(found, dict):
        return set()
    own = {found[kind]["name"]} if kind in found else set()
    return own | {name for one in found.values() for name in named(one, kind)}


def test_manifests_hold_together() -> None:
    found = manifests()
    labels = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in found.values()
        if "template" in one["spec"]
    ]
    for name, one in found.items():
        selector = one["spec"]["selector"]
        assert selector.get("matchLabels", selector) in labels, name
    for name in ("StatefulSet/memory-node", "Deployment/memory-http"):
        container, pod = container_of(name), pod_of(name)
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in pod["volumes"]}
        assert found[name]["spec"]["selector"]["matchLabels"] in labels
        ports = {one["name"] for one in container["ports"]}
        assert set(re.findall(r"'port': '(\w+)'", str(container))) <= ports
    assert f"Service/{found['StatefulSet/memory-node']['spec']['serviceName']}" in found
    page = (ROOT / "docs" / "how-to" / "machines.md").read_text()
    every = list(found.values())
    made = set(re.findall(r"kubectl create secret generic (\S+)", page))
    assert named(every, "secret") | named(every, "secretRef") == made
    agent, *_ = pod_of("Deployment/memory-http")["volumes"]
    mode = stat.S_IFREG | agent["projected"]["defaultMode"]
    assert not is_open(mode, 0, account=10_001)  # files of a Secret are root's
    assert named(every, "configMap") == set(re.findall(r"kubectl create configmap (\S+)", page))


# -- as processes of this machine ------------------------------------------------------------------


class Place:
    """A machine or pod: its files, and the environment of its programs."""

    def __init__(self, path: Path, cluster: Cluster, environment: Mapping[str, str]) -> None:
        self.path = path
        self.etc = path / "etc"
        self.etc.mkdir(parents=True)
        (path / "state").mkdir()
        text = (FILES / "machines.yaml").read_text()
        assert "uri: s3://bucket/memory" in text
        text = re.sub("uri: s3://bucket/memory.*", "enabled: false", text)
        (self.etc / "machines.yaml").write_text(self.here(text))
        self.environment = {
            **os.environ,
            "PG": cluster.dsn(),
            "REMORA": SECRET,
            "REMORA_JOURNAL__DURABILITY": "process",
            "REMORA_JOURNAL__LEASE_S": "600",
            "REMORA_TOKENS__COUNTER": "heuristic",
            **environment,
        }

    def here(self, text: str) -> str:
        """The same with paths of this place."""
        return text.replace("/etc/agent", str(self.etc)).replace(
            "/var/lib/agent", str(self.path / "state")
        )

    def command(self, words: Sequence[str]) -> list[str]:
        return [*REMORA, *map(self.here, words)]

    def run(self, words: Sequence[str]) -> int:
        return subprocess.run(
            self.command(words), env=self.environment, capture_output=True, check=False
        ).returncode

    @contextmanager
    def running(self, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A program that is told to end, and does."""
        log = self.path / "log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                bound(*self.command(words)), env=self.environment, stdout=out, stderr=out
            ) as process,
        ):
            try:
                yield process
            finally:
                process.terminate()
                code = process.wait()
        assert code in {0, -signal.SIGTERM}, log.read_text()


def pod_environment(port: int) -> dict[str, str]:
    """What the StatefulSet sets, on the address of this machine and another port."""
    found: dict[str, str] = {}
    for one in container_of("StatefulSet/memory-node")["env"]:
        value = one.get("value", "127.0.0.1")
        for name, known in found.items():
            value = value.replace(f"$({name})", known)
        found[one["name"]] = value.replace(":7731", f":{port}")
    return found


def unit_command() -> list[str]:
    (line,) = re.findall("^ExecStart=(.*)$", (FILES / "node.service").read_text(), re.MULTILINE)
    program, *words = line.split()
    assert program.endswith("/bin/remora")
    return list(words)


def answer(port: int, path: str, key: str = "") -> Any:
    asked = Request(f"http://127.0.0.1:{port}{path}", headers={"authorization": f"Bearer {key}"})
    with urlopen(asked) as reply:
        return json.load(reply)


def ready(port: int, path: str) -> bool:
    try:
        answer(port, path)
    except URLError:  # HTTPError is one
        return False
    return True


def succeeds(place: Place, words: Sequence[str]) -> bool:
    return place.run(words) == 0


def test_the_commands_of_all_files(cluster: Cluster, tmp_path: Path) -> None:
    """Two pods of the StatefulSet and a host with the unit share a memory, by one configuration and
    over TLS; the Deployment's server serves it; all probes succeed, and all end as they are told.
    """
    anyio.run(write_certificate, tmp_path)
    node, http = container_of("StatefulSet/memory-node"), container_of("Deployment/memory-http")
    port = free_port()
    hosts = {
        "host": ({"REMORA_CLUSTER__LISTEN": f"127.0.0.1:{free_port()}"}, unit_command()),
        "pod-0": (pod_environment(free_port()), node["args"]),
        "pod-1": (pod_environment(free_port()), node["args"]),
    }
    with ExitStack() as stack:
        places = []
        for name, (environment, command) in hosts.items():
            place = Place(tmp_path / name, cluster, environment)
            for file in ("cert.pem", "key.pem"):
                (place.etc / file).write_bytes((tmp_path / file).read_bytes())
            stack.enter_context(place.running(command))
            places.append(place)
        anyio.run(placed, cluster, "remora", owned_by(2, 3, 3))
        for place in places:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                program, *words = node[probe]["exec"]["command"]
                assert program == "remora"
                wait_until(partial(succeeds, place, words), probe)
        worker = Place(tmp_path / "http", cluster, {})
        made = subprocess.run(
            [*REMORA, "keys", str(worker.etc / "keys.txt"), "--add", "shop"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert http["args"][-1] == "0.0.0.0"
        words = [*http["args"][:-1], "127.0.0.1", "--port", str(port)]
        stack.enter_context(worker.running(words))
        for probe in ("livenessProbe", "readinessProbe"):
            path = http[probe]["httpGet"]["path"]
            wait_until(partial(ready, port, path), probe)
        assert answer(port, "/v1/users", made.stdout.strip()) == {"users": [], "after": None}
        shown = subprocess.run(
            worker.command(["owners", str(worker.etc / "machines.yaml"), "--json"]),
            env=worker.environment,
            capture_output=True,
            check=True,
        )
        owners = Counter(json.loads(line)["owner"] for line in shown.stdout.splitlines())
        assert sorted(owners.values()) == [2, 3, 3]
