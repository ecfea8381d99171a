"""The content of an import as the journal takes it: redacted, and counted again.

The runtime that wrote the export may have had another redaction hook, or none. Everything that it
derived from messages, its summaries for example, goes through the hook as the messages do.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora.actors.blocks.state import block_progress, progress_item
from remora.actors.policies.redaction import redact_text, redact_value
from remora.actors.user.state import SynopsisPart
from remora.actors.user.working import WorkingItem
from remora.ids import memory_id, working_id
from remora.messages import dated_line, remove_hidden
from remora.services.intake import Intake
from remora.services.state_values import redact_item
from remora.storage.records import ENTRY_KIND, EntryFlushSpec, MemoryItem, StateItem, Summary
from remora.tokens import count_message

__all__ = [
    "import_memory",
    "import_session_item",
    "import_summary",
    "import_user_items",
    "import_working_item",
]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode
_decode_part = msgspec.msgpack.Decoder(SynopsisPart).decode


def import_summary(intake: Intake, summary: Summary) -> Summary:
    """A summary, without hidden characters, redacted and counted again."""

    def count(text: str) -> int:
        message = {"role": "system", "content": summary.prefix + text}
        return count_message(intake.counter, message)

    prose = _redact(intake, remove_hidden(summary.text[: summary.prose]))
    text = prose + _redact(intake, remove_hidden(summary.text[summary.prose :]))
    brief = _redact(intake, remove_hidden(summary.brief))
    return msgspec.structs.replace(
        summary,
        text=text,
        tokens=count(text),
        prose=len(prose),
        brief=brief,
        brief_tokens=count(brief) if brief else 0,
    )


def import_session_item(intake: Intake, item: StateItem) -> StateItem:
    """A state item of a session: texts of blocks, summary entries and keyed state are redacted."""
    if intake.redact is None:
        return item
    if item.kind == ENTRY_KIND:
        spec = _decode_entry(item.value)
        entry = import_summary(intake, spec.entry)
        return StateItem(item.kind, item.name, _encode(msgspec.structs.replace(spec, entry=entry)))
    for name, progress in block_progress([item]).items():
        if progress.state:
            state = _encode(redact_value(_decode(progress.state), intake.redact))
            return progress_item(name, msgspec.structs.replace(progress, state=state))
    return redact_item(item, intake.redact)


def import_memory(intake: Intake, user: str, item: MemoryItem) -> MemoryItem:
    """The memory, redacted and counted again; it gets a new id if its text changes."""
    text = _redact(intake, item.content)
    own = item.key or item.revision or item.topic  # its id does not come from its text
    id_ = item.id if own or text == item.content else memory_id(user, item.agent, text)
    return msgspec.structs.replace(
        item,
        id=id_,
        content=text,
        tokens=intake.counter.count(dated_line(item.created_us, text)),
        revision=min(item.revision, 1),  # below all that the user's actor gives from now on
    )


def import_working_item(intake: Intake, item: WorkingItem) -> WorkingItem | None:
    """An item of working memory, redacted.

    If its text changes it gets a new id, and loses its vector, which says what the text was. None
    if no text is left.
    """
    text = _redact(intake, item.text)
    if text == item.text:
        return item
    if not text.strip():
        return None
    return msgspec.structs.replace(
        item,
        id=working_id(item.scope, text),
        text=text,
        tokens=intake.counter.count(text),
        vector=b"",
    )


def import_user_items(intake: Intake, items: Sequence[StateItem]) -> tuple[StateItem, ...]:
    """A user's state items: the synopsis redacted and counted again, keyed state redacted."""
    if intake.redact is None:
        return tuple(items)
    return tuple(
        _synopsis_item(intake, one) if one.kind == "synopsis" else redact_item(one, intake.redact)
        for one in items
    )


def _synopsis_item(intake: Intake, item: StateItem) -> StateItem:
    part = _decode_part(item.value)
    text = _redact(intake, part.text)
    if text == part.text:
        return item
    part = msgspec.structs.replace(part, text=text, tokens=intake.counter.count(text))
    return StateItem(item.kind, item.name, _encode(part))


def _redact(intake: Intake, text: str) -> str:
    return text if intake.redact is None or not text else redact_text(text, intake.redact)
