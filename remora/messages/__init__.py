"""Chat messages: the public type, its encoded form, and text made of it.

A caller passes plain dicts in the OpenAI chat format, or `Message` objects. `encode_message` checks
one and turns it into an `Entry`: the chat dict as msgpack bytes, unknown keys included, with the
few facts that a session needs without decoding. After that nothing encodes or counts the message
again: the journal stores the bytes, and `load` decodes them into a fresh dict, so that no caller
can reach the session's state.
"""

from __future__ import annotations

from remora.faces import publish
from remora.messages.chat import (
    INSTRUCTING_ROLES,
    ChatDict,
    Message,
    Receipt,
    Role,
    ToolCall,
    ToolFunction,
    loop_begin,
    open_calls,
)
from remora.messages.entry import (
    KEPT_PREFIX,
    REPEATED,
    AttachmentLimits,
    Entry,
    check_ids,
    counted_chat,
    decode_chat,
    decode_chats,
    encode_message,
    encode_plain,
    has_media,
    is_same_chat,
    kept_metadata,
    leading_instructions,
    parse_time,
    restore_message,
    said_text,
)
from remora.messages.objects import chat_of_object, is_message_object
from remora.messages.text import (
    content_parts,
    dated_line,
    escape_tags,
    indent,
    join_contents,
    plain_name,
    plain_text,
    quote,
    remove_hidden,
    speaker_of,
    split_tool_calls,
    tool_calls,
    without_surrogates,
)
from remora.messages.typed import (
    AssistantMessageDict,
    ContextMessage,
    ContextMessages,
    MessageDict,
    MessageLike,
    MessageObject,
    SystemMessageDict,
    ToolMessageDict,
    UserMessageDict,
)

__all__ = [
    "INSTRUCTING_ROLES",
    "KEPT_PREFIX",
    "REPEATED",
    "AssistantMessageDict",
    "AttachmentLimits",
    "ChatDict",
    "ContextMessage",
    "ContextMessages",
    "Entry",
    "Message",
    "MessageDict",
    "MessageLike",
    "MessageObject",
    "Receipt",
    "Role",
    "SystemMessageDict",
    "ToolCall",
    "ToolFunction",
    "ToolMessageDict",
    "UserMessageDict",
    "chat_of_object",
    "check_ids",
    "content_parts",
    "counted_chat",
    "dated_line",
    "decode_chat",
    "decode_chats",
    "encode_message",
    "encode_plain",
    "escape_tags",
    "has_media",
    "indent",
    "is_message_object",
    "is_same_chat",
    "join_contents",
    "kept_metadata",
    "leading_instructions",
    "loop_begin",
    "open_calls",
    "parse_time",
    "plain_name",
    "plain_text",
    "quote",
    "remove_hidden",
    "restore_message",
    "said_text",
    "speaker_of",
    "split_tool_calls",
    "tool_calls",
    "without_surrogates",
]

publish(__name__, __all__, globals())
