# Written by tools/blocking.py.
# ruff: noqa: A002 - parameters have the names that the async methods give them

import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from remora.actors.blocks.base import BlocksLike
from remora.actors.policies.buffer import PolicyLike
from remora.actors.policies.pruning import PruningStrategy
from remora.actors.session.messages import SessionView
from remora.actors.user.messages import Right, Synopsis, UserView
from remora.api.build import Internals
from remora.api.deletion import Deletable
from remora.api.health import Health
from remora.api.keyed_state import StateValue
from remora.api.memories import MemoryLike
from remora.api.options import JournalLike
from remora.api.runtime import Runtime as _AsyncRuntime
from remora.api.session import BufferHit
from remora.api.status import RuntimeStatistics
from remora.api.turn import Chunk, OnInterrupt, Query, ReadChunk, Spoken
from remora.api.user import WorkingHit
from remora.cluster.connected import ConnectedRuntime as _Connected
from remora.config import Config
from remora.errors import RemoraError
from remora.ids import SessionKey
from remora.maintenance.backup import BackupReport
from remora.messages import ChatDict, Message, MessageLike, Receipt, Role, ToolCall
from remora.models.ports import ChatModelLike, EmbedderLike, RerankerLike, Summarizer
from remora.recall.context import Context
from remora.recall.found_sessions import FoundSession
from remora.recall.memory import Memory
from remora.runtime.clock import Clock
from remora.runtime.concurrency import Progress
from remora.runtime.jobs import Job
from remora.services.archive import SessionStatistics, UserStatistics
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.export.transfer import SessionExport, TransferReport
from remora.storage.listing import ListingOrder
from remora.storage.ports import (
    JournalCounts,
    LongTermStatistics,
    LongTermStore,
    SessionListing,
    UserListing,
)
from remora.tokens import TokenCounter

__all__ = [
    "Agent",
    "Exclusive",
    "KeyedState",
    "MemoryTools",
    "Runtime",
    "Session",
    "SharedMember",
    "SharedScope",
    "Turn",
    "User",
    "connect",
    "view",
]

class MemoryTools:
    def anthropic(self) -> list[Any]: ...
    def call(self, name: str, arguments: str | Mapping[str, Any]) -> str: ...
    def correct_memory(self, memory_id: str, content: str) -> dict[str, Any]: ...
    def delete_from_memory(self, memory_ids: list[str]) -> dict[str, Any]: ...
    def gemini(self) -> list[Any]: ...
    def openai(self) -> list[Any]: ...
    def read_message(self, number: int, part: int = ...) -> dict[str, Any]: ...
    def recall_from_memory(self, keywords: list[str], limit: int = ...) -> dict[str, Any]: ...
    def responses(self) -> list[Any]: ...
    def save_to_memory(self, thinking: str, content: list[str]) -> dict[str, Any]: ...
    def specs(self) -> list[dict[str, Any]]: ...

class SharedMember:
    def claim(self) -> None: ...
    def delete(self, which: Deletable | Iterable[Deletable]) -> DeletionReceipt: ...
    def forget(self) -> ErasureReceipt: ...
    def grant(self, to: str, right: Right = ...) -> None: ...
    def members(self) -> dict[str, str]: ...
    def memories(
        self, types: str | Iterable[str] | None = ..., *, limit: int | None = ...
    ) -> list[Memory]: ...
    def memory(self, id: str) -> Memory | None: ...
    def recall(
        self,
        query: str,
        *,
        limit: int = ...,
        types: str | Iterable[str] | None = ...,
        by: str | None = ...,
    ) -> list[Memory]: ...
    def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = ...,
        importance: float | None = ...,
    ) -> list[str]: ...
    def revoke(self, to: str) -> None: ...
    @property
    def scope(self) -> str: ...
    def settle(self) -> None: ...
    def update_memory(
        self,
        id: str,
        content: str | None = ...,
        *,
        importance: float | None = ...,
        metadata: Mapping[str, Any] | None = ...,
    ) -> Memory: ...
    @property
    def who(self) -> str: ...

class SharedScope:
    def as_(self, who: str) -> SharedMember: ...
    @property
    def name(self) -> str: ...

