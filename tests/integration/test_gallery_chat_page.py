"""The chat page of the gallery: two workers, a browser, and requests that come twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browsing import MARKS, WAIT_MS, started_browser
from tests.gallery import running_app
from tests.workers import OWNERS, end_owner

pytestmark = OWNERS
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat") / "memory"


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[str]:
    with running_app("chat_page", directory, "--workers", "2") as app:
        yield app.address


def test_a_request_that_comes_twice_is_answered_once(address: str) -> None:
    """Eight at the same time, to workers by chance: one question and one answer are stored."""
    cookies = {"browser": "a secret of one browser"}
    body = {"id": "request-1", "content": "How warm is it in Porto?"}

    def ask(_: int) -> str:
        answer = httpx.post(f"{address}/chats/one", json=body, cookies=cookies, timeout=None)
        assert answer.status_code == 200
        return answer.text

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == {"I looked: 18 degrees in Porto."}
    said = httpx.get(f"{address}/chats/one", cookies=cookies, timeout=None).json()
    assert [one["role"] for one in said] == ["user", "tool", "assistant"]


def test_a_browser_sees_its_own_chats_alone(address: str) -> None:
    body = {"id": "request-1", "content": "My cat is called Figaro."}
    chats = f"{address}/chats/one"
    assert httpx.post(chats, json=body, timeout=None).status_code == 401
    assert httpx.post(chats, json=body, cookies={"browser": "b"}, timeout=None).text == "Noted."
    assert httpx.get(chats, cookies={"browser": "c"}, timeout=None).json() == []
    changed = {**body, "content": "other words, same id"}
    assert httpx.post(chats, json=changed, cookies={"browser": "b"}).status_code == 409


def in_a_browser(test: Any) -> Any:
    """A test that is skipped, visibly, where there is no browser."""
    for mark in MARKS:
        test = mark(test)
    return test


def test_the_owner_of_the_memory_is_killed(address: str, directory: Path) -> None:
    """The workers start another one: nothing is lost, and nobody notices but by a pause."""
    chats, cookies = f"{address}/chats/two", {"browser": "d"}
    for number, text in enumerate(("I play chess.", "What do I play?")):
        body = {"id": f"request-{number}", "content": text}
        answer = httpx.post(chats, json=body, cookies=cookies, timeout=None)
        assert answer.status_code == 200
        end_owner(directory)
    assert answer.text == "I know this: I play chess."
    said = httpx.get(chats, cookies=cookies, timeout=None).json()
    assert [one["role"] for one in said] == ["user", "assistant"] * 2


class Page:
    """The page, as a person uses it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        page.set_default_timeout(WAIT_MS)
        page.goto(address)

    def ask(self, text: str) -> None:
        self.page.fill("input", text)
        self.page.click("button:text-is('Send')")
        self.page.wait_for_selector("form button:enabled")

    @property
    def said(self) -> list[tuple[str, str]]:
        lines = "[...document.querySelectorAll('#said p')].map(p => [p.dataset.role, p.innerText])"
        return [(role, text) for role, text in self.page.evaluate(lines)]


@pytest.fixture
def page(address: str) -> Iterator[Page]:
    with started_browser() as browser:
        opened = browser.new_page()
        complaints: list[str] = []
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        yield Page(opened, address)
        assert complaints == []


@in_a_browser
def test_a_person_chats(page: Page) -> None:
    """Tools are called, hostile text is shown as text, and a new chat knows the old one."""
    page.ask("I live in Lisbon.")
    page.ask("How warm is it in Lisbon?")
    page.ask(HOSTILE)
    said = [
        ("user", "I live in Lisbon."),
        ("assistant", "Noted."),
        ("user", "How warm is it in Lisbon?"),
        ("tool", "18 degrees in Lisbon"),
        ("assistant", "I looked: 18 degrees in Lisbon."),
        ("user", HOSTILE),
        ("assistant", "Noted."),
    ]
    assert page.said == said
    assert page.page.title() == "Chat"
    page.page.reload()
    page.page.wait_for_selector("#said p")
    assert page.said == said
    page.page.click("button:text-is('New chat')")
    page.ask("Where do I live?")
    assert page.said == [
        ("user", "Where do I live?"),
        ("assistant", "I know this: I live in Lisbon."),
    ]


@in_a_browser
def test_an_answer_that_is_lost_is_asked_for_again(page: Page) -> None:
    """The server has answered, and the connection breaks: the page sends the request again."""
    lost: list[str] = []

    def lose_the_first(route: Any) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(route.fetch(timeout=WAIT_MS).text())
            route.abort()
        else:
            route.continue_()

    page.page.route("**/chats/*", lose_the_first)
    page.ask("How warm is it in Faro?")
    assert lost == ["I looked: 18 degrees in Faro."]
    assert page.said == [
        ("user", "How warm is it in Faro?"),
        ("tool", "18 degrees in Faro"),
        ("assistant", "I looked: 18 degrees in Faro."),
    ]
