"""What can be pickled and copied: configurations and results; a memory and its handles cannot."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import remora
from remora import Config, blocking
from remora.errors import InvalidInput

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

BARE = Config.from_dict({"models": {"embedder": "none"}, "long_term": {"enabled": False}})
WAYS: tuple[Callable[[Any], Any], ...] = (copy.deepcopy, pickle.dumps)


def handles(memory: Any) -> Iterator[Any]:
    """Each kind of handle that a memory has, and itself."""
    user, session = memory.user("alice"), memory.session("alice", "one")
    scope = memory.shared("team")
    yield from (memory, user, session, session.turn("hi"), scope, scope.as_("alice"))
    yield from (session.state, user.state)
    if hasattr(user, "tools"):
        yield from (user.agent("cook"), user.tools(), session.exclusive())


async def test_handles_are_refused(tmp_path: Path) -> None:
    """With an error that says what to pass instead; of each face, open or not, also within what an
    application keeps.
    """
    opened = remora.Runtime.in_memory(config=BARE)
    memories: list[Any] = [
        remora.Runtime(tmp_path / "a", config=BARE),
        remora.connect(tmp_path / "b"),
        remora.Client("http://127.0.0.1:1", api_key="none"),
        blocking.Runtime(tmp_path / "c", config=BARE),
        opened,
    ]
    async with opened, opened.session("alice", "two").turn("hi") as entered:
        for memory in memories:
            for handle in (*handles(memory), entered):
                for way in WAYS:
                    for one in (handle, {"of an agent": [handle]}):
                        with pytest.raises(InvalidInput, match=r"runtime\.session\(user, session"):
                            way(one)


def test_configurations_are_pickled_and_copied() -> None:
    """One without a secret; a secret would be in the pickle in clear."""
    config = Config.from_dict({"recall": {"limit": 3}, "models": {"summarizer": "openai"}})
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    secret = Config.from_dict({"models": {"api_key": "sk-4711"}})
    assert copy.deepcopy(secret) == secret
    with pytest.raises(TypeError, match="set the secret in the environment") as caught:
        pickle.dumps(secret)
    assert "4711" not in str(caught.value)


async def test_results_are_pickled_and_copied() -> None:
    """They are plain data: contexts, messages, memories, receipts."""
    async with remora.Runtime.in_memory(config=BARE) as runtime:
        chat = runtime.session("alice", "one")
        results = [
            await chat.append({"role": "user", "content": "hi", "metadata": {"a": 1}}),
            await chat.load(),
            *await chat.history(),
            await chat.stats(),
            await runtime.user("alice").synopsis(),
        ]
    for one in results:
        assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