class Turn:
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    @property
    def context(self) -> Context: ...
    @property
    def key(self) -> str | None: ...
    def load(
        self, query: Query = ..., *, max_tokens: int | None = ..., timeout_s: float | None = ...
    ) -> Context: ...
    @property
    def open_calls(self) -> list[ToolCall]: ...
    @property
    def replayed(self) -> bool: ...
    @property
    def replies(self) -> list[Message]: ...
    def reply(self, messages: Spoken, *, timeout_s: float | None = ...) -> Receipt: ...
    @property
    def resumed(self) -> bool: ...
    def stream(
        self,
        chunks: Iterable[Chunk],
        *,
        read: ReadChunk | None = ...,
        on_interrupt: OnInterrupt = ...,
    ) -> Generator[Chunk]: ...

class Exclusive:
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

class KeyedState:
    def change(
        self,
        put: Mapping[str, object],
        *,
        delete: Iterable[str] = ...,
        versions: Mapping[str, int] | None = ...,
    ) -> dict[str, StateValue]: ...
    def delete(self, key: str, *, version: int | None = ...) -> bool: ...
    def get(self, key: str) -> StateValue | None: ...
    def get_many(self, keys: Iterable[str]) -> dict[str, StateValue]: ...
    def items(
        self,
        *,
        prefix: str = ...,
        limit: int | None = ...,
        after: str | None = ...,
        backward: bool = ...,
    ) -> list[StateValue]: ...
    def set(self, key: str, value: object, *, version: int | None = ...) -> StateValue: ...

class Session:
    def append(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        key: str | None = ...,
        allow_duplicates: bool = ...,
        replace: bool = ...,
        timeout_s: float | None = ...,
    ) -> Receipt: ...
    def clear(self, *, timeout_s: float | None = ...) -> int: ...
    def contents(
        self, *, summary_prefix: str | None = ...
    ) -> tuple[list[ChatDict], list[Message]]: ...
    def delete(
        self,
        which: Deletable | Iterable[Deletable] = ...,
        *,
        positions: int | Iterable[int] | None = ...,
    ) -> DeletionReceipt: ...
    def exclusive(self) -> Exclusive: ...
    def export(self) -> SessionExport: ...
    def flush(self, *, timeout_s: float | None = ...) -> int: ...
    def follow(self, *, after: int | None = ...) -> Generator[Message]: ...
    def forget(self) -> ErasureReceipt: ...
    def fork(self, session: str, *, at: int | None = ...) -> Self: ...
    def get_messages(
        self,
        role: Role | None = ...,
        *,
        filter_metadata: Mapping[str, Any] | None = ...,
        limit: int | None = ...,
    ) -> list[Message]: ...
    def history(
        self,
        *,
        include_archived: bool = ...,
        at: int | None = ...,
        after: int = ...,
        limit: int | None = ...,
        attachments: bool = ...,
    ) -> list[Message]: ...
    def inspect(self) -> SessionView: ...
    @property
    def key(self) -> SessionKey: ...
    def load(
        self,
        query: str | None = ...,
        *,
        max_tokens: int | None = ...,
        override: Sequence[MessageLike] | None = ...,
        messages: Sequence[MessageLike] | None = ...,
        at: int | None = ...,
        timeout_s: float | None = ...,
    ) -> Context: ...
    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = ...) -> Receipt: ...
    def rewind(self, to: int) -> int: ...
    def search(
        self, query: str, limit: int = ..., *, semantic: bool | None = ...
    ) -> list[BufferHit]: ...
    def settle(self) -> None: ...
    def size(self) -> int: ...
    @property
    def state(self) -> KeyedState: ...
    def state_dict(self) -> dict[str, Any]: ...
    def stats(self) -> SessionStatistics: ...
    def truncate_to_size(self, keep: int) -> int: ...
    def turn(
        self,
        message: Spoken,
        *,
        key: str | None = ...,
        query: Query = ...,
        max_tokens: int | None = ...,
        timeout_s: float | None = ...,
    ) -> Turn: ...

