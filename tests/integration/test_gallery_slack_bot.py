"""The Slack bot of the gallery, with a Slack on the loopback interface."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.endpoints import Handler, listening
from tests.gallery import App, running_app
from tests.patience import wait_until

pytestmark = pytest.mark.blocking
SECRET = "the secret of a test"


class Slack:
    """What Slack is to a bot: it signs events, sends them, and takes posts, unless it is down."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, str, str]] = []
        self.refused = 0
        self.is_down = False
        self.variables: dict[str, str] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        slack = self

        class Api(Handler):
            def answer(self) -> None:
                post = self.body()
                assert (self.path, self.headers["Authorization"]) == (
                    "/chat.postMessage",
                    "Bearer a-token",
                )
                slack.refused += slack.is_down
                if not slack.is_down:
                    slack.posts.append((post["channel"], post["thread_ts"], post["text"]))
                self.send_json(b'{"ok": true}', 503 if slack.is_down else 200)

        with listening(Api) as address:
            self.variables = {
                "SLACK_API": f"{address}/",
                "SLACK_BOT_TOKEN": "a-token",
                "SLACK_SIGNING_SECRET": SECRET,
            }
            yield

    def posted(self, count: int) -> list[tuple[str, str, str]]:
        """All posts, once there are so many."""
        wait_until(lambda: len(self.posts) >= count, f"{count} posts")
        return self.posts


def send(
    app: App, body: Any, *, secret: str = SECRET, age_s: int = 0, retry: int = 0
) -> httpx.Response:
    content, sent_at = json.dumps(body).encode(), str(int(time.time()) - age_s)
    signed = f"v0:{sent_at}:".encode() + content
    signature = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    signing = {"X-Slack-Request-Timestamp": sent_at, "X-Slack-Signature": f"v0={signature}"}
    if retry:
        signing["X-Slack-Retry-Num"] = str(retry)
    return httpx.post(f"{app.address}/slack/events", content=content, headers=signing, timeout=None)


def mention(number: int, text: str, channel: str = "C1", thread: str = "1.0") -> dict[str, Any]:
    event = {
        "type": "app_mention",
        "user": "U7",
        "text": f"<@UBOT> {text}",
        "channel": channel,
        "ts": f"{number}.5",
        "thread_ts": thread,
    }
    about = {"team_id": "T1", "event_id": f"Ev{number}", "event_time": int(time.time())}
    return {"type": "event_callback", "event": event, **about}


@pytest.fixture
def slack() -> Iterator[Slack]:
    slack = Slack()
    with slack.listening():
        yield slack


def test_a_channel_and_its_threads(slack: Slack, tmp_path: Path) -> None:
    """Threads of a channel share what was said, channels do not; nobody is answered twice."""
    with running_app("slack_bot", tmp_path / "memory", **slack.variables) as app:
        hello = {"type": "url_verification", "challenge": "c"}
        assert send(app, hello).json() == {"challenge": "c"}
        assert send(app, mention(0, "Hi."), secret="another").status_code == 401
        assert send(app, mention(0, "Hi."), age_s=1_000).status_code == 401
        told = mention(1, "The launch is on Friday. &lt;!channel&gt;")
        assert send(app, told).status_code == 200
        assert slack.posted(1) == [("C1", "1.0", "Noted.")]
        assert send(app, told, retry=1).status_code == 200
        own = mention(2, "Noted.")
        own["event"]["bot_id"] = "B1"
        assert send(app, own).status_code == 200
        question = "When is the launch?"
        send(app, mention(3, question, thread="2.0"))
        known = "I know this: The launch is on Friday. &lt;!channel&gt;"
        assert slack.posted(2)[1:] == [("C1", "2.0", known)]
        send(app, mention(4, question, channel="C2"))
        assert slack.posted(3)[2:] == [("C2", "1.0", "I do not know that.")]


def test_an_event_that_was_accepted_is_answered_after_a_crash(slack: Slack, tmp_path: Path) -> None:
    """Slack takes no post, and the bot is killed: the next one posts the stored reply, once."""
    told = mention(1, "The launch is on Friday.")
    slack.is_down = True
    with running_app("slack_bot", tmp_path / "memory", **slack.variables) as app:
        assert send(app, told).status_code == 200
        wait_until(lambda: slack.refused, "the bot tries to post")
        app.process.kill()
        app.process.wait()
    slack.is_down = False
    with running_app("slack_bot", tmp_path / "memory", **slack.variables) as app:
        assert slack.posted(1) == [("C1", "1.0", "Noted.")]
        assert send(app, told, retry=2).status_code == 200
        send(app, mention(2, "When is the launch?"))
        assert slack.posted(2)[1:] == [("C1", "1.0", "I know this: The launch is on Friday.")]
