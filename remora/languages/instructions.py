"""Standing instructions and constraints in what a user says: "always", "please don't", "call me".

And sentences that take them back: "forget what I said about emojis", "you can use emojis again".

English, German, French, Spanish, Italian, Portuguese, Dutch, Swedish, Danish, Norwegian, Turkish,
Russian, Japanese and Chinese; the patterns are in `instructions.toml`. Only sentences that address
the assistant, or state what their speaker prefers or must avoid, count: "I always wake up at seven"
is a habit. What is quoted, or in a block of code, is not the speaker's own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from remora.languages.detection import FUNCTION_WORDS
from remora.languages.patterns import late
from remora.languages.search_words import (
    fold_accents,
    make_stemmer,
    pair_characters,
    plain_letters,
)

_FILE = Path(__file__).with_suffix(".toml")
_MOST_CHARS = 2_000  # a longer message was pasted
_MOST_BYTES = 4 * _MOST_CHARS + 1_000  # of one that is encoded
_LONGEST, _SHORTEST = 300, 4  # characters of a sentence
_MOST = 3  # of a message
_SHARE_NAMED = 0.6  # of the words of what is taken back, that an instruction has
_MOST_WITHDRAWALS = 32
_LEAST_ALIKE, _SHARE_ALIKE = 4, 0.6  # letters at the beginning of two forms of a word
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n+")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|<(\w+)[^<>]*>.*?(?:</\1>|\Z)", re.DOTALL)
_QUOTED = re.compile(r"^[>|\"\u201c\u201e\u00ab'\u2018\u300c]")
_BULLET = re.compile(r"^(?:[-*\u2022]|\d{1,2}[.)])\s+")
_QUOTES = re.compile('["\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d]')
_ENDS = " .!,;:\u3002\uff01"
_TOKEN = re.compile(r"\w+")
_WORD = re.compile(r"[^\W\d_]+")
_UNSPACED = late("[\u3041-\u30ff\u4e00-\u9fff]")
_ASKS_TO = re.compile(r"^(?:please,? |and )*(?:can|could|would) you\b")
_FROM_NOW_ON = b"from now on"
_BLANKS = bytes(
    one if 97 <= one <= 122 else one + 32 if 65 <= one <= 90 else 32 for one in range(256)
)
# Before a text MessagePack has its length, which may look like a letter of its first word.
_LENGTHS = re.compile(rb"\xd9.|\xda..", re.DOTALL)
# The first two bytes of a letter that is not ASCII, in the languages that have some. What else
# MessagePack puts around texts has bytes over 127, too, but seldom such two.
_OTHER_LETTERS = re.compile(rb"[\xc3-\xc5\xd0\xd1\xe3-\xe9][\x80-\xbf]")
_OF_ANSWERS = late(
    r"answer|repl(?:y|ies)|respon|speak|talk|write (?:to me|in)\b|keep (?:it|them)|explain"
    r"|be (?:brief|short)"
    r"|antwort|schreib|sprich|sprech|red[e ]|halt|repon|parle|ecri|habla|contest|escrib|rispo|parla"
    r"|scriv|fal[ae]|antwoord|spreek|svar|snak|tala|cevap|отвеч|говори|пиши|答|話|说|說|回"
)
_MATTERS = {
    "name": late(
        r"\b(?:call|address) me (?!(?:at|back|on|when|before|after|later|if|until|during|only|in|by"
        r"|again|this|next|with|about|every|tomorrow|today|tonight)\b)\w"
        r"|\bnenn\w* mich\b|ppelle\w*-moi\b|\bllamame\b|\bchiamami\b"
        r"|\bchama-?me\b|\bme chame\b|\bnoem me\b|\bkall?[ad]? m[ei][gj]\b"
        r"|меня$|と呼んで|(?:叫|称呼|稱呼)我"
    ),
    "pronouns": late(r"\bpronouns\b"),
    "language": late(
        r"\b(?:in|auf|en|in het|pa|em) (?:\w+ )?(?:english|german|french|spanish|italian|dutch"
        r"|deutsch|englisch|franzosisch|spanisch|francais|anglais|allemand|ingles|espanol|frances|aleman"
        r"|inglese|italiano|portugues|nederlands|engels|svenska|dansk|norsk|engelsk|engelska"
        r"|portuguese|japanese|chinese|russian|turkish|swedish|danish|norwegian)\b"
        r"|türkce|по-\w+ски|(?:日本語|英語)で|用(?:中文|英文|英语|英語)"
    ),
    "length": late(
        r"\b(?:short|brief|concise|terse|long|detailed|verbose|lengthy|kurz\w*|knapp\w*|ausfuhrlich\w*"
        r"|courte?s?|concis\w*|detaille\w*|breve\w*|cort[oa]s?|detallad\w*)\b"
    ),
}
_POLARITY_TEXT = """
    always never don t do not stop avoid please ever again anymore any more use using from now going
    forward future make sure remember prefer rather instead only just like want need should must can
    could would i me my you your the a an to and in on of for is are be it that this when
    longer am m s re ve
    immer nie niemals nicht kein keine bitte ich mir mich toujours jamais pas je ne siempre nunca no
    sempre mai non nao altijd nooit niet geen
