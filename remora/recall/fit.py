"""Fit what was gathered into the budget, by one rule (G9).

1. Memory blocks of priority 0 are always shown, and standing instructions in their share.
2. The synopsis is shown if it fits into a quarter of the budget, without lines that a summary has.
3. Other memory blocks get their share of the budget, or more if the conversation leaves more.
4. The conversation gets what is left but for the share of recalled memories, by the rule of
   `remora.actors.session.window`: summaries, then the newest messages.
5. Recalled memories get their share, or more while the conversation is short. Nothing is recalled
   that the context says already.

Every piece is counted by the configured counter before it is taken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec

from remora.actors.blocks.fit import BlockView, FittedBlocks
from remora.actors.blocks.source import Source
from remora.actors.session.messages import Snapshot
from remora.actors.user.messages import ScoredItem, Synopsis
from remora.config import Config
from remora.messages import (
    ChatDict,
    Entry,
    decode_chat,
    decode_chats,
    join_contents,
    plain_text,
)
from remora.messages.text import counted
from remora.recall.context import (
    Context,
    Selection,
    conversation_range,
    newest_user,
    quoted_places,
)
from remora.recall.conversation import list_summaries, show_conversation
from remora.recall.gather import Gathered
from remora.recall.memory import Memory
from remora.recall.quotes import (
    LINE_TOKENS,
    instruction_line,
    instructions_text,
    recalled_text,
    synopsis_text,
    working_line,
)
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.probes import probe
from remora.tokens import TokenCounter, count_message

_SHORTEST_INSTRUCTION = 12  # tokens of its line
_LEAST_INSTRUCTIONS = 100  # tokens for them, of a small budget a fifth
_ENTRIES_ON_LOOP = 250  # each is compared with what was recalled: 2 ms
_BYTES_IN_THREAD = 500_000  # of messages, from which on comparing their texts is a thread's work


class _RecallLine(msgspec.Struct, frozen=True):
    """One recalled line, and where it came from.

    Attributes:
        words: what was said or noted, as `same_words` gives it.
        tokens: of that.
        memory: if it is from long-term memory.
        working: if it is from working memory.
    """

    words: str
    tokens: int
    memory: Memory | None = None
    working: ScoredItem | None = None

    def quote(self) -> str:
        """The line as it is shown."""
        if self.memory is not None:
            return self.memory.line
        assert self.working is not None
        return working_line(self.working)


class _RecallMessage(msgspec.Struct, frozen=True):
    """The recalled lines as a message; None if there are none.

    Attributes:
        message: with all lines.
        lines: those in it.
        tokens: of the message.
        left_out: lines that did not fit.
    """

    message: ChatDict | None = None
    lines: Sequence[_RecallLine] = ()
    tokens: int = 0
    left_out: Sequence[_RecallLine] = ()


class Surroundings(msgspec.Struct, frozen=True):
    """The parts of a context around the conversation.

    Attributes:
        synopsis: instructions and synopsis as a message; None for none.
        synopsis_source: what became of the synopsis.
        instructions_source: what became of the instructions.
        blocks: memory blocks.
        tokens: of both.
        profile_tokens: of the first.
        shows_profile: the message has the synopsis.
    """

    synopsis: ChatDict | None
    synopsis_source: Source
    instructions_source: Source
    blocks: FittedBlocks
    tokens: int
    profile_tokens: int
    shows_profile: bool = False


class ContextFitter:
    """Selects what goes into a context.

    Args:
        counter: the configured counter.
        config: shares of the budget.
        blocks: the session's memory blocks.
    """

    def __init__(self, counter: TokenCounter, config: Config, blocks: BlockView | None) -> None:
        self._counter = counter
        self._quoted_role = config.context.quoted_role
        self._recalled_at = config.recall.insert_method
        self._recall_reserve = config.recall.room
        self._instructions_share = config.context.instructions_share
        self._blocks_share = config.context.blocks_share if blocks is not None else 0.0
        self._blocks = blocks

    async def fit_around(self, snapshot: Snapshot, gathered: Gathered, budget: int) -> Surroundings:
        """Select what stands around the conversation, and does not depend on it.

        Args:
            snapshot: the conversation, as it was when the tiers were asked.
            gathered: what the tiers gave.
            budget: in tokens.

        Raises:
            InvalidInput: memory blocks of priority 0 do not fit.
        """
        kept = await self._size_of_kept_blocks(gathered, budget)
        left = budget - kept
        instructions, given = self._fit_instructions(gathered, left)
        room = min(left, profile_room(budget))
        synopsis, cost, about = self._fit_synopsis(gathered, instructions, room)
        shows_profile = bool(about.count)
        if synopsis is not None and shows_profile and list_summaries(snapshot):
            synopsis, cost = self._trim_synopsis(gathered, instructions, snapshot, synopsis, cost)
            shows_profile = synopsis != self._front_message(instructions, None, SaidTexts())
        left -= cost
        blocks, spent = FittedBlocks(), kept
        if self._blocks is not None:
            recalls = self._recall_reserve(budget) if gathered.recalls else 0
            room = max(left - snapshot.tokens - recalls, int(budget * self._blocks_share))
            blocks = await self._blocks.fit(gathered.blocks, kept + min(left, room))
            spent = self._blocks.insert((), blocks).tokens
        return Surroundings(
            synopsis, about, given, blocks, cost + spent, cost, shows_profile=shows_profile
        )

    async def fit(
        self,
        session: str | None,
        whole: Collection[tuple[str, int]],
        snapshot: Snapshot,
        gathered: Gathered,
        around: Surroundings,
        budget: int,
    ) -> Selection:
        """Select what fits.

        Args:
            session: the session, if the snapshot is of its own conversation.
            whole: its messages that are not shortened, by session and number.
            snapshot: the conversation, in what `around` leaves.
            gathered: what the tiers gave.
            around: the synopsis and the memory blocks.
            budget: in tokens.
        """
        shown = show_conversation(snapshot, self._counter)
        said = SaidTexts([one.text for one in shown.summaries])
        said.add(_texts_of(around.synopsis, around.blocks))
        entries = snapshot.entries
        recalled = await run_in_thread_if(
            snapshot.size > _BYTES_IN_THREAD or len(entries) > _ENTRIES_ON_LOOP,
            partial(
                self._fit_recalled,
                whole if session is not None else (),
                gathered,
                entries,
                self.recall_room(budget, around.tokens, shown.tokens),
                said,
            ),
        )
        recalled_message, newest, spent = self._place(recalled, entries[snapshot.pinned :])
        return Selection(
            conversation=shown,
            tokens=around.profile_tokens + spent + shown.tokens,
            sources=msgspec.structs.replace(
                gathered.sources,
                synopsis=around.synopsis_source,
                instructions=around.instructions_source,
                long_term=_recall_source(gathered.sources.long_term, recalled, working=False),
                working=_recall_source(gathered.sources.working, recalled, working=True),
            ),
            synopsis_message=around.synopsis,
            synopsis=gathered.synopsis if around.shows_profile else None,
            recalled_message=recalled_message,
            newest=newest,
            memories=tuple(one.memory for one in recalled.lines if one.memory is not None),
            working=tuple(one.working for one in recalled.lines if one.working is not None),
        )

    def recall_room(self, budget: int, around: int, conversation: int) -> int:
        """Tokens for what is recalled: its share, or more while the conversation is short.

        It is other text each time, which no prompt cache keeps.
        """
        most = max(self._recall_reserve(budget), budget - 4 * conversation)
        return min(budget - around - conversation, most)

    async def insert_blocks(
        self,
        context: Context,
        snapshot: Snapshot,
        chosen: Selection,
        gathered: Gathered,
        fitted: FittedBlocks,
        budget: int,
    ) -> Context:
        """Put memory blocks into a context."""
        if self._blocks is None:
            return context
        own, quoted = conversation_range(snapshot, chosen), quoted_places(snapshot, chosen)
        inserted = self._blocks.insert(context.messages, fitted, own, quoted)
        if context.tokens + inserted.tokens > budget:
            # two texts joined may take more than both alone
            room = budget - context.tokens
            fitted = await self._blocks.fit(gathered.blocks, room, context.messages, own, quoted)
            inserted = self._blocks.insert(context.messages, fitted, own, quoted)
        entries, kept, place = list(context.entries), context.kept, inserted.place
        if place is not None:
            entries.insert(place, None)
            kept = {before + (before >= place): one for before, one in kept.items()}
        elif kept:  # a message that has a block in it is not as it came
            pairs = enumerate(zip(context.messages, inserted.messages, strict=True))
            same = {n for n, (one, other) in pairs if one == other}
            kept = {n: one for n, one in kept.items() if n in same}
        return msgspec.structs.replace(
            context,
            kept=kept,
            messages=inserted.messages,
            entries=tuple(entries),
            tokens=context.tokens + inserted.tokens,
            sources=msgspec.structs.replace(context.sources, blocks=fitted.sources),
        )

    async def _size_of_kept_blocks(self, gathered: Gathered, budget: int) -> int:
        if self._blocks is None:
            return 0
        kept = await self._blocks.size_of_kept(gathered.blocks)
        if kept > budget:
            await self._blocks.fit(gathered.blocks, budget)  # raises, and says what they need
        return kept

    def _fit_instructions(self, gathered: Gathered, budget: int) -> tuple[str, Source]:
        """The user's newest instructions that fit into their share, and their status."""
        source, items = gathered.sources.instructions, gathered.instructions
        if not items:
            return "", source
        room = max(int(budget * self._instructions_share), min(budget // 5, _LEAST_INSTRUCTIONS))
        frame = self._counter.count(instructions_text(()))
        left = room - frame
        lines: dict[str, str] = {}
        for item in items:
            said = datetime.fromtimestamp(item.created_us / 1_000_000, UTC)
            line = instruction_line(item.content, said)
            tokens = self._counter.count(f"- {line}\n")
            if tokens <= left:
                left -= tokens
                lines[item.id] = line
            elif left < _SHORTEST_INSTRUCTION:
                break
        while lines and self._counter.count(instructions_text([*lines.values()])) > room:
            lines.popitem()
        omitted = [item.tokens for item in items if item.id not in lines]
        source = msgspec.structs.replace(source, count=len(lines))
        if omitted:
            probe("instructions_left_out")
            detail = (
                f"{room} tokens are for them (context.instructions_share), {frame} of these for "
                "what says what they are"
            )
            source = Source("omitted", len(lines), detail, None, len(omitted), sum(omitted))
        return instructions_text([*lines.values()]) if lines else "", source

    def _fit_synopsis(
        self, gathered: Gathered, instructions: str, room: int
    ) -> tuple[ChatDict | None, int, Source]:
        """Instructions and synopsis as a message, its tokens and the synopsis' status."""
        source = gathered.sources.synopsis
        alone = self._front_message(instructions, None, SaidTexts())
        least = 0 if alone is None else count_message(self._counter, alone)
        message = self._front_message(instructions, gathered.synopsis, SaidTexts())
        if message is None or message == alone:
            return alone, least, source
        cost = count_message(self._counter, message)
        if cost > room:
            probe("synopsis_left_out")
            detail = f"{counted(cost, 'token')}; {max(room, 0)} are left for it"
            omitted = Source("omitted", detail=detail, omitted=1, omitted_tokens=cost)
            return alone, least, omitted
        return message, cost, msgspec.structs.replace(source, count=1)

    def _trim_synopsis(
        self,
        gathered: Gathered,
        instructions: str,
        snapshot: Snapshot,
        message: ChatDict,
        cost: int,
    ) -> tuple[ChatDict | None, int]:
        """The synopsis without lines that the summaries have, and its tokens."""
        said = SaidTexts([one.text for one in list_summaries(snapshot)])
        shorter = self._front_message(instructions, gathered.synopsis, said)
        if shorter is None:
            return None, 0
        tokens = count_message(self._counter, shorter)
        return (shorter, tokens) if tokens < cost else (message, cost)

    def _front_message(
        self, instructions: str, synopsis: Synopsis | None, said: SaidTexts
    ) -> ChatDict | None:
        profile = "" if synopsis is None else synopsis_text(trim_profile(synopsis, said))
        text = "\n\n".join(part for part in (instructions, profile) if part)
        return {"role": self._quoted_role, "content": text} if text else None

    def _fit_recalled(
        self,
        whole: Collection[tuple[str, int]],
        gathered: Gathered,
        entries: Sequence[Entry],
        room: int,
        said: SaidTexts,
    ) -> _RecallMessage:
        """The recalled lines that fit, without those that the context says already."""
        lines = _leave_out(_rank_lines(gathered), whole, entries, said)
        return self._fit_lines(lines, room)

    def _place(
        self, recalled: _RecallMessage, entries: Sequence[Entry]
    ) -> tuple[ChatDict | None, ChatDict | None, int]:
        """The recalled lines as a message, or the newest message with them, and their tokens."""
        message, tokens = recalled.message, recalled.tokens
        if message is None or self._recalled_at == "tail":
            return message, None, tokens
        at = newest_user(entries)
        if at == len(entries):
            return message, None, tokens
        newest = decode_chat(entries[at].chat)
        newest["content"] = join_contents(message["content"], newest["content"])
        grown = count_message(self._counter, newest) - entries[at].tokens
        if grown > tokens:  # two texts joined may take more than both alone
            return message, None, tokens
        return None, newest, grown

    def _fit_lines(self, lines: Sequence[_RecallLine], room: int) -> _RecallMessage:
        """As many lines as fit, best first. The whole message is counted before it is taken."""
        left = room - self._counter.message_overhead - self._counter.count(recalled_text(()))
        taken: list[_RecallLine] = []
        texts: list[str] = []
        left_out: list[_RecallLine] = []
        for one in lines:
            cost = one.tokens + LINE_TOKENS
            if cost <= left:  # many are not, and need no text
                text = one.quote()
                cost += text.count("\\n")
            if cost <= left:
                taken.append(one)
                texts.append(text)
                left -= cost
            else:
                left_out.append(one)
        while taken:
            text = recalled_text(texts)
            message: ChatDict = {"role": self._quoted_role, "content": text}
            cost = count_message(self._counter, message)
            if cost <= room:
                return _RecallMessage(message, taken, cost, left_out)
            left_out.append(taken.pop())
            texts.pop()
        return _RecallMessage(left_out=left_out)


def profile_room(budget: int) -> int:
    """Most tokens of a context for the user profile."""
    return budget // 4


def _rank_lines(gathered: Gathered) -> list[_RecallLine]:
    """Lines of both tiers, best first: scaled by the best of their tier."""
    scored: list[tuple[float, int, _RecallLine]] = []
    best = max((memory.score for memory in gathered.memories), default=0.0)
    for place, memory in enumerate(gathered.memories):
        line = _RecallLine(same_words(memory.text), memory.tokens, memory=memory)
        scored.append((memory.score / best if best > 0 else 0.0, place, line))
    for place, found in enumerate(gathered.working):
        item = found.item
        line = _RecallLine(same_words(item.text), item.tokens, working=found)
        scored.append((found.score, place, line))
    return [line for _, _, line in sorted(scored, key=lambda one: (-one[0], one[1]))]


def _leave_out(
    lines: Sequence[_RecallLine],
    whole: Collection[tuple[str, int]],
    shown: Sequence[Entry],
    said: SaidTexts,
) -> list[_RecallLine]:
    """The lines that are not said elsewhere: by messages that are shown, texts, or better lines."""
    if not lines:
        return []
    said.add([plain_text(chat) for chat in decode_chats(shown)])
    left: dict[str, _RecallLine] = {}
    for one in lines:
        memory = one.memory
        if memory is not None and memory.seq > 0 and (memory.session, memory.seq) in whole:
            continue
        if not said.has_words(one.words):
            left.setdefault(one.words, one)
    return list(left.values())


def _texts_of(synopsis: ChatDict | None, blocks: FittedBlocks) -> Iterator[str]:
    """Return what a user profile and memory blocks say."""
    if synopsis is not None:
        yield synopsis["content"]
    for _, content in blocks.contents:
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content if part["type"] == "text")


def _recall_source(source: Source, recalled: _RecallMessage, *, working: bool) -> Source:
    if source.status not in {"ok", "degraded"}:
        return source
    count = sum((one.working is not None) is working for one in recalled.lines)
    left_out = [one for one in recalled.left_out if (one.working is not None) is working]
    if not left_out:
        return msgspec.structs.replace(source, count=count)
    tokens = sum(one.tokens for one in left_out)
    memories = counted(len(left_out), "memory", "memories")
    note = f"the share of memories has no room for {memories} with {counted(tokens, 'token')}"
    return msgspec.structs.replace(
        source,
        status="omitted" if source.status == "ok" else source.status,
        count=count,
        detail="; ".join(part for part in (source.detail, note) if part),
        omitted=len(left_out),
        omitted_tokens=tokens,
    )


# -- texts that a context has already, so that it does not repeat them -----------------------------
#
# Texts are compared without case, blanks and the marks at their ends, and found within longer ones.
# A user's message that is in the conversation is not recalled, nor is what the summary, the user
# profile or a memory block says in the same words.

_LONG = 4_000  # characters; longer texts are not looked for
_ENDS = " .,;:!?\"'"
_LABEL = re.compile(r"^- (?:[^:\n]{1,80}: )?")
"""What comes before the text in a line of a fallback profile: - 22 Nov 2026, User: …"""


class SaidTexts:
    """Texts to look in.

    Args:
        texts: the first of them.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._added: list[str] = [*texts]
        self._said = ""

    def add(self, texts: Iterable[str]) -> None:
        """Look in these texts as well."""
        self._added.extend(texts)

    def has(self, text: str) -> bool:
        """Return whether one of the texts is this one, or contains it as whole words."""
        return self.has_words(same_words(text))

    def has_words(self, words: str) -> bool:
        """As `has`, for what `same_words` gave."""
        if not words or len(words) > _LONG:
            return False
        if self._added:  # one text a line: a search of each text takes five times as long
            added = "\n".join([" ".join(text.split()) for text in self._added])
            self._said += f"\n{added.casefold()}"
            self._added.clear()
        return _contains(self._said, words)


def same_words(text: str) -> str:
    """Return what is equal for texts of the same words; a long text as it is."""
    return text if len(text) > _LONG else " ".join(text.split()).casefold().strip(_ENDS)


def trim_profile(synopsis: Synopsis, said: SaidTexts) -> Synopsis:
    """A user profile without the lines that it repeats, or that are in other texts."""
    identity = [line for line in synopsis.identity.splitlines() if not _is_said(line, said)]
    own = SaidTexts(identity)
    context = [
        line
        for line in synopsis.context.splitlines()
        if not _is_said(line, said) and not _is_said(line, own)
    ]
    return msgspec.structs.replace(
        synopsis, identity="\n".join(identity), context="\n".join(context)
    )


def _is_said(line: str, said: SaidTexts) -> bool:
    return said.has(_LABEL.sub("", line.strip(), count=1))


def _contains(text: str, wanted: str) -> bool:
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if not (text[at - 1 : at].isalnum() and wanted[0].isalnum()) and not (
            text[end : end + 1].isalnum() and wanted[-1].isalnum()
        ):
            return True
        at = text.find(wanted, at + 1)
    return False
