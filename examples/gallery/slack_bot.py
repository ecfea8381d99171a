"""A bot for Slack: signed events, an answer within three seconds, retries, and memory by channel.

``pip install fastapi uvicorn httpx "./remora"``, then, in the clone,
``SLACK_SIGNING_SECRET=… SLACK_BOT_TOKEN=… uvicorn examples.gallery.slack_bot:app``. Let Slack send
the events ``app_mention`` and ``message.im`` to /slack/events.

A channel is a user of the memory, so what was said in it is recalled in each of its threads, and in
no other channel. A thread is a session. An event is acknowledged when it is stored; the reply
follows, after a crash as well. An event that Slack sends again is answered once. The bot posts a
reply twice only if it crashes between the post and the note that it was made.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import logging
import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
from anyio.abc import TaskGroup
from fastapi import FastAPI, HTTPException, Request

import remora
from examples.fastapi_server import probe, refuse
from examples.gallery.model import think

Event = dict[str, Any]

logger = logging.getLogger(__name__)

FRESH_S = 300  # an older request may have been recorded by somebody, and sent again
KEPT_S = 3_600  # longer than Slack sends an event again
RETRY_S = (1, 5, 30, 300)


class Bot:
    def __init__(self, runtime: remora.Runtime, slack: httpx.AsyncClient, tasks: TaskGroup) -> None:
        self._runtime, self._slack, self._tasks = runtime, slack, tasks
        self._inbox = runtime.user("slack").state  # no channel is called that: theirs have a slash

    async def start(self) -> None:
        """Go on with the events that were stored, and not answered, when the process ended."""
        for one in await self._inbox.items(prefix="todo/"):
            self._tasks.start_soon(self._answer, one.key.removeprefix("todo/"), one.value)

    async def accept(self, key: str, event: Event) -> None:
        """Store an event, and begin to answer it, unless it was sent before."""
        new = {f"todo/{key}": 0, f"done/{key}": 0}
        try:
            await self._inbox.change({f"todo/{key}": event}, versions=new)
        except remora.errors.StateConflict:
            return
        self._tasks.start_soon(self._answer, key, event)

    async def _answer(self, key: str, event: Event) -> None:
        for pause_s in (*RETRY_S, None):
            try:
                await self._reply(key, event)
            except (OSError, httpx.HTTPError, remora.errors.RemoraError) as problem:
                # without its text, which may quote the event
                logger.warning("event %s: %s", key, type(problem).__name__)
                if pause_s is None:
                    return  # it is in the inbox, for the next start
                await anyio.sleep(pause_s)
            else:
                return

    async def _reply(self, key: str, event: Event) -> None:
        channel = self._runtime.user(f"{event['team']}/{event['channel']}")
        said = {"role": "user", "name": event["user"], "content": event["text"]}
        async with channel.session(event["thread"]).turn(said, key=key) as turn:
            if not turn.replayed:
                async for _ in turn.stream(think(turn.context.messages)):
                    pass
            await self._post(event, str(turn.replies[-1].content))
        old = [
            one.key
            for one in await self._inbox.items(prefix="done/", limit=50)
            if int(one.key.split("/")[1]) < time.time() - KEPT_S
        ]
        await self._inbox.change({f"done/{key}": True}, delete=[f"todo/{key}", *old])

    async def _post(self, event: Event, text: str) -> None:
        text = html.escape(text, quote=False)  # no reply mentions everybody: <!channel>
        body = {"channel": event["channel"], "thread_ts": event["thread"], "text": text}
        answer = (await self._slack.post("chat.postMessage", json=body)).raise_for_status().json()
        if not answer["ok"]:
            raise OSError(f"Slack refuses the reply: {answer.get('error')}")


async def check_signature(http: Request) -> None:
    """Refuse what Slack has not signed in the last minutes."""
    sent_at = http.headers.get("X-Slack-Request-Timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > FRESH_S:
        raise HTTPException(401, "the request is too old")
    signed = f"v0:{sent_at}:".encode() + await http.body()
    expected = f"v0={hmac.new(http.app.state.secret, signed, hashlib.sha256).hexdigest()}"
    given = http.headers.get("X-Slack-Signature", "")
    if not hmac.compare_digest(expected.encode(), given.encode()):
        raise HTTPException(401, "the signature is wrong")


async def receive(http: Request) -> dict[str, str]:
    await check_signature(http)
    body = await http.json()
    if body["type"] == "url_verification":
        return {"challenge": body["challenge"]}
    event = body.get("event", {})
    is_asked = event.get("type") == "app_mention" or event.get("channel_type") == "im"
    if is_asked and not event.get("bot_id") and not event.get("subtype"):  # never its own words
        text = html.unescape(re.sub(r"<@\w+>\s*", "", event["text"]))
        asked = {
            "team": body["team_id"],
            "channel": event["channel"],
            "thread": event.get("thread_ts", event["ts"]),
            "user": event["user"],
            "text": text,
        }
        await http.app.state.bot.accept(f"{body['event_time']}/{body['event_id']}", asked)
    return {}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    app.state.secret = os.environ["SLACK_SIGNING_SECRET"].encode()
    if not app.state.secret:
        raise ValueError("SLACK_SIGNING_SECRET is empty: everybody could sign")
    # the longest message, as JSON, and the events of an hour
    inbox = {"REMORA_STATE__MAX_VALUE_BYTES": "262144", "REMORA_STATE__MAX_KEYS": "20000"}
    config = remora.Config.from_environment({**inbox, **os.environ})
    slack = httpx.AsyncClient(
        base_url=os.environ.get("SLACK_API", "https://slack.com/api/"),
        headers={"Authorization": f"Bearer {os.environ['SLACK_BOT_TOKEN']}"},
    )
    directory = os.environ.get("MEMORY_DIR", "slack-memory")
    async with (
        remora.Runtime(directory, config=config) as app.state.runtime,
        slack,
        anyio.create_task_group() as tasks,
    ):
        app.state.bot = Bot(app.state.runtime, slack, tasks)
        await app.state.bot.start()
        yield
        tasks.cancel_scope.cancel()  # what is not answered is in the inbox


app = FastAPI(lifespan=lifespan)
app.post("/slack/events")(receive)
app.get("/livez")(probe)
app.get("/readyz")(probe)
app.exception_handler(remora.errors.RemoraError)(refuse)