"""
_POLARITY = frozenset(_POLARITY_TEXT.split())
# "You may use French again" takes "never use French" back, and not "always use French".
_PERMITS = late(
    r"\b(?:you (?:can|may)|darfst|kannst|durfen|konnen|durft|konnt|peux|pouvez|puedes?|puoi|puo"
    r"|podes?|mag|kunt|kan|mogen|kunnen|far|maa?|можешь|можете|можно)\b|abilirsin|ebilirsin"
    r"|使って(?:も)?(?:いい|良い|大丈夫|ください)|可以"
)
_ASKS_FOR = late(
    r"\b(?:always|prefer|immer|bevorzuge|lieber|toujours|prefere|siempre|prefiero|sempre|preferisco"
    r"|prefiro|altijd|liever|alltid|altid|foredrar|foretrekker|foretraekker|her zaman|tercih|всегда"
    r"|предпочитаю)\b|いつも|常に|必ず|总是|總是|永远|永遠|务必|務必"
)
_FORBIDS = late(
    r"\b(?:not|never|no|dont|avoid|without|nie|niemals|nicht|kein\w*|ohne|vermeide\w*|ne|pas|jamais|sans"
    r"|evite\w*|nunca|jamas|sin|evita|non|mai|senza|nao|sem|niet|nooit|geen|zonder|vermijd|inte|ikke"
    r"|aldri[gk]?|ut[ae]n|uden|undvik|asla|не|никогда|без|избегаи\w*)\b|n't\b|ない|ません|避け|[不别別免]"
)


class Instruction(NamedTuple):
    """A wish of a user that holds from now on.

    Attributes:
        text: the sentence.
        about: tells instructions of one matter, of which the newest holds.
        withdraws: what it takes back, in lower case; empty for an instruction. See `find_takers`.
    """

    text: str
    about: str
    withdraws: str = ""


def may_instruct(message: bytes) -> bool:
    """Return whether a message, in MessagePack, may have an instruction.

    It takes 3 µs, and most have none.
    """
    if len(message) > _MOST_BYTES:
        return False
    if _OTHER_LETTERS.search(message) is not None:
        return True
    text = _LENGTHS.sub(b" ", message).translate(_BLANKS)
    return not _signs_of_ascii().isdisjoint(text.split()) or _FROM_NOW_ON in text


def find_instructions(text: str) -> Sequence[Instruction]:
    """The instructions in what a user said, and those that take others back, at most three.

    None in a text of over 2,000 characters.

    Args:
        text: a message.
    """
    if len(text) > _MOST_CHARS:
        return ()
    found: dict[str, Instruction] = {}
    for raw in _SENTENCE.split(_CODE.sub("\n", text)):
        line = _BULLET.sub("", raw.strip())
        if not _SHORTEST <= len(line) <= _LONGEST or _QUOTED.match(line) is not None:
            continue
        plain = plain_letters(line)
        asks = line[-1] in "?\uff1f"
        languages = _languages_of(plain)
        if not asks and (subject := _find_withdrawal(plain, languages)):
            about = f"withdraws {subject}"
            found[about] = Instruction(line, about, subject)
            line = line[plain.index(subject) + len(subject) :].lstrip(" ,;:.-\u2014\u3001\uff0c")
            plain = plain_letters(line)
        if _instructs(plain, languages) and not (asks and _ASKS_TO.match(plain) is None):
            about = _matter_of(plain)
            found[about] = Instruction(line, about)  # the last one holds
    return tuple(found.values())[:_MOST]


def _has_most(said: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether an instruction's words have most of those that a later sentence takes back.

    In whatever form: "peanut allergy" takes "I'm allergic to peanuts" back.
    """
    found = sum(any(_are_alike(one, other) for other in said) for one in wanted)
    return 0 < found >= _SHARE_NAMED * len(wanted)


class Noticed(NamedTuple):
    """An instruction, or what takes others back, as it was recorded.

    Attributes:
        topic: equal for instructions of one matter.
        text: the sentence.
        source: of whose message it is; nothing takes back what its own message asks for.
        withdraws: see `Instruction`; None for an instruction. Empty for the trace of one that was
            deleted, which takes the others of its topic back.
    """

    topic: str
    text: str
    source: tuple[str, tuple[int, ...]]
    withdraws: str | None


