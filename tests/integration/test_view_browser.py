"""The page of ``remora view`` in a real browser: hostile text, large sessions, changes.

What it shows of a memory that a server uses: test_view_replayed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from remora import Config, Runtime
from tests.browsing import (
    EACH_WAY,
    MARKS,
    WAYS,
    is_wider,
    opened,
    opened_empty,
    served,
    show,
    started_browser,
    violations,
    visit,
)
from tests.configs import LEAN_TREE, poison

pytestmark = MARKS

INJECTIONS = [
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "<svg/onload=document.title='taken'>",
    "\"><iframe srcdoc='<script>parent.document.title=1</script>'>",
    "<a href=\"javascript:document.title='taken'\">here</a>",
    "</pre></title><style>*{display:none}</style>",
    "{{constructor.constructor('document.title=1')()}}${document.title=1}",
    "<!--\u202e\u2066 hidden \u202d--><plaintext>",
    "'-alert(1)-' \\u003cscript\\u003e &lt;script&gt; &#60;b&#62;",
    "\u001b]0;title\u0007\u0000",
]
TREE: dict[str, Any] = {
    **LEAN_TREE,
    "buffer": {"token_limit": 600, "summary_tokens": 120},
    "supervisor": {"max_attempts": 1},
}
LONG = 5_000
CALL = {"name": "find_box", "arguments": '{"cat": "Figaro <b>"}'}
TOOLS: list[Any] = [
    {"role": "user", "content": "Where is the cat?"},
    {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": CALL}]},
    {"role": "tool", "tool_call_id": "c1", "content": "In box 7."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And this one?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        ],
    },
]


async def make(directory: Path) -> None:
    config = Config.from_dict(TREE)
    async with Runtime(directory, config=config, redact_long_term=poison) as runtime:
        for number, text in enumerate(INJECTIONS):
            chat = runtime.session(f"user {number}", "chat")
            await chat.append({"role": "user", "content": text, "name": "n"})
        for name in (*LONG_IDS, "ali\u200bce"):
            await runtime.session(name, name).append({"role": "user", "content": "W" * 300})
        hostile = runtime.session("mallory <b>", "session <i>")
        for _ in range(4):
            await hostile.append([{"role": "user", "content": text} for text in INJECTIONS])
        chat = runtime.session("alice", "chat")
        for number in range(60):
            await chat.append(
                [
                    {
                        "role": "user",
                        "content": f"Fact {number}: the cat Figaro likes box {number}.",
                    },
                    {"role": "assistant", "content": f"Noted, box {number}."},
                ]
            )
        await runtime.session("alice", "tools").append(TOOLS)
        bad = runtime.session("eve", "bad")
        await bad.append({"role": "user", "content": "poison"})
        await bad.flush()
        await runtime.settle()
        many = runtime.session("alice", "long")
        for _ in range(LONG // 1_000):
            await many.append([{"role": "user", "content": "Hi."}] * 1_000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page that may change what it shows."""
    directory = tmp_path_factory.mktemp("view") / "memory"
    with ThreadPoolExecutor(1) as thread:  # in this one, Playwright's event loop may run
        thread.submit(anyio.run, make, directory).result()
    with served(directory, "--allow-changes") as page:
        yield page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened(browser, address, **getattr(request, "param", {})) as page:
        yield page


def test_it_updates_itself(page: Any) -> None:
    """Server-sent events: a page that is open shows what is changed."""
    page.click("header .name")
    page.wait_for_selector("#live.told")
    # of the page; whether a process has the memory open is said under "Health"
    assert page.inner_text("#live") == "page updates itself"
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#jobs button", has_text="retry").click()
    page.wait_for_selector("text=1 dead letter will run again")
    page.wait_for_selector("#jobs button", state="detached")
    assert "waiting" in page.inner_text("#jobs")


def reach(page: Any, text: str) -> None:
    """Move the focus to a button by the keyboard alone."""
    page.wait_for_selector(f"button:text-is('{text}')")
    for _ in range(400):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == text:
            return
    raise AssertionError(f"no way to {text} by the keyboard")


