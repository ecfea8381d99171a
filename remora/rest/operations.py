"""The operations of the service, one row each, besides health and the description."""

from __future__ import annotations

from functools import partial

from remora.actors.user.messages import Synopsis
from remora.api.keyed_state import KeyedState
from remora.api.session import Session
from remora.api.shared import SharedMember
from remora.api.user import User
from remora.recall.memory import Memory
from remora.rest import differences as by_hand
from remora.rest import job_operations as jobs
from remora.rest import shapes
from remora.rest.operation import MEMBER, SESSION, USER, Operation
from remora.services.archive import SessionStatistics, UserStatistics
from remora.services.deleting import DeletionReceipt

_get = partial(Operation, "GET", repeatable=True)
_erase = partial(Operation, "DELETE", repeatable=True)
_change = partial(Operation, "PATCH", rename={"memory": "id"})
_post = partial(Operation, "POST")
_repeat = partial(Operation, "POST", repeatable=True)
_WHICH, _ID = {"ids": "which", "memory": "which"}, {"memory": "id"}

_SESSIONS = (
    _get("list_users", "/v1/users", "List users",
         by_hand.list_users, shapes.UserPage, query=shapes.Listing),
    _get("list_sessions", USER + "/sessions", "List a user's sessions",
         by_hand.list_sessions, shapes.SessionPage, query=shapes.SessionsListing),
    _erase("forget_session", SESSION, "Erase a session", Session.forget, shapes.Erased),
    _get("list_messages", SESSION + "/messages", "Read a session's messages",
         by_hand.list_messages, shapes.MessagePage, query=shapes.Messages),
    _post("append_messages", SESSION + "/messages", "Append messages: all are durable, or none",
          Session.append, shapes.Appended, body=shapes.Append, keyed=True),
    _post("delete_messages", SESSION + "/messages/delete",
          "Delete messages, in the buffer or out of it",
          by_hand.delete_messages, DeletionReceipt, body=shapes.Deletion),
    _repeat("load_context", SESSION + "/context", "Load what a model should see",
            by_hand.load_context, shapes.ContextShown, body=shapes.ContextAsked,
            verb=Session.load),
    _post("begin_turn", SESSION + "/turns",
          "Begin or resume a turn: store the user's message, load the context",
          by_hand.begin_turn, shapes.TurnShown, body=shapes.TurnAsked, keyed="required"),
    _post("reply_to_turn", SESSION + "/turns/replies", "Store a reply of a turn",
          by_hand.reply_to_turn, shapes.TurnShown, body=shapes.Reply, keyed="required"),
    _post("clear_session", SESSION + "/clear", "Empty the buffer and the summary",
          Session.clear, shapes.Cleared),
    _repeat("flush_session", SESSION + "/flush", "Index what long-term memory does not have yet",
            Session.flush, shapes.Cleared),
    _repeat("read_buffer", SESSION + "/buffer", "Read the messages in the buffer",
            Session.get_messages, shapes.Buffered, body=shapes.Buffer),
    _repeat("read_contents", SESSION + "/contents",
            "Read the whole buffer, and the summaries as messages",
            Session.contents, shapes.Contents, body=shapes.ContentsAsked),
    _repeat("search_buffer", SESSION + "/buffer/search", "Search the buffer",
            Session.search, shapes.Hits, body=shapes.BufferSearch),
    _post("rewind_session", SESSION + "/rewind", "Go back to an earlier message",
          Session.rewind, shapes.Deleted, body=shapes.Rewinding),
    _post("truncate_session", SESSION + "/truncate", "Keep the newest messages in the buffer",
          Session.truncate_to_size, shapes.Cleared, body=shapes.Truncation),
    _post("fork_session", SESSION + "/fork", "Begin another session as a copy",
          by_hand.fork_session, shapes.Forked, body=shapes.Forking),
    _get("count_session", SESSION + "/stats", "Count messages, tokens, summaries",
         Session.stats, SessionStatistics),
)  # fmt: skip
_USERS = (
    _erase("forget_user", USER, "Erase a user", User.forget, shapes.Erased),
    _get("count_user", USER + "/stats", "Count what is stored of a user",
         User.stats, UserStatistics),
    _repeat("recall", USER + "/recall", "Search what was said or remembered",
            User.recall, shapes.Recalled, body=shapes.Recall),
    _get("list_memories", USER + "/memories", "List a user's memories",
         by_hand.list_memories, shapes.Recalled, query=shapes.MemoryAsked),
    _repeat("remember", USER + "/memories", "Store a memory, or several",
            User.remember, shapes.Remembered, body=shapes.Remember),
    _repeat("list_remembered", USER + "/memories/list", "List what was recorded, page by page",
            User.remembered, shapes.Recalled, body=shapes.MemoryPageAsked),
    _repeat("find_memory", USER + "/memories/find", "Read a memory by its key",
            User.memory, shapes.MemoryFound, body=shapes.MemoryNamed),
    _repeat("record", USER + "/memories/record",
            "Remember what was said in a conversation kept elsewhere",
            User.record, shapes.Remembered, body=shapes.Recording),
    _repeat("delete_memories", USER + "/memories/delete",
            "Delete memories, and messages of any session",
            User.delete, DeletionReceipt, body=shapes.UserDeletion, rename=_WHICH),
    _post("prune_memories", USER + "/memories/prune",
          "Remove the least important rows of long-term memory",
          User.prune, shapes.Done, body=shapes.Pruning),
    _get("read_memory", USER + "/memories/{memory}", "Read a memory",
         User.memory, shapes.MemoryFound, rename=_ID),
    _change("update_memory", USER + "/memories/{memory}", "Change a memory",
            User.update_memory, Memory, body=shapes.MemoryChange),
    _erase("delete_memory", USER + "/memories/{memory}", "Delete a memory or a message",
           User.delete, DeletionReceipt, rename=_WHICH),
    _repeat("read_synopsis", USER + "/synopsis", "Read who the user is",
            User.synopsis, Synopsis, body=shapes.SynopsisAsked),
    _repeat("learn", USER + "/working", "Note texts in working memory",
            User.learn, shapes.Learned, body=shapes.Learning, rename={"texts": "text"}),
    _repeat("search_working", USER + "/working/search", "Search working memory",
            User.search_working, shapes.WorkingFound, body=shapes.WorkingSearch),
)  # fmt: skip


