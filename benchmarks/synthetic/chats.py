"""Makes the conversations and their questions; see `benchmarks.synthetic`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["make_chats", "to_jsonl"]

Row = dict[str, Any]

_MATERIAL = Path(__file__).parent / "material"
_USERS = ("ada", "bela", "chidi", "dora", "emre", "frida", "goran", "hana")
_SESSIONS = 26
_EXCHANGES = (4, 6)  # of a session, besides those that it needs for tools and advice
_MARKED = 0.5  # share of such things that are said with a word for their kind
_LISTS = 6  # kinds of things of which a user says several
_SINGLE, _UPDATES, _DATES, _INSTRUCTIONS, _TOOLS, _ADVISED = 14, 5, 6, 4, 5, 5
_NEVER_SAID = (3, 2, 2, 1)  # questions about singles, updates, dates, and what nobody speaks of


def make_chats() -> list[Row]:
    """Messages and questions of all users, as dicts of docs/reference/replay-format.md."""
    material = {
        name: tomllib.loads((_MATERIAL / f"{name}.toml").read_text(encoding="utf-8"))
        for name in ("domains", "facts", "talk")
    }
    return [row for user in _USERS for row in _Chat(user, material).rows()]


def to_jsonl(rows: Iterable[Row]) -> str:
    """One line for each."""
    return "".join(
        json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows
    )


class _Said:
    """What is to be said in a session; `key` is where it was, once it is said."""

    def __init__(self, text: str, **exchange: Any) -> None:
        self.text = text
        self.exchange = exchange  # the assistant's part, if what is said asks for one of its own
        self.key = ""


class _Chat:
    """One user's conversations."""

    def __init__(self, user: str, material: Mapping[str, Any]) -> None:
        self._user = user
        self._rng = Random(f"remora {user}")
        self._domains: Sequence[Row] = material["domains"]["domain"]
        self._facts: Mapping[str, Any] = material["facts"]
        self._talk: Mapping[str, Sequence[str]] = material["talk"]
        self._sessions: list[list[_Said]] = [[] for _ in range(_SESSIONS)]
        self._asked: list[tuple[str, str, list[_Said]]] = []
        self._messages: list[Row] = []

    def rows(self) -> list[Row]:
        self._plan_lists()
        self._plan_facts()
        self._plan_exchanges()
        day = datetime(2024, 9, 2, tzinfo=UTC)
        domains = self._rng.sample(self._domains, len(self._domains))
        for number, planned in enumerate(self._sessions):
            day += timedelta(days=self._rng.randint(5, 27))
            begun = day.replace(hour=self._rng.randint(7, 21), minute=self._rng.randint(0, 59))
            self._rng.shuffle(planned)
            self._talk_about(number, begun, domains[number % len(domains)], planned)
        questions: list[Row] = [
            {
                "type": "qa",
                "conv": self._user,
                "qid": f"{self._user}-{number}",
                "category": category,
                "question": text,
                "evidence": [said.key for said in evidence],
            }
            for number, (category, text, evidence) in enumerate(self._asked, start=1)
        ]
        return [*self._messages, *questions]

    # -- what is said, and when -------------------------------------------------------------

    def _plan_lists(self) -> None:
        chosen = self._rng.sample(self._domains, _LISTS)
        for number, domain in enumerate(chosen):
            items = self._rng.sample(domain["items"], self._rng.randint(3, 8))
            said = [_Said(self._named(domain, item)) for item in items]
            self._put(said)
            self._asked.append(("list", self._rng.choice(domain["lists"]), said))
            if number % 2:
                self._asked.append(("count", self._rng.choice(domain["counts"]), said))
        for domain in self._rng.sample(self._domains, 8):
            others = self._rng.sample(domain["others"], 2)
            self._put([_Said(self._named(domain, other)) for other in others])

    def _plan_facts(self) -> None:
        facts = self._facts
        given, missing = self._divide(facts["single"], _SINGLE)
        for one in given:
            self._ask_of("single", self._rng.choice(one["ask"]), self._fill(one["say"]))
        never = [self._rng.choice(one["ask"]) for one in missing[: _NEVER_SAID[0]]]
        given, missing = self._divide(facts["update"], _UPDATES)
        for one in given:
            count = self._rng.randint(2, 3)
            values = self._rng.sample(one["values"], count)
            said = [
                _Said(_sentence(text.replace("{v}", value)))
                for text, value in zip(one["say"], values, strict=False)
            ]
            self._put(said, ordered=True)
            self._asked.append(("update", self._rng.choice(one["ask"]), [said[-1]]))
        never += [self._rng.choice(one["ask"]) for one in missing[: _NEVER_SAID[1]]]
        given, missing = self._divide(facts["date"], _DATES)
        for one in given:
            self._ask_of("date", self._rng.choice(one["ask"]), one["say"])
        never += [self._rng.choice(one["ask"]) for one in missing[: _NEVER_SAID[2]]]
        for one in self._rng.sample(facts["instruction"], _INSTRUCTIONS):
            rule = self._ask_of("instruction", self._rng.choice(one["ask"]), one["say"])
            self._asked.append(("instruction applied", one["apply"], [rule]))
        never += self._rng.sample(facts["nowhere"]["ask"], _NEVER_SAID[3])
        self._asked += [("unanswerable", text, []) for text in never]

    def _plan_exchanges(self) -> None:
        """What the assistant says, after a tool call or out of itself, is the evidence."""
        for one in self._rng.sample(self._facts["tool"], _TOOLS):
            names = {name: self._rng.choice(self._talk[name]) for name in ("city", "shop", "place")}
            result = json.dumps(one["result"], ensure_ascii=False)
            said = _Said(
                _filled(one["request"], names),
                tool=one["name"],
                result=_filled(result, names),
                answer=_filled(one["answer"], names),
            )
            self._put([said])
            question = _filled(self._rng.choice(one["ask"]), names)
            self._asked.append(("tool", question, [said]))
        for one in self._rng.sample(self._facts["advised"], _ADVISED):
            said = _Said(one["request"], answer=one["answer"])
            self._put([said])
            self._asked.append(("advised", self._rng.choice(one["ask"]), [said]))

    def _ask_of(self, category: str, question: str, text: str) -> _Said:
        said = _Said(text)
        self._put([said])
        self._asked.append((category, question, [said]))
        return said

    def _put(self, said: Sequence[_Said], *, ordered: bool = False) -> None:
        """Into as many sessions, each."""
        numbers = self._rng.sample(range(_SESSIONS), len(said))
        for number, one in zip(sorted(numbers) if ordered else numbers, said, strict=True):
            self._sessions[number].append(one)

    def _divide(self, among: Sequence[Row], count: int) -> tuple[list[Row], list[Row]]:
        mixed = self._rng.sample(among, len(among))
        return mixed[:count], mixed[count:]

    def _named(self, domain: Row, text: str) -> str:
        """With a sentence that names the kind of thing, or without."""
        text = self._fill(text)
        return (
            f"{text} {self._rng.choice(domain['marks'])}" if self._rng.random() < _MARKED else text
        )

    def _fill(self, text: str) -> str:
        return _filled(text, {name: self._rng.choice(some) for name, some in self._talk.items()})

    # -- how it is said ---------------------------------------------------------------------

    def _talk_about(
        self, number: int, begun: datetime, domain: Row, planned: Sequence[_Said]
    ) -> None:
        at, added = begun, 0

        def add(role: str, content: str | None, **rest: Any) -> str:
            nonlocal at, added
            at += timedelta(seconds=self._rng.randint(8, 90))
            added += 1
            key = f"{number}.{added}"
            self._messages.append(
                {
                    "user": self._user,
                    "session": f"session-{number}",
                    "timestamp": at.isoformat(),
                    "key": key,
                    "role": role,
                    "content": content,
                    **rest,
                }
            )
            return key

        passing = [one for one in planned if not one.exchange]
        turns: list[_Said | None] = [one for one in planned if one.exchange]
        turns += [None] * max(self._rng.randint(*_EXCHANGES), len(passing) - 1)
        self._rng.shuffle(turns)
        free = [place for place, one in enumerate(turns) if one is None]
        told = dict(
            zip(self._rng.sample(free, min(len(passing), len(free))), passing, strict=False)
        )
        left = passing[len(told) :]
        helped = False
        for place, own in enumerate(turns):
            if own is not None:
                self._exchange(own, domain, add)
                continue
            mentioned = [told[place]] if place in told else []
            if mentioned and left:
                mentioned.append(left.pop())
            request = self._rng.choice(self._talk["follow"] if helped else domain["help"])
            short = len(mentioned) == 1 and self._rng.random() < 0.3
            helped = helped or not short
            key = add("user", self._request("" if short else request, mentioned, first=not place))
            for one in mentioned:
                one.key = key
            react = self._rng.choice(self._talk["react"]) if mentioned else ""
            add("assistant", react if short else self._answer(domain, react))

    def _exchange(self, said: _Said, domain: Row, add: Any) -> None:
        add("user", self._request(said.text, [], first=False))
        answer, tool = said.exchange["answer"], said.exchange.get("tool")
        if tool is not None:
            call = {
                "id": f"call_{self._rng.randrange(1 << 32):08x}",
                "type": "function",
                "function": {"name": tool, "arguments": json.dumps({"query": said.text})},
            }
            add("assistant", None, tool_calls=[call])
            add("tool", said.exchange["result"], tool_call_id=call["id"])
            said.key = add("assistant", answer)
        else:
            said.key = add("assistant", self._answer(domain, "", answer))

    def _request(self, request: str, mentioned: Sequence[_Said], *, first: bool) -> str:
        """A message of the user: what is wanted, and what is said in passing, before or after."""
        told = []
        for one in mentioned:
            bridge = self._rng.choice(self._talk["bridge"]) if request else ""
            told.append(f"{bridge} {one.text}".strip())
        if self._rng.random() < 0.4:
            told.insert(self._rng.randint(0, len(told)), self._rng.choice(self._talk["small"]))
        place = self._rng.randint(0, len(told))
        parts = [*told[:place], request, *told[place:]]
        if first:
            parts.insert(0, self._rng.choice(self._talk["greeting"]))
        return " ".join(part for part in parts if part)

    def _answer(self, domain: Row, react: str, point: str = "") -> str:
        """A long answer of the assistant, in paragraphs or as a list."""
        rng, talk = self._rng, self._talk
        sentences = rng.sample(domain["advice"], rng.randint(3, 6))
        sentences += rng.sample(talk["filler"], rng.randint(2, 5))
        rng.shuffle(sentences)
        if point:
            sentences.insert(rng.randint(1, len(sentences)), point)
        if rng.random() < 0.5:
            body = "\n".join(f"{place}. {one}" for place, one in enumerate(sentences, start=1))
        else:
            half = len(sentences) // 2
            body = " ".join(sentences[:half]) + "\n\n" + " ".join(sentences[half:])
        parts = [" ".join(part for part in (react, rng.choice(talk["open"])) if part), body]
        return "\n\n".join([*parts, rng.choice(talk["close"])])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text
