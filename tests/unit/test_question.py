"""What a question finds besides its words and its meaning as a whole: other words, the session that
was about it, times; and how much of what it finds is worth a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from remora import Config, Runtime
from remora.config import RecallConfig
from remora.models.static import WordLlamaEmbedder
from remora.recall.near import Vocabulary
from remora.recall.question import Question, ask, related_words, weigh_words
from remora.recall.user_index import UserIndex
from remora.storage.memory import MemoryStore
from remora.storage.ports import EVERYTHING, MemoryRow
from remora.testing import HashEmbedder, long_term_row
from tests.harness import user

pytestmark = pytest.mark.anyio
EMBEDDER = WordLlamaEmbedder()
VOCABULARY = Vocabulary(EMBEDDER)


def row(
    seq: int, text: str, *, session: str = "s", role: str = "user", speaker: str = ""
) -> MemoryRow:
    said: dict[str, Any] = {"memory_type": "message", "role": role, "created_us": seq}
    id_ = f"{session}-{seq}"
    return long_term_row(id_, text, session=session, seq=seq, speaker=speaker, **said)


async def order(rows: Sequence[MemoryRow], question: Question, **config: Any) -> list[str]:
    ranking = await UserIndex(rows, None).rank(question, EVERYTHING, RecallConfig(**config))
    return [one.row.id for one in ranking]


async def asked(text: str) -> Question:
    whole = await ask(text, EMBEDDER, VOCABULARY)
    return Question(whole.text, None, whole.vocabulary)  # by words alone


async def test_other_words() -> None:
    """What was said in other words than the question's is found, after what has its words."""
    rows = [
        row(1, "The bus was late."),
        row(4, "We feed two dogs."),
        row(7, "The animals are asleep."),
    ]
    assert await order(rows, await asked("Which animals?")) == ["s-7", "s-4"]
    assert await order(rows, await asked("Which animals?"), near_words=0.0) == ["s-7"]


async def test_names_have_no_near_words() -> None:
    """Rose is not a flower, and Will no testament: neither a speaker, nor another name."""
    question = await asked("Did Rose mention Flower and the dog?")
    assert question.words_with_near_ones == ["mention", "dog"]
    question = await asked("what did flower do?")
    index = UserIndex([row(1, "a plant in the garden")], None)
    said = index.words_of(VOCABULARY)
    assert {*weigh_words(question, set(), said, 0.4)} == {"flower", "plant", "garden"}
    assert related_words(question, {"flower"}) == {}
    assert set(weigh_words(question, {"flower", "power"}, said, 0.4)) == {"flower"}


class OddWords(HashEmbedder):
    """An embedder of an application whose near words are not as they should be."""

    def __init__(self, vocabulary: Any, near: Any) -> None:
        super().__init__()
        self._vocabulary, self._near = vocabulary, near

    def vocabulary(self) -> Sequence[str]:
        found: Sequence[str] = (
            self._vocabulary() if callable(self._vocabulary) else self._vocabulary
        )
        return found

    def near_words(
        self, words: Sequence[str], among: npt.NDArray[np.int32]
    ) -> Sequence[Sequence[tuple[int, float]]]:
        return self._near() if callable(self._near) else [self._near for _ in words]


def raising(error: BaseException) -> Any:
    def fail() -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("vocabulary", "near"),
    [
        ((), ()),
        (None, ()),
        ([1, 2], ()),
        (raising(RuntimeError("away")), ()),
        (raising(SystemExit(1)), ()),
        (["plant"], raising(ZeroDivisionError())),
        (["plant"], raising(SystemExit(1))),
        (["plant"], [(7, 0.5)]),
        (["plant"], [(-1, 0.5)]),
        (["plant"], [(0, float("nan"))]),
        (["plant"], [(0, 1e300)]),
        (["plant"], [(0, "0.5")]),
        (["plant"], [(0, None)]),
    ],
)
async def test_where_near_words_fail_words_and_vectors_find(vocabulary: Any, near: Any) -> None:
    embedder = OddWords(vocabulary, near)
    rows = [row(1, "a plant in the garden"), row(2, "the tea is cold")]
    index = UserIndex(rows, await embedder.embed([one.content for one in rows]))
    known = Vocabulary(embedder)
    for _ in range(2):
        question = await ask("where is the tea?", embedder, known)
        ranking = await index.rank(question, EVERYTHING, RecallConfig())
        best = next(iter(ranking))
        assert best.row.content == "the tea is cold"
        assert 0 < best.score < 100


