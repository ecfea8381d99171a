"""The support desk of the gallery: two tenants of `remora http`, whose server is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.gallery import environment
from tests.processes import bound, free_port, http_server
from tests.programs import ROOT, run_program
from tests.workers import OWNERS, end_owner

pytestmark = OWNERS


class Desk:
    """The program, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def say(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


@contextmanager
def desk(address: str, key: str, user: str = "alice") -> Iterator[Desk]:
    command = bound(sys.executable, "-m", "examples.gallery.support_desk", user)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(REMORA_URL=address, REMORA_API_KEY=key),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Desk(process)
        finally:
            process.kill()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a memory with one owner, which searches by words."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    yield tmp_path / "memory"
    end_owner(tmp_path / "memory")


def test_tenants_and_a_server_that_is_killed(memory: Path) -> None:
    """Each tenant has its own alice; a desk goes on with the next server, and stores once."""
    keys, port = memory.parent / "keys.txt", free_port()
    shop, bank = [
        run_program("remora", "keys", keys, "--add", tenant).stdout.strip()
        for tenant in ("shop", "bank")
    ]
    with http_server(memory, keys, port) as (server, address), desk(address, shop) as alice:
        assert alice.say("I live in Lisbon.") == "Noted."
        server.kill()
        server.wait()
        with http_server(memory, keys, port):
            assert alice.say("My order is late.") == "Noted."
            with desk(address, shop) as again, desk(address, bank) as namesake:
                question = "Where do I live?"
                assert again.say(question) == "I know this: I live in Lisbon."
                assert namesake.say(question) == "I do not know that."

            def ask(key: str, path: str = "/users/alice/sessions") -> httpx.Response:
                bearer = {"Authorization": f"Bearer {key}"}
                return httpx.get(f"{address}/v1{path}", headers=bearer, timeout=None)

            listed = [len(ask(key).json()["sessions"]) for key in (shop, bank)]
            assert listed == [2, 1]
            assert ask("no key of anybody").status_code == 401
            said = [alice.say("/said"), alice.read(), alice.read()]
            assert said == [question, "I live in Lisbon.", "My order is late."]
            assert alice.say("/forget").startswith("erased")
            assert ask(shop, "/users").json()["users"] == []
            assert ask(bank, "/users").json()["users"] != []


def test_a_key_that_is_not_valid(memory: Path) -> None:
    """The desk says so, and ends."""
    keys = memory.parent / "keys.txt"
    run_program("remora", "keys", keys, "--add", "shop")
    with http_server(memory, keys) as (_, address):
        with desk(address, "another key") as alice:
            assert alice.say("Hello.") == ""
            assert alice.process.wait() == 1
