"""The synopsis (user profile): two parts, each valid for a term.

One job at a time writes it: its id is part of the state, so a second reader waits for the same
job. A fallback synopsis and an empty one are valid for the shorter of the two terms, so that the
model is asked again soon.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from remora.actors.user.messages import ReadSynopsis, Synopsis, SynopsisReady, SynopsisState
from remora.actors.user.state import (
    SynopsisPart,
    SynopsisShown,
    UserState,
    new_job,
    opening,
    state_item,
    value_bytes,
)
from remora.runtime.actor import Decision
from remora.runtime.jobs import JobDone
from remora.runtime.probes import probe
from remora.storage.records import JobsStarted, StateChanged, SynopsisSpec

SYNOPSIS_QUEUE = "synopsis"
SYNOPSIS_PARTS = ("identity", "context")
"""The names of its parts."""
_UNJOURNALLED = 0.1  # of a term: extensions of a part's validity below this are not journalled


class SynopsisTerms(msgspec.Struct, frozen=True):
    """How long a synopsis is valid.

    Attributes:
        seconds: for each part, by name.
        extend: whether a part that is read is valid for a whole term from then on.
    """

    seconds: Mapping[str, float]
    extend: bool


def read_synopsis(state: UserState, terms: SynopsisTerms, message: ReadSynopsis) -> Decision:
    """Show the synopsis; start the job that writes it, unless it is valid or the job runs."""
    if not (state.opened or message.is_user):
        return Decision(None)
    now = message.now
    valid = {
        name: part
        for name in terms.seconds
        if (part := state.parts.get(name)) is not None and now < part.expires_at
    }
    if len(valid) == len(terms.seconds) and not message.refresh:
        return _hit(state, terms, valid, now)
    missed = (SynopsisShown(hit=False),)
    if state.job:
        probe("synopsis_joined")
        return Decision(_synopsis(valid, "pending", state.job), volatile=missed)
    probe("synopsis_stale")
    job, counter = new_job(state, SYNOPSIS_QUEUE, SynopsisSpec(state.sid, state.number + 1))
    records = [
        *opening(state, int(now * 1_000_000)),
        StateChanged(state.sid, (counter,)),
        JobsStarted(state.sid, (job,)),
    ]
    pending = _synopsis(valid, "pending", job.id)
    return Decision(pending, records, volatile=missed, jobs=(job,))


def _hit(
    state: UserState, terms: SynopsisTerms, valid: Mapping[str, SynopsisPart], now: float
) -> Decision:
    """Show a valid synopsis and extend it, in memory first, in the journal now and then."""
    extended = []
    journal = False
    for name, part in valid.items():
        expires_at = now + terms.seconds[name]
        if terms.extend and part.text and not part.degraded and expires_at > part.expires_at:
            extended.append((name, msgspec.structs.replace(part, expires_at=expires_at)))
            unwritten = expires_at - state.terms[name]
            journal = journal or unwritten > _UNJOURNALLED * terms.seconds[name]
    items = tuple(state_item("synopsis", name, part) for name, part in extended)
    records = [StateChanged(state.sid, items)] if journal else []
    shown = SynopsisShown(hit=True, extended=tuple(extended))
    return Decision(_synopsis(valid, _quality(valid)), records, volatile=(shown,))


def expire_synopsis(state: UserState) -> Decision:
    """Memories were removed: drop the synopsis, and the one that is being written."""
    held = tuple(("synopsis", name) for name in state.parts)
    running = (state.job,) if state.job else ()
    dropped = [StateChanged(state.sid, (), held)] if held else []
    return Decision(None, [*dropped, *map(JobDone, running)], cancel=running)


def take_synopsis(state: UserState, terms: SynopsisTerms, result: SynopsisReady) -> Decision:
    """Take the result of a synopsis job, unless it is stale."""
    if result.job != state.job:
        probe("synopsis_dropped")
        return Decision(False, [JobDone(result.job)])
    items = []
    texts = (result.identity, result.context)
    for name, text, tokens in zip(terms.seconds, texts, result.tokens, strict=True):
        model_wrote = text and not result.degraded
        term = terms.seconds[name] if model_wrote else min(terms.seconds.values())
        part = SynopsisPart(text, result.now + term, tokens, result.model, result.degraded)
        items.append(state_item("synopsis", name, part))
    records = [StateChanged(state.sid, tuple(items)), JobDone(result.job)]
    return Decision(True, records, size=value_bytes(items))


def current_synopsis(state: UserState) -> Synopsis:
    """Return what is held of the synopsis, valid or not."""
    return _synopsis(state.parts, "pending" if state.job else _quality(state.parts), state.job)


def _quality(parts: Mapping[str, SynopsisPart]) -> SynopsisState:
    if not any(part.text for part in parts.values()):
        return "empty"
    return "degraded" if any(part.degraded for part in parts.values()) else "ok"


def _synopsis(parts: Mapping[str, SynopsisPart], quality: SynopsisState, job: str = "") -> Synopsis:
    texts = {name: part.text for name, part in parts.items()}
    tokens = sum(part.tokens for part in parts.values())
    return Synopsis(texts.get("identity", ""), texts.get("context", ""), quality, job, tokens)
