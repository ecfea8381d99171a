"""Which language a text is in: by its script, and by the words that each language uses most.

It costs 4 µs for a message, and knows few languages. A text in which none shows (a name, a short
reply) is nobody's: who asks says what is to be assumed.
"""

from __future__ import annotations

import re
from collections import Counter

from remora.languages.function_words import FUNCTION_WORDS
from remora.languages.patterns import late, make_splitter

_JUDGED_CHARS = 400
_WORD = re.compile(r"[^\W\d_]{2,}")  # elided articles and single letters tell nothing
_split_ascii = make_splitter(str.isalpha)
# Words that are English as well tell nothing.
_ENGLISH_TEXT = """
    af ai also am art as at att bad bare bin biz but car come den die dies dig dog door dove
    due ed end er eras far fin for fur ge god gut had ham hat hay hem hen here hon how hun inn
    jag kin kind kom mad man mar mas mat med men mere met mine mit mod mot ned nog nu nun og
    once op over own pan par pass per plus pour ran real reeds sans sea see seine self sent
    sin sit ska sole solo some son soy stat sub sue sure tan ten till ton tot tour tout toy
    tun under uni van vow wan war wild wit yo
"""
# Words of names and set phrases, which English texts have, tell less.
_NAMES_TEXT = """
    al alle allo als ama an ben bien ce chez chi comme como con cosa da dan das de del der des
    di dit do don dos du el ella elle elles en era es esa est et eu fa from han has have he
    her hier him his hoe i il im in is ja je jo kan kim la las le les leur li lo los ma mais
    me meg mes mi mia mich min mucho na nada ne nei no noe non nos not notre nous on or os
    para pas poco por prima quo sa san se sei sein sen ses si sia siz sol sous st su te the
    til to todo too tu ud um un una une uno up us var ve ver vi via vid vil von votre was we
    wel were wie will won ya you ze zo
"""
_ENGLISH = frozenset(word for word in FUNCTION_WORDS["en"] if len(word) > 1)
_WEAK = frozenset(_NAMES_TEXT.split())
# what tells that a text may be in another language than English
_FOREIGN = frozenset(
    word for words in FUNCTION_WORDS.values() for word in words if len(word) > 1
).difference(_ENGLISH, _ENGLISH_TEXT.split()) | {"j'", "l'", "d'", "n'", "qu'"}
_ELIDED = tuple(f" {one}{mark}" for one in ("j", "l", "d", "n", "qu") for mark in "'\u2019")
_ELISION = re.compile(r"\b(?:[jldn]|qu)['\u2019](?=\w)")
_ITS_WORDS = {
    language: (words & _FOREIGN) | ({"j'", "l'", "d'", "n'", "qu'"} if language == "fr" else set())
    for language, words in FUNCTION_WORDS.items()
}
_OWN_LETTERS = {"ß": "de", "ñ": "es", "¿": "es", "¡": "es", "œ": "fr", "ã": "pt", "õ": "pt"}
# A character of these stands for a syllable or a word, and so for several letters.
_SCRIPTS = {
    "ja": (late("[\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f]+"), 2),
    "zh": (late("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"), 3),
    "ko": (late("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]+"), 3),
    "ru": (late("[\u0400-\u04ff]+"), 1),
    "el": (late("[\u0370-\u03ff\u1f00-\u1fff]+"), 1),
    "he": (late("[\u0590-\u05ff]+"), 1),
    "ar": (late("[\u0600-\u06ff\u0750-\u077f]+"), 1),
    "hi": (late("[\u0900-\u097f]+"), 1),
    "th": (late("[\u0e00-\u0e7f]+"), 1),
}
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]+")
_OTHER_SCRIPT = (
    "\u0370-\u1fff\u2c00-\u2dff\u3040-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_BEYOND_LATIN = late(f"[{_OTHER_SCRIPT}]")
_LETTER = re.compile("[" + "".join(_OWN_LETTERS) + "]")
_FOREIGN_LETTER = late("[" + _OTHER_SCRIPT + "".join(_OWN_LETTERS) + "]")
_KANA_SHARE = 0.1  # of Chinese and Japanese characters, from which on it is Japanese


def language_of(text: str) -> str:
    """The language that a text shows, as its ISO 639-1 code; empty if none.

    Of the Latin languages it knows those of `FUNCTION_WORDS`. It looks at the first 400 characters.
    """
    text = text[:_JUDGED_CHARS]
    if not text.isascii() and _BEYOND_LATIN().search(text) is not None:
        script = _script_of(text)
        if script:
            return script
    return _latin_language_of(text)


def may_be_foreign(text: str) -> bool:
    """Return whether a line of the text may show another language than English.

    Not if each of the words that tell stands next to a punctuation mark. It takes a tenth of the
    time of `language_of`.
    """
    if not text.isascii() and _FOREIGN_LETTER().search(text) is not None:
        return True
    text = text.lower()
    return not _FOREIGN.isdisjoint(text.split()) or (
        ("'" in text or "\u2019" in text) and any(one in text for one in _ELIDED)
    )


def _script_of(text: str) -> str:
    """The language of the script that most of the text is in; empty for Latin, and for none."""
    sizes = {
        language: weight * sum(map(len, letters().findall(text)))
        for language, (letters, weight) in _SCRIPTS.items()
    }
    latin = sum(map(len, _LATIN.findall(text)))
    kana, han = sizes["ja"], sizes["zh"]
    both = kana + han
    sizes["ja"], sizes["zh"] = (both, 0) if kana > _KANA_SHARE * both else (0, both)
    best = max(sizes, key=sizes.__getitem__)
    return best if sizes[best] > latin else ""


def _latin_language_of(text: str) -> str:
    text = text.lower()
    if text.isascii():
        said, letters = {*_split_ascii(text)}, set()
    else:
        said, letters = {*_WORD.findall(text)}, {*_LETTER.findall(text)}
    foreign = said & _FOREIGN
    if "'" in text or "\u2019" in text:
        foreign.update(elided.replace("\u2019", "'") for elided in _ELISION.findall(text))
    if not foreign and not letters:
        return "" if said.isdisjoint(_ENGLISH) else "en"
    english = said & _ENGLISH
    signs = Counter(_OWN_LETTERS[letter] for letter in letters)
    best, most = "", (0, 0)
    for language, words in _ITS_WORDS.items():
        its = foreign & words
        strong = len(its - _WEAK) + signs[language]
        found = len(its) + signs[language]
        against = len(english - FUNCTION_WORDS[language])
        enough = found > against if strong else found >= 2 * against + 2
        if enough and (found, strong) > most:
            best, most = language, (found, strong)
    return best or ("en" if english else "")
