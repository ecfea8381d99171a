"""Probes of recall: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
    # contexts
    "attachments_left_out": "attachments of old messages have no place in a context: words of them",
    "message_shortened": "a message is larger than its share of a context: it is shown in part",
    "excerpts_too_long": "names and ids make excerpts too long: the oldest units are left out",
    # finding
    "stale_memories_left_out": "memories that were found are changed or deleted by now: more are "
    "looked at",
    "fact_left_out": "a fact that was found has a newer one in its place, or lost its messages",
    "recall_overtaken": "a user wrote during a search: its result is not kept for others",
    "recall_cache_invalidated": "a result that was held is dropped, because its user wrote",
    "user_index_too_large": "a user has too many rows to be held in memory: the store is asked",
    "user_index_read_overtaken": "a user's rows were removed or requested again during a read",
    "user_index_read_failed": "a user's rows could not be read into memory: the store is asked",
    "user_index_evicted": "a user's rows left memory to make room for others'",
    "near_words_failed": "an embedder's near words failed: recall finds by words and vectors",
    "rerank_failed": "a reranker failed: the memories keep the order that they were found in",
    "rerank_cut_short": "a reranker had less than its deadline, because its caller's is near",
    "reranker_misshaped": "a reranker answered with a wrong number of scores, or with no numbers",
    "reranker_not_finite": "a reranker answered with a score that is not a finite number",
    "rerank_void": "memories were removed while a reranker judged them: the search is repeated",
    "rerank_nested": "a reranker recalls: what it gets is not reranked",
    # context assembly
    "search_before_warm_up": "a context was asked for while models and tables were being loaded",
    "tier_late": "a tier missed its deadline, and is left out of a context",
    "tier_failed": "a tier failed, and is left out of a context",
    "instructions_not_read": "a user's instructions could not be read: a context lacks them",
    "instructions_left_out": "a user has more instructions than fit into their share of a context",
    "synopsis_left_out": "there is no room for the synopsis in a context",
}
