"""Which language a text is in: by its script, and by the words that each language uses most.

It costs 4 µs for a message, and knows few languages. A text in which none shows (a name, a short
reply) is nobody's: who asks says what is to be assumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from remora.languages.patterns import late, make_splitter

_TEXTS = {
    "en": """
        i me my myself we us our ours ourselves you your yours yourself yourselves he him his
        himself she her hers herself it its itself they them their theirs themselves what which
        who whom whose this that these those am is are was were be been being have has had having
        do does did doing will would shall should can could may might must ought a an the and but
        if or because as until while of at by for with about against between into through during
        before after above below to from up down in out on off over under again further then once
        here there when where why how all any both each few more most other some such no nor not
        only own same so than too very just also get got let like yes yeah oh ok okay hey hi hello
        thanks thank please ain don isn wasn aren couldn didn doesn hadn hasn haven shouldn won
        wouldn weren ll ve re it's i'm
    """,
    "de": """
        aber alle allem allen aller alles als also am an andere anderen auch auf aus bei beim bin
        bis bist da damit dann das dass dein deine deinem deinen deiner dem den denn der des dich
        die dies diese diesem diesen dieser dieses dir doch dort du durch ein eine einem einen
        einer eines er es euch euer eure für gegen gehabt gewesen habe haben habt hat hatte hatten
        hier hin hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins ist ja jede jedem
        jeden jeder jedes jetzt kann kannst kein keine keinen keiner können könnte man mehr mein
        meine meinem meinen meiner meines mich mir mit muss musste nach nicht nichts noch nun nur
        ob oder ohne schon sehr seid sein seine seinem seinen seiner seit sich sie sind so soll
        sollte sondern über um und uns unser unsere unserem unseren unserer unter vom von vor wann
        war waren warum was weil welche welchem welchen welcher welches wem wen wenn wer werde
        werden wessen wie wieder will wir wird wirst wo woher wohin wollte worden wurde wurden
        würde würden zu zum zur zwischen
    """,
    "fr": """
        à ai aie ait alors après as au aucun aucune aussi autre autres aux avait avais avaient
        avant avec avez avoir avons bien c ça car ce ceci cela celle celles celui ces cet cette
        ceux chez ci combien comme comment d dans de déjà depuis des donc dont du elle elles en
        encore entre es est et étaient étais était étant été êtes être eu eux fait faut il ils j je
        jusqu l la laquelle le lequel les lesquels leur leurs lors lui m ma mais me même mes moi
        mon n ne ni nos notre nous on ont ou où par parce pas pendant peu peut plus pour pourquoi
        près qu quand que quel quelle quelles quels qui quoi s sa sans se sera ses si son sont sous
        suis sur t ta te tes toi ton tous tout toute toutes très trop tu un une vers vos votre vous
        y
    """,
    "es": """
        a al algo algún alguna algunas alguno algunos ante antes aquel aquella aquí así aún aunque
        cada casi como cómo con contra cual cuál cuáles cuando cuándo cuánta cuántas cuánto cuántos
        de del desde donde dónde dos durante e el él ella ellas ellos en entre era eran eres es esa
        esas ese eso esos esta está están estaba estaban estado estamos estas este esto estos estoy
        fue fueron fui ha haber había han has hasta hay he hemos la las le les lo los más me mi mí
        mis mucha mucho muchos muy nada ni no nos nosotros nuestra nuestro o os otra otro otros para
        pero poco por porque puede que qué quien quién quienes se sea según ser si sí sido sin sobre
        sois somos son soy su sus suya suyo también tampoco tan tanto te tengo tiene tienen toda
        todas todo todos tu tú tus un una unas uno unos usted ustedes y ya yo
    """,
    "it": """
        a abbiamo ad agli ai al alla alle allo anche ancora avere aveva avevo c che chi ci cioè come
        con cosa così cui d da dagli dai dal dalla dalle dallo degli dei del della delle dello di
        dopo dov dove e è ed era erano ero essere fa fino fra già gli ha hai hanno ho i il in io l
        la le lei li lo loro lui ma me mi mia mie miei mio molto ne negli nei nel nella nelle nello
        noi non nostra nostro o ogni ora per perché però più poi prima quale quali quando quanto
        quanti quella quelle quelli quello questa queste questi questo qui sarà se sei sempre senza
        si sia siamo siete sono sopra sotto sta stata stato su sua sue sugli sui sul sulla sulle suo
        suoi te ti tra tu tua tue tuo tuoi tutta tutte tutti tutto un una uno vi voi
    """,
    "pt": """
        a à ao aos aquela aquele aqui as às até com como da das de dela dele delas deles depois do
        dos e é ela elas ele eles em entre era eram essa esse esta está estão estava este estou eu
        foi foram fui há isso isto já lá lhe lhes mais mas me mesmo meu meus minha minhas muito na
        nas não nem no nos nós nossa nosso num numa o onde os ou para pela pelas pelo pelos por
        porque qual quais quando quanto quantos que quem são se sem sendo ser será seu seus só sobre
        somos sou sua suas também te tem têm temos tenho ter teu teve tinha tu tua um uma umas uns
        você vocês
    """,
    "nl": """
        aan al alle als altijd andere ben bij daar dan dat de der deze die dit doch door dus een er
        ge geen geweest haar had heb hebben heeft hem het hier hij hoe hun iemand iets ik in is ja
        je jij jou jouw jullie kan kon kunnen maar me meer men met mij mijn moet na naar niet niets
        nog nu of om omdat onder ons onze ook op over reeds te tegen toch toen tot u uit uw van veel
        voor waar wanneer waarom was wat we wel welke werd wezen wie wij wil worden wordt zal ze
        zelf zich zij zijn zo zonder zou
    """,
    "sv": """
        alla allt att av bara blev bli blir de dem den denna deras dess det detta dig din ditt dina
        du där efter ej eller en er ett från för ha hade han hans har hon honom hur här icke inte
        jag ju kan kunde man med mellan men mig min mina mitt mot mycket ni nu när någon något några
        och om oss på sedan sig sin sina sitt själv ska skulle som så till under upp ut utan vad var
        varför varit vem vi vid vilka vilken vilket vår våra än är även över
    """,
    "da": """
        af alle andet andre at begge blev blive bliver da de dem den denne der deres det dette dig
        din dine disse dog du efter eller en end er et for fordi fra få gennem ham han hans har
        havde have hende hendes her hos hun hvad hvem hver hvilken hvis hvor hvordan hvornår hvorfor
        i ikke ind jeg jer jo kan kunne man mange med meget men mig min mine mit mod må ned nej
        noget nogle nogen nu når og også om op os over på sammen selv sig sin sine skal skulle som
        så til ud under var ved vi vil ville vores være været
    """,
    "no": """
        alle at av bare ble bli blir både da de deg dem den denne der dere deres det dette din disse
        du eller en er et ett etter for fordi fra før ha hadde han hans har hennes henne her hos hun
        hva hvem hver hvilken hvis hvor hvordan hvorfor i ikke ingen inn jeg kan kunne man mange med
        meg mellom men mer mi min mine mitt mot må noe noen nå når og også om opp oss over på sammen
        selv seg sin sine skal skulle slik som så til ut var ved vi vil ville vår vært være
    """,
    "tr": """
        ama ben bana beni benim bir biz bizim bu böyle çok çünkü da daha de değil diye en gibi hangi
        hem hep her hiç için ile ise ki kim mı mi mu mü nasıl ne neden nerede niçin olan olarak oldu
        olduğu ona onu onun onlar sana sen seni senin siz şey şu şöyle var ve veya ya yok
    """,
    "ru": """
        а без бы был была были было быть в вам вас ваш во вот все всё вы где да для до его ее её
        если есть еще ещё же за здесь и из или им их к как какая какие какой когда кто куда ли меня
        мне мой моя моё мы на над нас наш не него нее неё нет ни но о об он она они оно от очень по
        под почему при с со свой себя сейчас так там тебе тебя только то тоже ты у уже чем через что
        чтобы эта эти это этот я
    """,
}

FUNCTION_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(text.split()) for language, text in _TEXTS.items()
}
"""By language, as its ISO 639-1 code; lower case, with accents."""

STOP_CHARACTERS = frozenset(
    "的了是我你您他她它们們在有和也都就不吗嗎呢吧啊这這那什么麼谁誰哪个個很会會要到说說去着没沒为為与對对把被从從让"
    "讓给給何私僕彼"
)
"""Chinese and Japanese characters that say little alone; two of them say little together."""

_STOP_PAIRS_TEXT = """
    です ます まし した って てい いる いま すか から ので まで には では とは への での にも
    でも とか こと もの ある あり あっ いた たち して され さん ない なか かっ った たい とき
    ため それ これ あれ この その あの どこ どの いつ だれ なに なん ほど だけ けど たり なり
    なっ りま しま きま いて んで んだ えて れて れた せん でし だっ ちゃ じゃ よう うに
"""
STOP_PAIRS = frozenset(_STOP_PAIRS_TEXT.split())
"""Pairs of hiragana that are grammar."""


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
