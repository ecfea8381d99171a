"""Messages in the shapes of other APIs: Anthropic's, OpenAI's Responses API, Gemini's.

`from_…` makes chat dicts for `Session.append`, `to_…` makes a request of the messages of a context
or of a history. All are pure functions; no client library is imported, and its objects are
recognized by their methods. Ids of tool calls, texts and their order are kept.

What only one API understands (its reasoning, calls of tools that it runs itself) has no form in a
chat. ``opaque=True`` keeps such a message as it came, in the stored message's metadata: only the
same API's `to_…` shows it, if it is given messages with their metadata, as `Session.history` and
`Session.contents` return them, or a `Context`, which has those of the current calls of tools.
"""

from __future__ import annotations

from remora.faces import publish
from remora.formats.anthropic import AnthropicPrompt, from_anthropic, to_anthropic
from remora.formats.gemini import GeminiPrompt, from_gemini, to_gemini
from remora.formats.openai import to_openai
from remora.formats.plain import ChatMessages
from remora.formats.recognize import as_chats
from remora.formats.responses import from_responses, to_responses

__all__ = [
    "AnthropicPrompt",
    "ChatMessages",
    "GeminiPrompt",
    "as_chats",
    "from_anthropic",
    "from_gemini",
    "from_responses",
    "to_anthropic",
    "to_gemini",
    "to_openai",
    "to_responses",
]

publish(__name__, __all__, globals())
