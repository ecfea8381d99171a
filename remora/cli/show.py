"""``remora show`` and ``recall``."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence

import msgspec
from rich.console import Console

from remora.api.base import BaseRuntime
from remora.cli.opening import journals_of, open_to_read
from remora.cli.render import Output, print_json, print_memories, print_session
from remora.cluster.operating import job_line
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.runtime.jobs import Job
from remora.runtime.threads import run_in_thread
from remora.storage.sqlite.peek import peek_jobs


async def show_session(
    console: Console,
    runtime: BaseRuntime,
    waiting: Sequence[Job],
    key: SessionKey,
    *,
    most: int,
    as_json: bool = False,
) -> None:
    """Print a session's summary, its recent messages, and its waiting jobs.

    Args:
        console: prints.
        runtime: open on the memory.
        waiting: background jobs of the user's shard.
        key: the session.
        most: messages to print.
        as_json: print one JSON object instead.

    Raises:
        InvalidInput: there is no such session.
    """
    handle = runtime.session(key.user, key.session)
    view = await handle.inspect()
    if view.last_seq == 0 and view.keyed is None:
        known = [listing.key.session for listing in await runtime.user(key.user).sessions()]
        near = difflib.get_close_matches(key.session, known, n=3, cutoff=0.3) or known[-3:]
        if near:
            hint = f"; {key.user} has: {', '.join(near)}"
        elif (counts := await runtime.counts(key.user)).memories or counts.state_keys:
            hint = f"; {key.user} has no sessions, only what was remembered: remora recall finds it"
        else:
            hint = f"; there is no user {key.user} either"
        raise InvalidInput(f"{key.user} has no session {key.session}{hint}")
    jobs = [job for job in waiting if job.key == key]
    messages = await handle.history()
    if as_json:
        shown = messages[len(messages) - min(most, len(messages)) :]
        state = {
            name: value
            for name, value in msgspec.structs.asdict(view).items()
            if name not in {"entries", "keyed"}  # values of keyed state are not printed
        }
        state["state_keys"] = len(view.keyed.values) if view.keyed is not None else 0
        jobs_shown = [job_line(job) for job in jobs]
        print_json({**key._asdict(), **state, "messages": shown, "jobs": jobs_shown})
    else:
        print_session(console, f"{key.user} / {key.session}", view, messages, jobs, most=most)


async def command_show(console: Console, arguments: argparse.Namespace) -> int:
    """Print a session; returns the exit code."""
    key = SessionKey(arguments.user, arguments.session)
    async with open_to_read(arguments, user=key.user) as runtime:
        if arguments.in_database:
            waiting: Sequence[Job] = await runtime.dead_letters()
        else:
            (journal,) = await run_in_thread(journals_of, arguments, key.user)
            waiting = await run_in_thread(peek_jobs, journal)
        await show_session(
            console, runtime, waiting, key, most=arguments.limit, as_json=arguments.json
        )
    return 0


async def command_recall(console: Console, arguments: argparse.Namespace) -> int:
    """Print recalled memories; returns the exit code."""
    async with open_to_read(arguments, long_term=True, user=arguments.user) as runtime:
        user = runtime.user(arguments.user)
        known = await runtime.counts(user.id)
        if not known.sessions and not known.memories:
            raise InvalidInput(f"there is no user {arguments.user} in this memory")
        found = await user.recall(arguments.question, limit=arguments.limit)
        # an owner's figures are of all who asked
        if not arguments.in_database and runtime.statistics().reranking.failures:
            Output(stderr=True).print(
                "remora: the reranker failed, so the memories are in the order that recall found "
                "(-v shows why)",
                markup=False,
                highlight=False,
            )
    if arguments.json:
        for memory in found:
            print_json(memory)
    else:
        print_memories(console, found)
    return 0