def _state_of(owner: str, of: str) -> tuple[Operation, ...]:
    state, one = owner + "/state", owner + "/state/{key}"
    return (
        _get(f"list_values_of_{of}", state, f"List keyed state of a {of}",
             KeyedState.items, shapes.StateShown, query=shapes.StateAsked),
        _post(f"change_values_of_{of}", state,
              f"Set and delete several values of a {of}, all or none",
              KeyedState.change, shapes.StateShown, body=shapes.StateChange),
        _repeat(f"read_values_of_{of}", state + "/read", f"Read several values of a {of}",
                KeyedState.get_many, shapes.StateShown, body=shapes.StateKeys),
        _get(f"read_value_of_{of}", one, f"Read a value of a {of}",
             KeyedState.get, shapes.StateFound),
        Operation("PUT", f"set_value_of_{of}", one, f"Set a value of a {of}",
                  KeyedState.set, shapes.StateFound, body=shapes.ValueSet),
        Operation("DELETE", f"delete_value_of_{of}", one, f"Delete a value of a {of}",
                  KeyedState.delete, shapes.StateRemoved, query=shapes.ValueVersion),
    )  # fmt: skip


_SHARED = (
    _erase("forget_scope", MEMBER, "Erase a shared scope", SharedMember.forget, shapes.Erased),
    _repeat("remember_shared", MEMBER + "/memories", "Share memories",
            SharedMember.remember, shapes.Remembered, body=shapes.Sharing),
    _get("list_shared", MEMBER + "/memories", "List shared memories",
         by_hand.list_shared, shapes.Recalled, query=shapes.SharedAsked),
    _repeat("recall_shared", MEMBER + "/recall", "Search shared memories",
            SharedMember.recall, shapes.Recalled, body=shapes.SharedRecall),
    _repeat("delete_shared", MEMBER + "/memories/delete", "Delete shared memories",
            SharedMember.delete, DeletionReceipt, body=shapes.MemoryIds, rename=_WHICH),
    _get("read_shared", MEMBER + "/memories/{memory}", "Read a shared memory",
         SharedMember.memory, shapes.MemoryFound, rename=_ID),
    _change("update_shared", MEMBER + "/memories/{memory}", "Change a shared memory",
            SharedMember.update_memory, Memory, body=shapes.MemoryChange),
    _get("list_members", MEMBER + "/members", "List members",
         SharedMember.members, shapes.Members),
    _repeat("claim_scope", MEMBER + "/claim", "Own a scope that has no owner",
            SharedMember.claim, shapes.Done),
    _post("grant_right", MEMBER + "/grant", "Grant a right",
          SharedMember.grant, shapes.Done, body=shapes.GrantGiven),
    _post("revoke_right", MEMBER + "/revoke", "Take rights away",
          SharedMember.revoke, shapes.Done, body=shapes.MemberNamed),
)  # fmt: skip
_JOBS = (
    _get("list_dead_letters", "/v1/dead-letters", "List background jobs that failed too often",
         jobs.list_dead_letters, jobs.DeadLetters),
    _post("retry_dead_letters", "/v1/dead-letters/retry", "Retry dead letters",
          jobs.retry_dead_letters, jobs.Changed, body=jobs.Retrying),
    _post("drop_dead_letters", "/v1/dead-letters/drop", "Drop dead letters",
          jobs.drop_dead_letters, jobs.Changed, body=jobs.Dropping),
    _get("list_erasures", USER + "/erasures", "List erasures of a user that are not done yet",
         jobs.list_erasures, jobs.UnfinishedErasures),
)  # fmt: skip
OPERATIONS: tuple[Operation, ...] = (
    *_SESSIONS,
    *_USERS,
    *_state_of(SESSION, "session"),
    *_state_of(USER, "user"),
    *_SHARED,
    *_JOBS,
)
"""A path's fixed parts are looked at before names: those that have more of them come first."""
