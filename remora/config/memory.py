"""Configuration of what is remembered of a user: working memory, profile, importance, recall."""

from typing import Literal

from remora.config.section import Section
from remora.errors import ConfigError


class WorkingConfig(Section, frozen=True, kw_only=True):
    """Working memory: what a user's agents note and search during the day, by meaning."""

    max_memory_mb: float = 10.0
    """Of each user; the oldest items are removed first."""
    fifo_interval_min: float = 5.0
    """How often the supervisor has every live user's actor clean up."""
    embedding_cache: int = 1_000
    """Texts whose vectors are kept; the least recently used leave first."""
    limit: int = 5
    """Items that `load(query=…)` adds to a context."""


class SynopsisConfig(Section, frozen=True, kw_only=True):
    """The user profile: who a user is, and what they are about."""

    identity_ttl: float = 604_800.0
    """Seconds for which name, preferences and traits hold: 7 days."""
    context_ttl: float = 3_600.0
    """Seconds for which recent topics and goals hold: an hour."""
    refresh_on_access: bool = True
    """Reading a profile extends it by a whole term."""
    shown: Literal["with_model", "always", "never"] = "with_model"
    """Whether `load(query=…)` adds the profile. `with_model`: if there is a chat model to write it.
    `always`: without one, too, as an extract of what was said. `never`: contexts have none, and
    `User.synopsis()` still asks the chat model for it."""
    max_tokens: int = 1_000
    """Both parts together; at most a quarter of `buffer.token_limit`, its share of a context."""
    deadline_s: float = 0.5
    """After this time `load(query=…)` omits the profile, and its sources say so."""
    prompt: str = ""
    """Instructions to the chat model that writes the profile; empty for remora's own."""


class FactsConfig(Section, frozen=True, kw_only=True):
    """Facts that the chat model extracts from what was said, as memories of the user."""

    enabled: bool = False
    """Extract facts from messages when they are indexed: a call of the chat model for each batch of
    messages, and another one that compares the facts with each other and with similar ones. A model
    that is there for summaries does not switch it on, because it costs; without a chat model, and
    without long-term memory, nothing is extracted."""
    per_session: int = 500
    """Facts of one session, at most."""
    max_characters: int = 300
    """Of one fact; a longer one is dropped."""
    prompt: str = ""
    """Instructions to the chat model; empty for remora's own. It must say which JSON to answer."""


class ImportanceConfig(Section, frozen=True, kw_only=True):
    """Weights of a memory's importance."""

    formula: Literal["bounded", "seed"] = "bounded"
    """bounded: 0 to 1 for any access count. seed: MUXI's own, in which the access count can
    outweigh everything else."""
    half_life_days: float = 30.0
    """Age at which recency has halved."""
    score_messages: bool = False
    """Score messages by their form when they are appended, if the application has no scorer."""
    weight: float = 0.2
    """How much a memory's own importance moves its rank; an importance of 0.5 moves nothing."""


_LEAST_ROOM = 300  # tokens