def find_takers(noticed: Sequence[Noticed]) -> Sequence[int | None]:
    """For each, the place of what took its place, or took it back; None for what holds.

    Args:
        noticed: the newest first. What takes others back never holds, and names itself. Of these
            the newest 32 take something back.
    """
    newest: dict[str, int] = {}
    withdrawals: list[tuple[int, Sequence[str], bool]] = []
    takers: list[int | None] = []
    for place, one in enumerate(noticed):
        first = newest.setdefault(one.topic, place)
        if one.withdraws is not None:
            takers.append(first)
            if one.withdraws and len(withdrawals) < _MOST_WITHDRAWALS:
                subject = plain_letters(one.withdraws)
                permits = _permits(plain_letters(one.text), subject)
                withdrawals.append((place, _telling_words(subject), permits))
        elif first != place:
            takers.append(first)
        else:
            plain = plain_letters(one.text) if withdrawals else ""
            said = _telling_words(plain)
            later = (
                p
                for p, wanted, permits in withdrawals
                if noticed[p].source != one.source
                and _has_most(said, wanted)
                and not (permits and _asks_for(plain))
            )
            takers.append(next(later, None))
    return takers


def _permits(plain: str, subject: str) -> bool:
    """Return whether what takes an instruction back does so by allowing its subject again."""
    return _PERMITS().search(plain.replace(subject, " ", 1)) is not None


@lru_cache(512)
def _asks_for(plain: str) -> bool:
    """Return whether an instruction asks for its subject, and does not forbid it."""
    return _ASKS_FOR().search(plain) is not None and _FORBIDS().search(plain) is None


@lru_cache(512)
def _telling_words(plain: str) -> Sequence[str]:
    words = [word for word in _TOKEN.findall(pair_characters(plain)) if word not in _weak_words()]
    pairs = [word for word in words if len(word) > 1 or word.isascii()]
    return tuple(dict.fromkeys(pairs or words))


def _are_alike(one: str, other: str) -> bool:
    if one == other:
        return True
    if len(one) > len(other):
        one, other = other, one
    pairs = zip(one, other, strict=False)
    alike = next((place for place, (a, b) in enumerate(pairs) if a != b), len(one))
    return alike >= _LEAST_ALIKE and alike >= _SHARE_ALIKE * len(other)


@cache
def _weak_words() -> frozenset[str]:
    weak = {word for table in _tables().values() for word in str(table["weak"]).split()}
    grammar = {plain_letters(word) for words in FUNCTION_WORDS.values() for word in words}
    return frozenset(weak | grammar | _POLARITY)


def _find_withdrawal(plain: str, languages: Collection[str]) -> str:
    """Return the part of a sentence that says what it takes back; empty if it takes nothing."""
    if _QUOTES.search(plain) is not None:
        return ""
    for language in languages:
        match = _withdrawals_of(language).match(plain)
        if match is None:
            continue
        subject = match[match.lastindex or 0].strip()
        rest = plain[match.end() :].strip(_ENDS)
        doubted = any(_doubts_of(language).search(part) is not None for part in (subject, rest))
        follows = not rest or (plain[match.end()] in ",;:" and _instructs(rest, languages))
        if follows and not doubted and _telling_words(subject):
            return subject
    return ""


def _instructs(plain: str, languages: Collection[str]) -> bool:
    return any(_pattern_of(one).search(plain) is not None for one in languages)


def _languages_of(plain: str) -> Collection[str]:
    """The languages in which a sentence may instruct, sorted."""
    by_sign = _languages_by_sign()
    languages = {one for word in _WORD.findall(plain) for one in by_sign.get(word, ())}
    if not plain.isascii() and _UNSPACED().search(plain) is not None:
        languages |= {"ja", "zh"}
    return sorted(languages)


def load_signs() -> None:
    """Read the table of signs and patterns, in a millisecond; once."""
    _languages_by_sign()


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    import tomllib  # noqa: PLC0415

    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@cache
def _languages_by_sign() -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for language, table in _tables().items():
        for word in _WORD.findall(str(table["signs"])):
            found.setdefault(word, []).append(language)
    return found


@cache
def _signs_of_ascii() -> frozenset[bytes]:
    signs = frozenset(word.encode() for word in _languages_by_sign() if word.isascii())
    return signs - {b"from"}  # of those that have it, one in thirty says "from now on"


@cache
def _pattern_of(language: str) -> re.Pattern[str]:
    return _compile(language, "patterns")


@cache
def _withdrawals_of(language: str) -> re.Pattern[str]:
    return _compile(language, "withdrawals")


@cache
def _doubts_of(language: str) -> re.Pattern[str]:
    text = str(_tables()[language]["doubts"])
    return re.compile(text if text.isascii() else fold_accents(text))


def _compile(language: str, name: str) -> re.Pattern[str]:
    table = _tables()[language]
    whole = "|".join(f"(?:{one})" for one in table[name])
    for part, text in table.get("parts", {}).items():
        whole = whole.replace(f"<{part}>", text)
    return re.compile(whole if whole.isascii() else fold_accents(whole))


def _matter_of(plain: str) -> str:
    for name, pattern in _MATTERS.items():
        told = name in {"name", "pronouns"} or _OF_ANSWERS().search(plain) is not None
        if told and pattern().search(plain) is not None:
            return name
    said = [word for word in _TOKEN.findall(plain) if word not in _POLARITY]
    return " ".join(sorted(set(make_stemmer("english").stemWords(said)))) or plain