class Agent:
    def delete(
        self, which: Deletable | Iterable[Deletable], *, saved_only: bool = ...
    ) -> DeletionReceipt: ...
    def memories(
        self,
        types: str | Iterable[str] | None = ...,
        *,
        order: Literal["created", "importance"] = ...,
        limit: int | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[Memory]: ...
    def memory(
        self, id: str | None = ..., *, key: str | None = ..., agent: str | None = ...
    ) -> Memory | None: ...
    @property
    def name(self) -> str: ...
    def recall(
        self,
        query: str,
        *,
        limit: int = ...,
        types: str | Iterable[str] | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
        where: Mapping[str, Any] | None = ...,
    ) -> list[Memory]: ...
    def recall_many(
        self,
        queries: Iterable[str],
        *,
        limit: int = ...,
        types: str | Iterable[str] | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[list[Memory]]: ...
    def record(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[str]: ...
    def record_many(
        self,
        conversations: Iterable[MessageLike | Iterable[MessageLike]],
        *,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[list[str]]: ...
    def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = ...,
        importance: float | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
        key: str | None = ...,
        metadata: Mapping[str, Any] | None = ...,
        replace: bool = ...,
    ) -> list[str]: ...
    def remembered(
        self,
        *,
        where: Mapping[str, Any] | None = ...,
        types: str | Iterable[str] | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
        limit: int | None = ...,
        after: str | None = ...,
    ) -> list[Memory]: ...
    def settle(self) -> None: ...
    def tools(
        self,
        *,
        agent: str | None = ...,
        session: str | None = ...,
        edit: bool = ...,
        read: bool = ...,
    ) -> MemoryTools: ...
    def update_memory(
        self,
        id: str,
        content: str | None = ...,
        *,
        importance: float | None = ...,
        metadata: Mapping[str, Any] | None = ...,
    ) -> Memory: ...
    @property
    def user(self) -> str: ...

class User:
    def agent(self, agent: str) -> Agent: ...
    def append_many(
        self, messages: Mapping[str, MessageLike | Iterable[MessageLike]]
    ) -> dict[str, Receipt]: ...
    def delete(
        self, which: Deletable | Iterable[Deletable], *, saved_only: bool = ...
    ) -> DeletionReceipt: ...
    def export_arrow(self, *, types: str | Iterable[str] | None = ...) -> Any: ...
    def find_sessions(self, query: str, *, limit: int = ...) -> list[FoundSession]: ...
    def forget(self) -> ErasureReceipt: ...
    @property
    def id(self) -> str: ...
    def import_session(self, export: SessionExport, *, session: str | None = ...) -> Session: ...
    def inspect(self) -> UserView: ...
    def instructions(self) -> list[Memory]: ...
    def learn(
        self, text: str | Iterable[str], *, source: str = ..., session: str = ...
    ) -> list[str]: ...
    def memories(
        self,
        types: str | Iterable[str] | None = ...,
        *,
        order: Literal["created", "importance"] = ...,
        limit: int | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[Memory]: ...
    def memory(
        self, id: str | None = ..., *, key: str | None = ..., agent: str | None = ...
    ) -> Memory | None: ...
    def prune(
        self,
        *,
        keep: int | None = ...,
        strategy: PruningStrategy | None = ...,
        max_age_s: float | None = ...,
        types: str | Iterable[str] | None = ...,
        wait: bool = ...,
    ) -> None: ...
    def recall(
        self,
        query: str,
        *,
        limit: int = ...,
        types: str | Iterable[str] | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
        where: Mapping[str, Any] | None = ...,
    ) -> list[Memory]: ...
    def recall_many(
        self,
        queries: Iterable[str],
        *,
        limit: int = ...,
        types: str | Iterable[str] | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[list[Memory]]: ...
    def record(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[str]: ...
    def record_many(
        self,
        conversations: Iterable[MessageLike | Iterable[MessageLike]],
        *,
        session: str | None = ...,
        agent: str | None = ...,
    ) -> list[list[str]]: ...
    def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = ...,
        importance: float | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
        key: str | None = ...,
        metadata: Mapping[str, Any] | None = ...,
        replace: bool = ...,
    ) -> list[str]: ...
    def remembered(
        self,
        *,
        where: Mapping[str, Any] | None = ...,
        types: str | Iterable[str] | None = ...,
        session: str | None = ...,
        agent: str | None = ...,
        limit: int | None = ...,
        after: str | None = ...,
    ) -> list[Memory]: ...
    def search_working(
        self, query: str, limit: int = ..., session: str | None = ...
    ) -> list[WorkingHit]: ...
    def session(self, session: str) -> Session: ...
    def sessions(
        self,
        *,
        prefix: str = ...,
        order: ListingOrder = ...,
        limit: int | None = ...,
        after: str | None = ...,
        empty: bool = ...,
    ) -> Sequence[SessionListing]: ...
    def settle(self) -> None: ...
    @property
    def state(self) -> KeyedState: ...
    def stats(self) -> UserStatistics: ...
    def synopsis(self, *, refresh: bool = ..., timeout_s: float | None = ...) -> Synopsis: ...
    def tools(
        self,
        *,
        agent: str | None = ...,
        session: str | None = ...,
        edit: bool = ...,
        read: bool = ...,
    ) -> MemoryTools: ...
    def update_memory(
        self,
        id: str,
        content: str | None = ...,
        *,
        importance: float | None = ...,
        metadata: Mapping[str, Any] | None = ...,
    ) -> Memory: ...

class Runtime:
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def __init__(
        self,
        directory: str | Path | Config | None = ...,
        *,
        config: Config | None = ...,
        chat_model: ChatModelLike | None = ...,
        summarizer: Summarizer | None = ...,
        embedder: EmbedderLike | None = ...,
        reranker: RerankerLike | None = ...,
        store: LongTermStore | None = ...,
        counter: TokenCounter | None = ...,
        policy: PolicyLike | None = ...,
        blocks: BlocksLike | None = ...,
        redact: Callable[[str], str] | None = ...,
        redact_long_term: Callable[[str], str] | None = ...,
        reembed: bool = ...,
        scorer: Callable[[ChatDict], float] | None = ...,
        journal: JournalLike | None = ...,
        clock: Clock | None = ...,
        rng: random.Random | None = ...,
    ) -> None: ...
    def aclose(self) -> None: ...
    def append_many(
        self,
        batches: Iterable[tuple[Session, MessageLike | Iterable[MessageLike], str | None]],
        *,
        concurrency: int = ...,
    ) -> list[Receipt | RemoraError]: ...
    def backup(self, dest: str | Path, *, progress: Progress | None = ...) -> BackupReport: ...
    def close(self) -> None: ...
    @property
    def config(self) -> Config: ...
    def counts(self, user: str | None = ...) -> JournalCounts: ...
    def dead_letters(self) -> list[Job]: ...
    def drop_dead_letters(self, ids: Sequence[str]) -> int: ...
    def erasures(self, user: str | None = ...) -> list[WaitingErasure]: ...
    def export(
        self, path: str | Path, *, overwrite: bool = ..., progress: Progress | None = ...
    ) -> TransferReport: ...
    @classmethod
    def from_file(
        cls, path: str | Path, *, secrets: Mapping[str, str] | None = ..., **options: Any
    ) -> Self: ...
    def health(self) -> Health: ...
    def import_(
        self, path: str | Path, *, skip_existing: bool = ..., progress: Progress | None = ...
    ) -> TransferReport: ...
    @classmethod
    def in_memory(cls, **options: Any) -> Self: ...
    @property
    def internals(self) -> Internals: ...
    def long_term_statistics(self) -> LongTermStatistics: ...
    def message_tokens(self, message: MessageLike) -> int: ...
    @property
    def path(self) -> Path | None: ...
    def ready(self, *, timeout_s: float | None = ...) -> None: ...
    def reembedded(self, progress: Progress | None = ...) -> None: ...
    @property
    def reembedding(self) -> ReembedProgress | None: ...
    def reschedule(self, task: str, seconds: float) -> None: ...
    def retry_dead_letters(self, ids: Sequence[str] | None = ...) -> int: ...
    def retry_erasures(self) -> list[WaitingErasure]: ...
    def session(self, user: str, session: str) -> Session: ...
    def settle(self) -> None: ...
    def shared(self, name: str) -> SharedScope: ...
    def start(self) -> Self: ...
    def statistics(self) -> RuntimeStatistics: ...
    def user(self, user: str) -> User: ...
    def users(
        self,
        *,
        prefix: str = ...,
        order: ListingOrder = ...,
        limit: int | None = ...,
        after: str | None = ...,
    ) -> Sequence[UserListing]: ...

def connect(target: str | Path) -> Runtime: ...
def view(runtime: _AsyncRuntime | _Connected) -> Runtime: ...
