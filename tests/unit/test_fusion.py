"""How lists become one ranking: who spoke, what kind of message it is, and whether the vectors are
to be believed.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.config import RecallConfig
from remora.recall.question import Question
from remora.recall.ranking import fuse
from remora.recall.traits import asks, question_share, speakers_named
from remora.storage.ports import Candidate, MemoryRow
from remora.testing import long_term_row


def candidate(
    seq: int,
    text: str = "",
    *,
    speaker: str = "",
    role: str = "user",
    session: str = "s",
    **scores: float,
) -> Candidate:
    said: dict[str, Any] = {"memory_type": "message", "role": role, "created_us": seq}
    id_ = f"{session}-{seq}"
    row = long_term_row(id_, text, session=session, seq=seq, speaker=speaker, **said)
    return Candidate(row, scores)


def order(candidates: list[Candidate], query: str = "", **config: Any) -> list[int]:
    return [one.row.seq for one in fuse(candidates, RecallConfig(**config), Question(query))]


def test_a_named_speaker_comes_first() -> None:
    """S2.28: of two messages that match alike, the one by whom the query names; elsewhere nothing
    changes. A name counts as one; the word that it also is does not, unless the query has no
    capitals at all.
    """
    everybody = {"Caroline", "Will", "Ann", "anna_maria", "Bob 2", "张伟", ""}
    cases: dict[str, set[str]] = {
        "What did Caroline paint?": {"Caroline"},
        "what did caroline paint?": {"Caroline"},
        "What is CAROLINE's job?": {"Caroline"},
        "When will Ann call?": {"Ann"},
        "Will Ann call Bob?": {"Will", "Ann", "Bob 2"},  # a sentence begins with a capital anyway
        "Does Anna Maria like it?": {"anna_maria"},
        "Is 2 the answer?": set(),
        "张伟说了什么?": {"张伟"},
        "": set(),
    }
    assert {query: speakers_named(query, everybody) for query in cases} == cases
    both = [
        candidate(1, speaker="Bob", turn=2.0),
        candidate(5, speaker="Ann", turn=2.0),
        candidate(9, speaker="Bob", turn=1.0),
    ]
    assert order(both, "what did Ann say") == [5, 1, 9]
    assert order(both, "what was said") == [1, 5, 9]
    assert order(both, "what did Ann say", speaker_prior=1.0) == [1, 5, 9]


def test_what_a_question_is() -> None:
    """S2.28: by its marks, in several scripts; a message of both kinds counts by its share."""
    cases: tuple[tuple[str, float | None, bool], ...] = (
        ("", 0.0, False),
        ("Porto.", 0.0, False),
        ("Where do you live?", 1.0, True),
        ("Where do you live? 🙂", 1.0, True),
        ("Where was that? [shares a photo of a beach]", None, True),
        ("I moved. Why?", 0.3, True),
        ("Why? I moved.", 0.3, False),
        ("你住在哪里\uff1f", 1.0, True),
        ("?", 0.0, True),
    )
    for text, share, ends in cases:
        assert share is None or question_share(text) == pytest.approx(share, abs=0.1), text
        assert asks(text) is ends, text


def test_an_answer_comes_before_its_question() -> None:
    """S2.28: the words match the question, the answer stands after it; an assistant's answer to a
    user gains nothing.
    """
    asked, answer, other = "Where do you live?", "In Porto, by the river.", "It rained."
    people = [
        candidate(1, asked, speaker="Ann", turn=3.0),
        candidate(2, answer, speaker="Bob", turn=2.0),
        candidate(7, other, speaker="Bob", turn=2.1),
        candidate(9, other, speaker="Bob", turn=1.0),
    ]
    assert order(people) == [2, 1, 7, 9]
    plain = order(people, question_penalty=0.0, answer_bonus=0.0, neighbour_bonus=0.0)
    assert plain == [1, 7, 2, 9]
    chat = [
        candidate(1, asked, turn=3.0),
        candidate(2, answer, role="assistant", turn=2.0),
        candidate(9, other, turn=1.0),
    ]
    with_bonus, without = (fuse(chat, RecallConfig(answer_bonus=bonus)) for bonus in (5.0, 0.0))
    assert [one.score for one in with_bonus] == [one.score for one in without]


def test_a_long_message_stands_for_itself() -> None:
    """S2.28: beside a match a short message comes up, a long one does not; the longer, the less it
    gains.
    """
    match, stray = candidate(1, "bees", turn=9.0), candidate(9, "bees, once", turn=3.0)
    bottom = candidate(20, "b", turn=0.0)

    def gained(text: str) -> float:
        beside = candidate(2, text, turn=1.0)
        return next(
            one.score
            for one in fuse([match, beside, stray, bottom], RecallConfig())
            if one.row.seq == 2
        )

    assert gained("Eleven hives.") == gained("x" * 300) > gained("x" * 600) > gained("x" * 6_000)
    assert order([match, candidate(2, "Eleven hives.", turn=1.0), stray, bottom])[:2] == [1, 2]
    assert order([match, candidate(2, "x" * 6_000, turn=1.0), stray, bottom])[:2] == [1, 9]


def test_vectors_that_contradict_the_words_weigh_little() -> None:
    """S4.03: with an embedder that knows nothing, text decides; with one that agrees, or without
    words, the vectors count.
    """
    rng = random.Random(1)
    noise = [rng.random() for _ in range(100)]
    noise[99] = 1.0
    words = [float(100 - n) for n in range(100)]
    useless = [
        candidate(3 * n, turn=words[n], window=words[n], vector=noise[n]) for n in range(100)
    ]
    useful = [
        candidate(3 * n, turn=words[n], window=words[n], vector=words[n] + 10 * noise[n])
        for n in range(100)
    ]
    plain = [candidate(3 * n, turn=words[n], window=words[n]) for n in range(100)]
    guarded = RecallConfig(vector_weight=1.0)
    trusted = RecallConfig(vector_weight=1.0, vector_agreement=0.0)

    def moved(candidates: list[Candidate], config: RecallConfig) -> int:
        best = [one.row.seq for one in list(fuse(plain, config))[:10]]
        return len(set(best) - {one.row.seq for one in list(fuse(candidates, config))[:10]})

    assert moved(useless, guarded) < moved(useless, trusted)
    assert list(fuse(useful, guarded)) == list(fuse(useful, trusted))
    wordless = [candidate(3 * n, vector=noise[n]) for n in range(100)]
    assert next(iter(fuse(wordless, guarded))).row.seq == 3 * 99
    few = useless[:20]
    assert list(fuse(few, guarded)) == list(fuse(few, trusted))


rows = st.builds(
    candidate,
    st.integers(1, 30),
    st.sampled_from(["", "I like maps.", "Do you?", "Yes [laughs]"]),
    speaker=st.sampled_from(["", "Ann", "Bob"]),
    role=st.sampled_from(["user", "assistant", "tool"]),
    session=st.sampled_from(["one", "two"]),
    turn=st.floats(0, 30),
    vector=st.floats(-1, 1),
)


@given(
    st.lists(rows, max_size=60, unique_by=lambda one: one.row.id), st.randoms(use_true_random=False)
)
def test_every_candidate_once_and_in_one_order(
    candidates: list[Candidate], rng: random.Random
) -> None:
    """S2.29: whatever the lists held and in whichever order, each message comes out once, best
    first, always the same.
    """
    ranked = list(fuse(candidates, RecallConfig(), Question("what did Ann say?")))
    assert sorted(one.row.id for one in ranked) == sorted(one.row.id for one in candidates)
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    shuffled = list(candidates)
    rng.shuffle(shuffled)
    again = list(fuse(shuffled, RecallConfig(), Question("what did Ann say?")))
    assert [one.score for one in again] == pytest.approx([one.score for one in ranked])
    assert all(0 <= value <= 1 for one in ranked for value in one.parts.values())


def test_what_a_store_found_is_ranked_by_sessions_times_and_new_words() -> None:
    """A user who is too large for memory is ranked by the same steps."""

    def said(name: str, text: str, session: str, seq: int) -> MemoryRow:
        made = long_term_row(
            name, text, session=session, seq=seq, role="user", memory_type="message"
        )
        return msgspec.structs.replace(made, turn=f"(8 May 2023) User: {text}")

    rows = [
        said("a", "The museum is large.", "alone", 1),
        said("b", "The museum was open on Tuesday last week.", "often", 11),
        said("c", "A museum ticket costs ten euros.", "often", 21),
        said("d", "The museum?", "often", 31),
    ]
    candidates = [Candidate(row, {"turn": 5.0}) for row in rows]
    config = RecallConfig(neighbour_bonus=0.0)
    when = [one.row.id for one in fuse(candidates, config, Question("When is the museum open?"))]
    assert when[0] == "b"
    which = [one.row.id for one in fuse(candidates, config, Question("Which museum is it?"))]
    assert which[0] != "a"
    assert which[-1] in {"a", "d"}
