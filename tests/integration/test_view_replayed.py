"""Every part of the page in a real browser, while a server replays conversations and writes on.

The conversations are those that remora makes itself (`benchmarks.synthetic`). Where
``REMORA_CONVERSATIONS`` names another file, LoCoMo's for instance, they are those as well. Where
``REMORA_PICTURES`` names a folder, the pictures of the docs are written into it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.browsing import (
    EACH_WAY,
    MARKS,
    WAYS,
    is_wider,
    opened,
    served,
    show,
    started_browser,
    visit,
)
from tests.replaying import MODEL, Replayed

pytestmark = MARKS
ROOT = Path(__file__).parents[2]
SYNTHETIC = ROOT / "benchmarks" / "synthetic" / "chats.jsonl"
GIVEN = os.environ.get("REMORA_CONVERSATIONS", "")
PICTURES = os.environ.get("REMORA_PICTURES", "")
ENVIRONMENT = {"REMORA_MODELS__EMBEDDER": "wordllama", "REMORA_LONG_TERM__SHARDS": "2"}
# colours of a cell, of its lower edge, and of the line behind it, as the canvas has them
CELL = """([strip, seq]) => {
  const canvas = strip.querySelector("canvas"), scale = devicePixelRatio;
  const columns = Math.floor((strip.clientWidth - 4) / 14);
  const x = ((seq - 1) % columns) * 14 + 2;
  const y = Math.floor((seq - 1) / columns) * 14 - strip.scrollTop + 1;
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const at = (dx, dy) => [...pen.getImageData((x + dx) * scale, (y + dy) * scale, 1, 1).data]
    .slice(0, 3).join();
  return [at(6, 4), at(6, 11), at(13, 4)];
}"""
COLOURS = """(strip) => {
  const style = getComputedStyle(strip);
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const names = ["archived", "summarizing", "buffer", "indexed", "chosen"];
  return Object.fromEntries(names.map((name) => {
    pen.fillStyle = style.getPropertyValue(`--${name}`).trim();
    pen.fillRect(0, 0, 1, 1);
    return [name, [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).join()];
  }));
}"""


class Server(NamedTuple):
    """The process that replays, and the page that shows its memory."""

    process: subprocess.Popen[str]
    replayed: Replayed
    address: str


DATA = [
    pytest.param(SYNTHETIC, id="synthetic"),
    pytest.param(
        Path(GIVEN),
        id="given",
        marks=pytest.mark.skipif(not GIVEN, reason="REMORA_CONVERSATIONS names no file"),
    ),
]


@pytest.fixture(scope="module", params=DATA)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One for all tests that change nothing."""
    with replaying(tmp_path_factory.mktemp("view") / "memory", request.param) as server:
        yield server


