"""Google ADK: `DatabaseSessionService` on a SQLite file.

An append is `get_session` and `append_event`, as the runner does it. With a summarizer, a turn is
one `Runner.run_async` of an app with `EventsCompactionConfig(token_threshold=…)`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events import Event
from google.adk.flows.llm_flows.contents import (
    _process_compaction_events,
)  # what of the events a model is shown
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai.types import Content, Part

from benchmarks.lab.correctness.protocol import Setting, user_of

_NO_MEMORY = "sessions only: its memory service is fed by the application"
LACKS: Mapping[str, str] = {"deliveries": _NO_MEMORY, "strangers_secret": _NO_MEMORY}
_APP = "bench"


class _Model(BaseLlm):
    answer: Callable[[str], Awaitable[str]]

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: ARG002
    ) -> AsyncGenerator[LlmResponse, None]:
        prompt = "\n".join(
            part.text or "" for content in llm_request.contents for part in content.parts or []
        )
        yield LlmResponse(
            content=Content(role="model", parts=[Part(text=await self.answer(prompt))])
        )


async def _ok(_: str) -> str:
    return "ok"


def _texts(events: Sequence[Any]) -> list[str]:
    return [
        part.text
        for event in events
        if event.content
        for part in event.content.parts or []
        if part.text
    ]


class Adk:
    def __init__(self, directory: Path, setting: Setting) -> None:
        self._service = DatabaseSessionService(
            db_url=f"sqlite+aiosqlite:///{directory / 'sessions.db'}"
        )
        self._known: set[str] = set()
        self._runner: Runner | None = None
        if setting.summarize is not None:
            compaction = EventsCompactionConfig(
                token_threshold=setting.limit_tokens,
                event_retention_size=4,
                summarizer=LlmEventSummarizer(
                    llm=_Model(model="summarizer", answer=setting.summarize)
                ),
            )
            agent = LlmAgent(name="agent", model=_Model(model="agent", answer=_ok))
            app = App(name=_APP, root_agent=agent, events_compaction_config=compaction)
            self._runner = Runner(app=app, session_service=self._service)

    async def _session(self, session: str) -> Any:
        found = await self._service.get_session(
            app_name=_APP, user_id=user_of(session), session_id=session
        )
        if found is None and session not in self._known:
            self._known.add(session)
            found = await self._service.create_session(
                app_name=_APP, user_id=user_of(session), session_id=session
            )
        return found

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:
        handle = await self._session(session)
        for n, text in enumerate(texts):
            content = Content(role="user", parts=[Part(text=text)])
            if self._runner is not None:
                async for _ in self._runner.run_async(
                    user_id=user_of(session), session_id=session, new_message=content
                ):
                    pass
            else:
                event = Event(author="user", content=content)
                if key:
                    event.id = f"{key}-{n}"
                await self._service.append_event(handle, event)

    async def load(self, session: str, query: str = "") -> list[str]:  # noqa: ARG002
        handle = await self._session(session)
        return _texts(_process_compaction_events(handle.events))

    async def buffered(self, session: str) -> list[str]:
        return await self.load(session)

    async def kept(self, session: str) -> list[str]:
        handle = await self._session(session)
        return _texts(handle.events)

    async def delivered(self) -> list[str]:
        return []

    async def delete(self, user: str, sessions: Sequence[str]) -> None:
        for session in sessions:
            await self._service.delete_session(app_name=_APP, user_id=user, session_id=session)

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        await self._service.close()


async def opened(directory: Path, setting: Setting) -> Adk:
    """Open it."""
    return Adk(directory, setting)