def test_the_keyboard_alone(page: Any) -> None:
    """It asks, measures and erases, and the focus stays where it was or goes to the answer."""
    page.on("dialog", lambda dialog: dialog.accept())
    visit(page, "user 7", "chat")
    reach(page, "Recall")
    page.keyboard.press("Enter")
    page.focus("#question")
    page.keyboard.type("hidden")
    reach(page, "recall")
    page.keyboard.press("Enter")
    page.wait_for_selector("#recall .hit")
    assert page.evaluate("document.activeElement.textContent") == "recall"
    reach(page, "Erase")
    page.keyboard.press("Enter")
    reach(page, "erase this user")
    page.keyboard.press("Enter")
    page.wait_for_selector("#erasure table")
    assert page.evaluate("document.activeElement.parentElement.id") == "erasure"
    assert page.evaluate("document.activeElement.role") == "status"
    assert "messages" in page.inner_text("#erasure table")
    page.locator("#users a", has_text="user 7").wait_for(state="detached")


def test_a_session_that_is_erased_elsewhere(browser: Any, address: str, page: Any) -> None:
    """Nothing of it stays on a page that shows it; and it is shown again when it is there again."""
    visit(page, "user 8", "chat")
    show(page, "recall")
    page.fill("#question", "script")
    page.press("#question", "Enter")
    page.wait_for_selector("#recall .hit")
    assert INJECTIONS[8][:11] in page.inner_text("main")
    with opened(browser, address) as other:
        other.on("dialog", lambda dialog: dialog.accept())
        visit(other, "user 8", "chat")
        show(other, "erasure")
        other.locator("#erasure button", has_text="erase this session").click()
        other.wait_for_selector("#erasure table")
    page.wait_for_selector("text=There is no such session")
    assert INJECTIONS[8][:11] not in page.inner_text("body")
    assert page.locator("main section").count() == 0


def test_an_id_looks_like_no_other(page: Any) -> None:
    """Also in the question whether to erase it, and in a list."""
    asked: list[str] = []

    def dismiss(dialog: Any) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.fill("#users-search", "ali\u200b")
    page.locator("#users a", has_text="ali\u27e8U+200B\u27e9ce").first.click()
    page.wait_for_selector("h1:has-text('ali\u27e8U+200B\u27e9ce')")
    page.locator("#erasure button", has_text="erase this user").click()
    assert "the user ali\u27e8U+200B\u27e9ce," in asked[0]


LONG_IDS = ["\u202e" + "א" * 200, "W" * 512, "<b>" * 100]


def test_long_ids_of_any_direction(browser: Any, address: str) -> None:
    """They are text, and nothing is wider than a narrow window."""
    with opened(browser, address, **WAYS["narrow"]) as page:
        home = address.partition("?")[0]
        for name in LONG_IDS:
            page.goto(f"{home}#/{quote(name, safe='')}/{quote(name, safe='')}")
            page.wait_for_selector(".strip[aria-valuemax]")
            page.wait_for_selector("#context-size", state="attached")
            shown = name.replace("\u202e", "\u27e8U+202E\u27e9")  # would turn what follows around
            assert shown in page.text_content("h1")
            assert page.title().startswith(shown[:20])
            assert not is_wider(page)
            assert page.locator("main b").count() == 0


def test_hostile_text_is_text(page: Any) -> None:
    """In ids, messages, summaries, contexts, and what recall finds."""
    visit(page, "mallory", "session")
    assert "mallory <b> / session <i>" in page.inner_text("h1")
    page.wait_for_selector("#context .messages .text")
    page.wait_for_selector("#conversation .turn .text")
    contents = page.inner_text("main")
    show(page, "compactions")
    for details in page.locator("#compactions details summary").all():
        details.click()
    strip = page.locator(".strip")
    strip.focus()
    page.keyboard.press("Home")
    for _ in INJECTIONS:
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"h3:has-text('Message {len(INJECTIONS) + 1}')")
    show(page, "recall")
    page.fill("#question", "script document title")
    page.press("#question", "Enter")
    page.wait_for_selector("#recall .hit")
    shown = page.inner_text("main")
    assert INJECTIONS[2] in contents
    for text in INJECTIONS[:2]:
        assert text in shown
    assert page.title() == "session <i> \u2013 remora"
    foreign = "img, svg, iframe, script:not([src^='/assets/']), style, plaintext, main b, main i"
    assert page.locator(foreign).count() == 0
    assert page.locator("a[href^='javascript']").count() == 0