class RecallConfig(Section, frozen=True, kw_only=True):
    """How lists of candidates become one ranking; measured on LoCoMo, REALTALK, BFCL and BEAM."""

    limit: int = 500
    """Most memories that `load(query=…)` adds. The budget decides before that: `context_share` of
    it, and what the conversation leaves."""
    relevance: float = 0.15
    """Share of the best memory's score below which a memory is not worth its tokens; more where
    no message has half of the question's words, half of it where the question asks for several
    things. 0 fills the budget. LoCoMo, contexts of 4,000 tokens: all the evidence in .872, with
    2,657 tokens of memories (0: .882, 3,933), and 2,430 tokens for questions of which nobody ever
    spoke (0: 3,932)."""
    depth: int = 200
    """Candidates taken from each list (LoCoMo: R@10 .815 with 200, .807 with 100)."""
    turn_weight: float = 0.5
    """Weight of the full-text match of the message (bm25)."""
    window_weight: float = 0.5
    """Weight of the full-text match of the message with its neighbours (bm25_neighbourhood)."""
    vector_weight: float = 0.35
    """Weight of the similarity of meaning (cosine). For people's chat anything from 0.25 to 0.5 is
    equal with the embedded embedder; agent chat wants more (BEAM: R@10 .504 at 0.25, .535 at
    0.5). A transformer wants 0.5 (LoCoMo, e5-small: R@5 .736 at 0.25, .743 at 0.5)."""
    vector_agreement: float = 0.2
    """Correlation of the vector list with the text lists below which the vector list loses weight,
    so that a useless embedder does no harm; 0 trusts any."""
    neighbour_bonus: float = 0.3
    """Share of its best neighbour's score that a message gains."""
    neighbour_chars: int = 300
    """Length up to which a message gains all of that; at twice the length, half."""
    answer_bonus: float = 0.2
    """Further share that it gains from a question right before it."""
    question_penalty: float = 0.3
    """Share that a message loses if it consists of questions only; others lose in proportion. For
    people with names only: users ask an assistant in the very message that holds the fact (BEAM:
    R@10 rises by .025 without it)."""
    speaker_prior: float = 1.5
    """Factor for messages whose speaker is named in the query."""
    user_prior: float = 1.5
    """Factor for a user's messages, and tools' results, where an assistant answers: three quarters
    of the evidence is in a user's (BEAM: R@10 falls by .066 without it), and most of the rest
    in results. With or without names; not where all who speak are people with names."""
    identifier_bonus: float = 1.0
    """Further share that a message gains if it has the identifier that the question names: an order
    number, a code, an e-mail address, a path. Of several, rare ones count more."""
    near_words: float = 0.4
    """What a word counts that is near a word of the question in meaning, times its cosine; 0 looks
    for none. It finds what was said in other words (LoCoMo: R@5 .755 instead of .743). The
    embedded embedder knows near words, and one of yours may. Everyday words of six languages are
    written down ("heating", "boiler", "Heizung") and count as much without an embedder (R@10
    .828 instead of .823). A user with more than `hot_rows` rows is searched without them."""
    session_weight: float = 0.2
    """Weight of the full-text match of a message's whole session (bm25): questions are often about
    what one conversation was about (LoCoMo: R@5 .755 instead of .747)."""
    time_bonus: float = 1.3
    """Factor for messages that say when ("yesterday", "last week"), if the question asks for it, in
    English, German, French, Spanish, Japanese or Chinese (LoCoMo: R@1 .443 instead of .430,
    R@5 .755 instead of .752)."""
    date_bonus: float = 1.75
    """Factor for messages of the days that a question names ("on 7 May", "last summer", "vor zwei
    Wochen"), because they were said or speak of them; 1 reads no dates (LoCoMo, questions with
    dates: R@5 .798 instead of .769)."""
    list_spread: float = 0.05
    """Share of its score that a message loses for each better one of its session, up to seven, if
    the question asks for several things ("which books", "how many", "all the"), in English, German,
    French, Spanish, Japanese or Chinese; 0 for none (LoCoMo, questions of several messages:
    R@10 .531 instead of .510; lists in generated chats: .282 instead of .269)."""
    deadline_s: float = 1.0
    """After this time `load(query=…)` omits long-term memory, and its sources say so."""
    rerank_depth: int = 50
    """How many of the best memories a reranker judges, if there is one; the others keep their
    places behind them. LoCoMo: with 50 a small model raised R@10 from .815 to .830, with 20
    to .826."""
    rerank_weight: float = 0.5
    """What a reranker's scores count among the memories that it judged, from 0 to 1; those of the
    fusion count the rest. LoCoMo, word by word with a MiniLM: R@10 .815 at 0, .830 at 0.35,
    .826 at 0.5, .814 at 0.7, .741 at 1. A large model may deserve more."""
    rerank_deadline_s: float = 0.5
    """After this time the memories keep the order that they were found in, and the sources of
    `load(query=…)` say so. Within `deadline_s`, a reranker has four fifths of what is left."""
    warm_up_s: float = 10.0
    """How long the first `load(query=…)` of a process waits for models and tables that are still
    being loaded, before `deadline_s` begins; 0 does not wait. Loading takes 1 to 3 s; ten leave
    room for a slow disk. `Runtime.ready` waits for it before a server takes requests."""
    insert_method: Literal["tail", "user"] = "tail"
    """Where recalled memories go: into a message of `context.quoted_role` before the newest user
    message, or into that message, at its start."""
    floor: float = 0.0
    """How near a memory must be to a question (the cosine of their vectors) that has none of its
    words, and none of its neighbours' words. What is neither is no answer: `recall` and `load` may
    find nothing. 0 for no floor: the most similar memories are found, however little that is."""
    context_share: float = 0.1
    """Share of the budget that is reserved for recalled memories; of a small budget a quarter, up
    to 300 tokens, if that is more. While the conversation is short, they get what it leaves."""
    cache: int = 1_000
    """Recalls whose results are kept until something is written about their user."""
    unindexed_rows: int = 1_000
    """Rows of a user that are searched although they are not indexed yet, at most, the newest
    first; `context.sources` says when there are more. Two sessions with full buffers have some
    800. A row takes 0.1 ms to make and 5 kB; while a user talks, each recall takes two to three
    times as long for them, most of what recall costs. When a recall finds half as many, or 20,000
    of all users, the sessions with the most are indexed. 0 searches what is indexed only."""
    hot_mb: int = 256
    """Memory for the rows and vectors of the users who recalled last (the user index), which are
    searched there and not in the store: 2.5 to 3.5 kB per row of a conversation. 0 always searches
    the store: for one that other processes write to, or that searches in its own way."""
    hot_rows: int = 20_000
    """A user with more rows than this is always searched in the store, without the words of a
    message's neighbours."""

    def room(self, budget: int) -> int:
        """The tokens of a context's budget that are reserved for recalled memories."""
        return max(int(budget * self.context_share), min(budget // 4, _LEAST_ROOM))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rerank_weight > 1:
            raise ConfigError(
                f"rerank_weight must be at most 1, not {self.rerank_weight}", key="rerank_weight"
            )
        if self.list_spread > 1:
            raise ConfigError(
                f"list_spread must be at most 1, not {self.list_spread}", key="list_spread"
            )
