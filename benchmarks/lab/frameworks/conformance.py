"""What is tried with each framework, by remora's tests of its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["COLUMNS", "cells_of", "render_cells"]

COLUMNS = {
    "OpenAI Agents: remora's tests": "OpenAI Agents",
    "LangChain agents: remora's tests": "LangChain",
    "LangGraph: remora's tests": "LangGraph",
    "Pydantic AI: remora's tests": "Pydantic AI",
    "LlamaIndex: remora's tests": "LlamaIndex",
    "Google ADK: remora's tests": "ADK",
    "Agent Framework: remora's tests": "Agent Framework",
    "Strands Agents: remora's tests": "Strands",
    "Claude Agent SDK: its contracts, and remora's tests": "Claude SDK",
}
"""The heads of the columns, by the names of the suites."""

ROWS: dict[str, tuple[str, ...]] = {
    "a conversation goes on after a restart": (
        "test_an_agent_goes_on_with_its_conversation",
        "test_a_graph_goes_on_after_a_restart",
    ),
    "runs at once lose nothing": (
        "test_eight_runs_of_one_session_at_once",
        "test_eight_runs_of_one_thread_lose_no_checkpoint",
        "test_eight_writers_lose_nothing",
    ),
    "a run fails": (
        "test_a_run_that_fails",
        "test_messages_of_a_thread_are_recalled_and_listed",
    ),
    "a run is cut": (
        "test_a_run_that_is_cut",
        "test_a_stream_that_is_left_keeps_the_question",
    ),
    "a run waits for a person, and is resumed": (
        "test_a_run_that_waits_for_a_person_is_resumed",
        "test_a_graph_goes_on_after_a_restart",
        "test_a_run_goes_on_after_its_tools_were_deferred",
        "test_what_ended_beside_a_deferred_call_is_told",
        "test_a_model_sees_what_the_frameworks_own_history_shows",
    ),
    "what is rewound, replaced or taken back is gone": (
        "test_items_are_read_and_taken_back",
        "test_a_branch_that_a_run_leaves_is_neither_shown_nor_recalled",
        "test_a_branch_that_a_run_leaves_is_not_recalled",
        "test_a_history_replaces_the_conversation",
        "test_what_is_rewound_is_not_recalled",
        "test_what_a_guardrail_redacts_is_gone",
    ),
    "the framework's own summary is nobody's word": (
        "test_what_the_sdk_compacts_is_recalled",
        "test_a_message_removed_from_the_state_doubles_nothing",
    ),
    "reasoning, pictures and files come back as they were": (
        "test_each_kind_of_message_comes_back_as_it_was",
        "test_events_come_back_as_they_were",
        "test_messages_come_back_as_they_were",
        "test_entries_come_back_as_they_were_and_once",
        "test_a_thread_grows_past_the_bound_of_a_value",
    ),
    "other readers see messages of a chat API": ("test_messages_are_those_of_a_chat_api",),
    "the model sees a budget": ("test_the_model_sees_a_budget",),
    "reasoning and files count towards it": ("test_what_is_kept_for_the_model_counts",),
    "other conversations recall what was said": (
        "test_an_agent_recalls_other_conversations",
        "test_an_agent_recalls_other_sessions",
        "test_messages_of_a_thread_are_recalled_and_listed",
        "test_what_was_said_is_recalled",
    ),
    "nobody's words are recalled (`[web_search_call]`)": (
        "test_what_nobody_said_is_not_recalled",
        "test_what_is_rewound_is_not_recalled",
    ),
    "a deleted message is neither shown nor recalled": ("test_a_message_that_is_deleted",),
    "a deleted conversation is erased": (
        "test_sessions_are_listed_and_erased",
        "test_sessions_are_erased",
        "test_the_contracts_of_the_sdk",
        "test_threads_of_a_user_are_sessions",
    ),
    "an agent uses its memory by tools": ("test_an_agent_uses_its_memory_by_tools",),
    "`remora.connect`: workers share it": (
        "test_workers_share_a_conversation",
        "test_workers_share_a_thread",
        "test_workers_share_a_transcript",
    ),
    "`remora.Client`": ("OfAService",),
    "`remora.blocking`": (
        "test_with_a_blocking_runtime",
        "test_without_async",
        "test_on_any_event_loop",
    ),
}
"""The tests of each row: their names, or a part of the name of their class."""


def cells_of(outcomes: Mapping[str, str]) -> dict[str, str]:
    """The cells of a framework by row: ``passed`` or ``failed``; none where nothing was tried.

    Args:
        outcomes: of its tests, by ``module.Class::name``.
    """
    found = {}
    for row, names in ROWS.items():
        tried = {
            outcome
            for test, outcome in outcomes.items()
            if test.rpartition("::")[2].partition("[")[0] in names
            or any(name in test.rpartition("::")[0] for name in names)
        }
        if tried:
            found[row] = "passed" if tried == {"passed"} else "failed"
    return found


def render_cells(results: Mapping[str, Any]) -> str:
    """The table, of the rows of all suites by name."""
    heads = {name: head for name, head in COLUMNS.items() if "cells" in results.get(name, {})}
    lines = [f"| | {' | '.join(heads.values())} |", "|---|" + "---|" * len(heads)]
    shown = {"passed": "yes", "failed": "**fails**"}
    for row in ROWS:
        cells = (shown.get(results[name]["cells"].get(row), "") for name in heads)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)