def test_who_takes_the_disk(page: Any) -> None:
    """Measured on demand: files and tables, kinds of rows, and users, whose names are text."""
    page.focus("#disk button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#disk tbody a")
    page.wait_for_selector("#disk button[aria-disabled=false]")
    assert page.evaluate("document.activeElement.textContent") == "measure"
    shown = page.inner_text("#disk")
    assert "mallory <b>" in shown
    assert "journal.db" in shown
    assert ".lance" in shown
    alice = page.locator("#disk tr", has_text="alice").inner_text()
    assert int(alice.split()[1].replace(",", "")) >= LONG + 120
    page.locator("#disk a", has_text="alice").click()
    page.wait_for_selector("#sessions a")
    assert page.inner_text("h1") == "alice"


def test_keys(page: Any) -> None:
    """A session is found, looked at part by part, and left with keys."""
    page.wait_for_selector("#tab-context, h1:text-is('Overview')")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#keys", state="hidden")
    page.keyboard.press("/")
    page.keyboard.type("alice?")  # in a field, keys write
    page.wait_for_selector("text=None begins like this")
    assert page.locator("#keys").is_hidden()
    page.keyboard.press("Backspace")
    page.wait_for_selector("#users li:only-child a")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#sessions a")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("tools")
    page.wait_for_selector("#sessions li:only-child a")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "sessions-search"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#context-size")
    page.keyboard.press("3")
    page.wait_for_selector("#recall:visible")
    assert page.evaluate("document.activeElement.id") == "tab-recall"
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#message:visible")
    page.keyboard.press("1")  # the conversation
    page.wait_for_selector("#conversation .turn")
    page.keyboard.press("Home")
    page.wait_for_selector("h3:text-is('Message 1')")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("h3:text-is('Message 2')")
    page.wait_for_selector(".turn[data-seq='2'][aria-current]")
    page.keyboard.press("u")
    page.locator("h1", has_text=re.compile("^alice$")).wait_for()
    page.keyboard.press("o")
    page.wait_for_selector("h1:text-is('Overview')")


def test_a_conversation(page: Any) -> None:
    """Calls and results of tools are folded, attachments named, summaries in their place."""
    visit(page, "alice", "tools")
    call = page.locator("#conversation .turn[data-seq='2'] details")
    assert "find_box" in call.locator("summary").inner_text()
    call.locator("summary").click()
    assert call.locator("pre").inner_text() == '{\n  "cat": "Figaro <b>"\n}'
    result = page.locator("#conversation .turn.tool details")
    assert not result.evaluate("one => one.open")
    assert "In box 7." in result.locator("summary").inner_text()
    picture = page.locator("#conversation .turn[data-seq='4']")
    assert picture.locator(".text").inner_text() == "And this one?"
    assert "image cat.png" in picture.locator(".chips").inner_text()
    visit(page, "alice", "chat")
    page.wait_for_selector("#conversation .mark.buffer")
    places = page.locator("#conversation .turns > li").evaluate_all(
        "(all) => all.map((one) => Number(one.dataset.seq) || one.className)"
    )
    summary = places.index("summary")
    assert places[summary + 1] == "mark buffer"
    assert places[summary - 1] + 1 == places[summary + 2]
    states = page.locator(".turn").evaluate_all("(all) => all.map((one) => one.dataset.state)")
    assert states == sorted(states)  # archived, buffer
    assert {*states} == {"archived", "buffer"}


def test_what_is_left_out_of_a_context(page: Any) -> None:
    """It is said in the order of the context, and at the messages in the conversation."""
    visit(page, "alice", "chat")
    page.locator("#budget").fill("150")
    page.wait_for_selector("text=of 150 tokens")
    page.wait_for_selector("#conversation .turn .omitted:visible")
    left = page.locator("#context .gap", has_text="left out").locator("a")
    first, last = (int(one) for one in re.findall(r"\d+", left.inner_text()))
    marked = page.locator(".turn:has(.omitted:visible)").evaluate_all(
        "(all) => all.map((one) => Number(one.dataset.seq))"
    )
    assert marked == list(range(first, last + 1))
    shown = page.locator("#context .shown a").all_inner_texts()
    assert shown[0] == f"#{last + 1}"
    assert f"{len(marked)} left out" in page.inner_text("#context .sources li:has(.recent)")
    page.locator("#budget").fill("600")
    page.wait_for_selector("#conversation .turn .omitted:visible", state="detached")
    left.wait_for(state="detached")