@contextmanager
def replaying(directory: Path, data: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.replaying", str(directory), str(data)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            replayed = msgspec.json.decode(process.stdout.readline(), type=Replayed)
            with served(directory, "--allow-changes", **ENVIRONMENT) as address:
                yield Server(process, replayed, address)
        finally:
            process.stdin.close()
            process.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened(browser, server.address, **getattr(request, "param", WAYS["light"])) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        yield page


SHOWN = {"session-light", "memory-dark", "session-narrow"}


def take_picture(page: Any, name: str) -> None:
    """Make a picture of the docs, if it is one of them, of remora's own conversations."""
    if PICTURES and name in SHOWN and not GIVEN:
        page.evaluate("document.activeElement.blur()")
        page.locator("header").evaluate("one => { one.style.display = 'none'; }")  # has a path
        page.screenshot(path=Path(PICTURES) / f"view-{name}.png")
        page.locator("header").evaluate("one => { one.style.display = ''; }")


def figures(text: str) -> list[int]:
    return [int(one.replace(",", "")) for one in text.split() if one.replace(",", "").isdigit()]


def test_users_and_sessions(page: Any, server: Server) -> None:
    """By last use, searched, live or not; the page follows what the server does."""
    for place in range(1, 5):
        page.wait_for_selector(f"#users li:nth-child({place}):has-text('writer ')")
    page.fill("#users-search", "writer 1")
    page.wait_for_selector("#users li:only-child")
    page.locator("#users a").first.click()
    page.wait_for_selector("#users", state="hidden")  # its place is that of the sessions
    page.wait_for_selector("#sessions a >> text=in memory")
    newest = page.locator("#sessions a bdi").first.inner_text()
    page.wait_for_selector(f"#sessions li:first-child:not(:has-text('{newest}'))")
    page.fill("#sessions-search", "live 0")
    page.wait_for_selector("#sessions li:first-child:has-text('live 0')")


def test_the_strip(page: Any, server: Server) -> None:
    """Cells in the colours of their states with both watermarks; a click shows the message."""
    visit(page, server.replayed.user, "held")
    strip = page.locator(".strip")
    found = page.evaluate(
        "user => fetch(`/api/session?user=${encodeURIComponent(user)}&session=held`)"
        ".then((answer) => answer.json())",
        server.replayed.user,
    )
    marks, last = found["watermarks"], found["last_seq"]
    colours = strip.evaluate(COLOURS)
    assert len(set(colours.values())) == 5
    archived, summarizing = marks["archived_through"], marks["summarizing_through"]
    assert 1 < archived < summarizing < last
    strip.evaluate("one => { one.scrollTop = 0; }")
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")

    def cell(seq: int) -> list[str]:
        return list(page.evaluate(CELL, [strip.element_handle(), seq]))

    assert [cell(seq)[0] for seq in (1, archived, archived + 1, summarizing, last)] == [
        colours[name] for name in ("archived", "archived", "summarizing", "summarizing", "buffer")
    ]
    indexing = marks["indexing_through"]
    assert 0 < indexing < last
    assert cell(indexing)[1] == colours["indexed"]
    assert cell(indexing + 1)[1] != colours["indexed"]
    assert cell(archived)[2] == cell(indexing)[2] == colours["chosen"]
    assert f"being summarized through {summarizing}" in page.inner_text(".marks")

    visit(page, server.replayed.user, "whole")
    texts = server.replayed.texts
    strip = page.locator(".strip")
    assert strip.get_attribute("aria-valuemax") == str(len(texts))
    strip.evaluate("one => { one.scrollTop = 0; }")
    strip.locator("canvas").click(position={"x": 2 * 14 + 6, "y": 6})
    page.wait_for_selector("h3:text-is('Message 3')")
    assert page.locator(".message pre.text").first.text_content() == texts[2]
    assert "message 3, archived" in strip.get_attribute("aria-valuetext")
    assert "token" in page.inner_text(".message")
    assert MODEL in page.inner_text(".message h3:text-is('The summary that covers it') ~ p")
    page.keyboard.press("End")
    page.wait_for_selector(f"h3:text-is('Message {len(texts)}')")
    assert "in the buffer" in strip.get_attribute("aria-valuetext")
    assert "buffer, not indexed yet" in page.inner_text(".message")


def test_what_the_model_sees(page: Any, server: Server) -> None:
    """The bar has each source's share of the budget; both sliders, and what is left out and why."""
    visit(page, server.replayed.user, "whole")
    page.fill("#query", server.replayed.texts[0][:60])
    page.wait_for_selector(".stack .part.long_term")
    sizes = figures(page.inner_text("#context-size"))
    total, budget, parts = sizes[0], sizes[1], sizes[2:]
    assert total == sum(parts[: page.locator(".stack .part").count()]) <= budget == 600
    shares = page.locator(".stack .part").evaluate_all(
        "(all) => all.map((one) => parseFloat(one.style.width))"
    )
    assert sum(shares) == pytest.approx(100 * total / budget, abs=0.5)
    page.fill("#query", "")
    page.wait_for_selector(".stack:not(:has(.long_term))")
    page.locator("#budget").fill("150")
    page.wait_for_selector("text=of 150 tokens")
    recent = page.locator("#context .sources li", has_text="recent").first.inner_text()
    assert "token" in recent  # how much was omitted of it
    assert page.locator("#context .sources li", has_text="user profile").count() == 1
    assert page.locator("#context .gap", has_text="in the summary").count() == 1
    page.locator("#at").focus()
    page.keyboard.press("Home")
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("output[for=at]:text-is('5')")
    page.wait_for_selector(".stack:not(:has(.summary))")
    assert 1 <= figures(page.inner_text("#context .order"))[0] <= 5


def test_recall_is_explained(page: Any, server: Server) -> None:
    """A bar for each score, the best memory first, and a reason for each that is left out."""
    visit(page, server.replayed.user, "whole")
    show(page, "recall")
    asked = server.replayed.texts[4]
    page.fill("#question", asked[:200])
    page.fill("#limit", "5")
    page.press("#question", "Enter")
    page.wait_for_selector("#recall .hit")
    first = page.locator("#recall .hit").first
    labels = ["score", "turn: words", "window: words near it", "vector: meaning"]
    assert first.locator("dt").all_inner_texts() == labels
    assert first.locator(".rank").inner_text() == "1"
    assert asked[:40] in first.inner_text()
    bars = first.locator(".bar .fill").evaluate_all(
        "(all) => all.map((one) => parseFloat(one.style.width))"
    )
    assert len(bars) == 4
    assert bars[0] == 100
    assert all(0 < one <= 100 for one in bars)
    reasons = page.locator("#recall .reason").all_inner_texts()
    assert "below the limit of 5" in reasons
    assert page.locator("#recall .left-out").count() == len(reasons)
    assert page.locator("#recall .hit").count() == 5 + sum("limit" in one for one in reasons)
    page.click("#recall button >> text=show in the context")
    page.wait_for_selector("#context .stack .long_term")
    assert page.input_value("#query") == asked[:200]


def test_compactions(page: Any, server: Server) -> None:
    """Messages before, summary after, tokens in and out, model, seconds; fallbacks are marked."""
    visit(page, server.replayed.user, "whole")
    show(page, "compactions")
    newest = page.locator("#compactions details").first
    title = newest.locator("summary").inner_text()
    assert f"by {MODEL}" in title
    assert "from " in title
    assert " ms" in title or " s" in title.split(", in ")[1]
    into, out = figures(title.split("from ")[1])[0], figures(title.split(", ")[1])[0]
    assert 0 < out < into
    newest.locator("summary").click()
    page.wait_for_selector("#compactions .before .text")
    last = newest.locator(".before .text").last.text_content()
    assert any(text.startswith(last) for text in server.replayed.texts)  # long ones are cut
    assert len(last) > 10
    assert "They spoke about" in newest.locator(".two > div").last.inner_text()
    visit(page, server.replayed.user, "fallback")
    show(page, "compactions")
    page.wait_for_selector("#compactions details.degraded")
    degraded = page.locator("#compactions details.degraded summary").first.inner_text()
    assert "fallback: the model failed" in degraded


def test_health(page: Any, server: Server) -> None:
    """Figures of the process as sparklines over the last minutes."""
    page.click("header .name")
    page.wait_for_selector("#health svg.spark")
    assert f"process {server.replayed.pid}" in page.inner_text("#health")
    labels = page.locator("#health .figures li > .quiet").all_inner_texts()
    for name in ("append p50", "append p99", "load p50", "commits a second", "refused", "too late"):
        assert any(name in one for one in labels)
    page.wait_for_selector("#health polyline[points*=' ']", state="attached")
    rate = page.locator("#health li", has_text="writes a second").locator("strong").inner_text()
    assert float(rate.replace(",", "")) > 0


@pytest.mark.parametrize("page", EACH_WAY, indirect=True)
def test_everybody_can_use_it(page: Any, server: Server, request: pytest.FixtureRequest) -> None:
    """Nothing is wider than the window; rules of axe-core: test_view_browser."""
    way = request.node.callspec.params["page"]
    name = next(name for name, one in WAYS.items() if one == way)
    page.click("header .name")
    page.wait_for_selector("#health svg.spark")
    page.wait_for_selector("#jobs .jobs li")
    assert not is_wider(page)
    take_picture(page, f"memory-{name}")
    visit(page, server.replayed.user, "held")
    page.locator(".strip").focus()
    page.keyboard.press("Home")
    page.wait_for_selector("text=The summary that covers it")
    show(page, "context")
    page.fill("#query", server.replayed.texts[4][:80])
    page.wait_for_selector("#context .stack .long_term")
    take_picture(page, f"session-{name}")
    show(page, "recall")
    page.fill("#question", server.replayed.texts[4][:80])
    page.press("#question", "Enter")
    page.wait_for_selector("#recall .hit")
    assert not is_wider(page)
    show(page, "compactions")
    page.locator("#compactions details summary").first.click()
    assert not is_wider(page)


@pytest.mark.parametrize("data", DATA)
def test_jobs_and_erasure(browser: Any, tmp_path: Path, data: Path) -> None:
    """The server, which goes on, retries, drops and erases; a job that runs is seen to end."""
    with (
        replaying(tmp_path / "memory", data) as server,
        opened(browser, server.address, **WAYS["light"]) as page,
    ):
        page.on("dialog", lambda dialog: dialog.accept())
        change(page, server)


def change(page: Any, server: Server) -> None:
    page.click("header .name")
    page.locator("#jobs li", has_text="running").locator("text=held").first.wait_for()
    dead = page.locator("#jobs li", has=page.get_by_role("button", name="retry"))
    assert dead.count() == server.replayed.dead
    assert "ValueError" in dead.first.inner_text()
    dead.first.get_by_role("button", name="drop").click()
    page.wait_for_selector("text=1 dead letter dropped")
    dead.first.get_by_role("button", name="retry").click()
    page.wait_for_selector("text=1 dead letter put back into its queue")
    visit(page, server.replayed.user, "held")
    assert server.process.stdin is not None
    server.process.stdin.write("go\n")
    server.process.stdin.flush()
    page.wait_for_selector(".marks:not(:has-text('being summarized'))")
    visit(page, server.replayed.user, "talk 0")
    show(page, "erasure")
    page.locator("#erasure button", has_text="erase this session").click()
    page.wait_for_selector("#erasure table")
    receipt = page.locator("#erasure tr", has_text="messages").inner_text()
    assert figures(receipt) == [6]
    assert server.process.poll() is None
    page.goto(f"{server.address.partition('?')[0]}#/writer%202")
    page.wait_for_selector("#sessions a >> text=in memory")