async def test_a_session_about_it() -> None:
    """Of two messages that match alike, the one whose session is about the question; a message that
    says when answers a question of time.
    """
    rows = [
        row(1, "It cost forty euros.", session="one"),
        row(9, "The rent went up.", session="one"),
        row(1, "It cost forty euros.", session="two"),
        row(9, "The bicycle needs a new chain, a bicycle costs money.", session="two"),
    ]
    question = Question("What did the bicycle cost, how many euros?")
    found = await order(rows, question)
    assert found.index("two-1") < found.index("one-1")
    found = await order(rows, question, session_weight=0.0)
    assert found.index("two-1") > found.index("one-1"), "of equals the first"
    rows = [
        row(1, "The dentist said nothing."),
        row(5, "The dentist came yesterday."),
        row(9, "The dentist has a new house with a garden and a dog."),
    ]
    for text, first in (
        ("When did you see the dentist?", "s-5"),
        ("What day was the dentist?", "s-5"),
        ("What did the dentist say?", "s-1"),
    ):
        assert (await order(rows, Question(text)))[0] == first, text


async def test_users_with_names_and_an_assistant() -> None:
    """An assistant answers, so the user's messages count more, and their questions lose nothing;
    among people with names they do.
    """

    def chat(assistant: str) -> list[MemoryRow]:
        return [
            row(1, "The best baker is here in Porto.", role="assistant", speaker=assistant),
            row(5, "Where is a good baker in Porto?", speaker="Ann"),
            row(9, "In Porto.", role="assistant", speaker=assistant),
        ]

    question = Question("Which town has a baker, is it Porto?")
    assert (await order(chat(""), question))[0] == "s-5"
    assert (await order(chat("Bob"), question))[0] == "s-1"


SPOKEN = [
    f"On walk number {n} we saw a heron by the river, and it {how} for a while."
    for n, how in enumerate(["stood", "flew", "slept", "fished", "called"] * 12)
]


async def test_the_budget_decides_how_many() -> None:
    """A larger budget brings more; a question about nothing that was said does not fill it."""
    embedder = HashEmbedder()
    config = Config.from_dict({"recall": {"deadline_s": 600.0}})
    async with Runtime.in_memory(
        config=config, embedder=embedder, store=MemoryStore(embedder.dimension)
    ) as runtime:
        ann = runtime.user("ann")
        await ann.session("walks").append([user(one) for one in SPOKEN])
        await ann.session("trips").append(user("The ferry to Texel leaves at noon."))
        new = ann.session("new")
        few, many = [
            await new.load(query="Where was the heron on our walk?", max_tokens=budget)
            for budget in (500, 2_000)
        ]
        assert 0 < len(few.memories) < len(many.memories)
        assert len(many.memories) > 40
        assert few.tokens <= 500
        assert many.tokens <= 2_000
        other = await new.load(query="Which telescopes do astronomers polish?", max_tokens=2_000)
        assert len(other.memories) == 16
        ferry = await new.load(query="When does the ferry leave for Texel?", max_tokens=2_000)
        assert ferry.memories[0].text == "The ferry to Texel leaves at noon."


async def test_a_number_is_no_day_of_a_month() -> None:
    """A message is searched with its date before it, which a bare number does not ask for."""
    day = 86_400_000_000
    said = ["The meeting is in room 7.", "We painted the fence.", "The bus is late."]
    rows = [
        replace(
            row(3 * n, text),
            created_us=(6 + n) * day,
            turn=f"({7 + n} January 1970) User: {text}",
            window=f"({7 + n} January 1970) User: {text}",
        )
        for n, text in enumerate(said)
    ]
    assert await order(rows, Question("8+8=?")) == []
    assert await order(rows, Question("Who is in 7?")) == ["s-0"]
    assert await order(rows, Question("Who sat in room 9?")) == ["s-0"]
    assert (await order(rows, await ask("What was on 8 January?", None, today=30)))[0] == "s-3"