def test_a_link_to_a_message(page: Any, address: str) -> None:
    """What recall finds leads to its message in the conversation."""
    visit(page, "alice", "tools")
    show(page, "recall")
    page.fill("#question", "Fact 3 Figaro box")
    page.press("#question", "Enter")
    page.locator("#recall .hit a", has_text="chat #7").first.click()
    page.wait_for_selector("h1:has-text('/ chat')")
    turn = page.locator(".turn[data-seq='7'][aria-current]")
    turn.wait_for()
    assert "Fact 3" in turn.inner_text()
    box, room = turn.bounding_box(), page.locator(".scroller").bounding_box()
    assert room["y"] <= box["y"] <= room["y"] + room["height"]


def test_an_empty_memory(browser: Any, tmp_path: Path) -> None:
    """It says how to begin, and nothing that would be wrong."""

    async def make_empty() -> None:
        async with Runtime(tmp_path / "memory", config=Config.from_dict(TREE)):
            pass

    with ThreadPoolExecutor(1) as thread:
        thread.submit(anyio.run, make_empty).result()
    with served(tmp_path / "memory") as page_address, opened_empty(browser, page_address) as page:
        page.wait_for_selector("text=This memory is empty")
        page.wait_for_selector("text=no process has the memory open")
        page.wait_for_selector("text=No background jobs wait")
        tiles = page.locator(".tiles li").all_inner_texts()
        assert [one.split()[-1] for one in tiles[:3]] == ["0", "0", "0"]
        assert page.inner_text("#users") == "None yet."
        assert violations(page) == []


def test_a_server_that_cannot_be_reached(browser: Any, address: str) -> None:
    """The page says so, keeps what it has, and goes on when it is asked to try again."""
    context = browser.new_context(**WAYS["light"])  # a browser notes failed requests itself
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#users a")
    visit(page, "alice", "tools")
    context.set_offline(True)
    show(page, "recall")
    page.fill("#question", "Figaro")
    page.press("#question", "Enter")
    page.wait_for_selector("#recall .callout.failed >> text=does not answer")
    page.keyboard.press("Escape")
    page.keyboard.press("o")
    page.wait_for_selector("#problem >> text=does not answer")
    context.set_offline(False)
    page.click("#problem button")
    page.wait_for_selector("#problem", state="hidden")
    page.wait_for_selector(".tiles li >> text=Users")
    context.close()


def test_a_session_of_many_messages(page: Any) -> None:
    """Only what is in view is drawn, and the first and the last are one key away."""
    visit(page, "alice", "long")
    assert page.locator("body *").count() < 1_500
    strip = page.locator(".strip")
    assert strip.get_attribute("aria-valuemax") == str(LONG)
    strip.focus()
    page.keyboard.press("Home")
    page.wait_for_selector("h3:text-is('Message 1')")
    page.keyboard.press("End")
    page.wait_for_selector(f"h3:has-text('Message {LONG:,}')")
    page.wait_for_selector(f".turn[data-seq='{LONG}'][aria-current]")
    for _ in range(8):  # as far as it goes, each time
        first = page.locator(".turn").first.get_attribute("data-seq")
        page.locator(".scroller").evaluate("one => { one.scrollTop = 0; }")
        page.wait_for_selector(f".turn[data-seq='{int(first) - 1}']", state="attached")
    assert page.locator(".turn").count() <= 200
    assert page.locator("body *").count() < 5_000


@pytest.mark.parametrize("page", EACH_WAY, indirect=True)
def test_everybody_can_use_it(page: Any) -> None:
    """No violation of axe-core's rules, and nothing is wider than the window."""
    page.click("#disk button")
    page.wait_for_selector("#disk tbody a")
    assert violations(page) == []
    visit(page, "alice", "chat")
    page.locator(".strip").focus()
    page.keyboard.press("Home")
    page.wait_for_selector("text=The summary that covers it")
    assert violations(page) == []
    show(page, "recall")
    page.fill("#question", "box 7")
    page.press("#question", "Enter")
    page.wait_for_selector("#recall .hit")
    assert violations(page) == []
    show(page, "compactions")
    page.locator("#compactions details summary").first.click()
    assert violations(page) == []
    assert not is_wider(page)
    show(page, "context")
    page.fill("#query", "box 7")
    page.wait_for_selector("#context .shown.long_term")
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    assert violations(page) == []
    assert not is_wider(page)
