"""Probes of models: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
    "breaker_refused": "a model is not called for a while after failures, so a call was refused",
    "breaker_opened": "a model failed too often in a row: it is not called for a while",
    "breaker_closed": "a model that was not called for a while answered its trial call",
    "model_hung": "a chat model or summarizer did not answer in time",
    "embedder_hung": "an embedder did not answer in time",
    "embedder_misshaped": "an embedder answered with a wrong number of vectors, or of a wrong "
    "length",
    "embedder_not_finite": "an embedder answered with a value that is not a finite number",
    "embedding_joined": "a text that another call was embedding was waited for",
    "embedding_joined_failed": "the call that was waited for failed, so this one embeds the text",
}
