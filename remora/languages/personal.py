"""Questions about their asker that have no word of the answer: "Where do I live?", "Who am I?".

"I moved to Lisbon" has no word of "Where do I live?". Such questions are few, so they are written
down: for each matter how it is asked, and how people state it, in English, German, French, Spanish,
Japanese and Chinese. A statement is found in any of these languages, whatever the question's.

A question may also be about what the assistant said: "Which hotel did you recommend?".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from remora.languages.patterns import late
from remora.languages.search_words import plain_letters

SINGLE = frozenset({"home", "name", "work", "number", "age"})
"""Matters of which one statement holds at a time: the newest."""

_MOST_ASKED, _MOST_STATED = 300, 1_000  # characters that are looked at


class _Matter(NamedTuple):
    """How something is asked, and stated, in lower case, without accents.

    Each statement has one of the signs, which are found in a hundredth of the time.
    """

    asked: Sequence[str]
    stated: Sequence[str]
    signs: str


_NOW = r"(?: (?:just|now|currently|recently|finally|still|also))?"
_END = r"(?= *(?:[?.!,]|$|again|now|please|title))"
_TO_A_HOME = (  # not of a meeting, a file or a database
    r" (?:in|into|out|from|here|house|home|flats?|back|away|again|abroad|yesterday|last)\b"
    r"| to (?!(?:the (?:next|other)|another (?:topic|question|project)|version|production|using"
    r"|python|git|aws|azure|linux|mac|windows|android|a new (?:role|job|phone|server|team))\b)"
    r"| *(?:[.,;!]|$)"
)
_SELF_JA = r"(?:^|[、。 ]|(?<=[私僕俺]は)|(?<=[私僕俺]は今))"
_OWN_JA = r"(?:(?<!の)|(?<=[私僕俺]の))"
_WHICH_ZH = r"(?=是(?:(?:什么|什麼)(?!时候|時候)|多少|几号|幾號)|叫(?:什么|什麼)|[?\uff1f]|$)"
_OF_PHONE = r"(?: (?:new|current|own|home|work|office|phone|mobile|cell|telephone)){0,2}"
_THEN = r" *(?:[?.!]|$)"
_WHAT_IS = r"what(?:'?s| is| are| was)"
_NAMED = (
    r"\bmy(?: full| first| last)? name(?:'s| is)\b|\bcalls? me\b(?! (?:at|on|back)\b)",
    r"\bi go by\b|\bmy nickname\b",
    r"\bich heisse\b|\bmein name ist\b|\bnennt? mich\b",
    r"\bje m'appelle\b|\bmon (?:nom|prenom) est\b|\bappelle[zs]?-moi\b|\bon m'appelle\b",
    r"\bme llamo\b|\bmi nombre es\b|\bllam(?:a|e)me\b|\bme (?:llaman|dicen)\b",
    "名前は|と申します|と呼んで|(?:と|って)(?:いい|言い)ます",
    "我叫|我的名字是|(?:叫|称呼|稱呼)我",
)
_SIGNS_OF_NAME = (
    "name|call|go by|heiss|nenn|appel|nom|llam|dicen|申します|呼|言い|といい|叫|名字|称|稱"
)
_MATTERS: Mapping[str, _Matter] = {
    "home": _Matter(
        (
            rf"where (?:do|am|are) (?:i|we){_NOW} (?:live|living|based|located|reside)\b",
            r"(?:which|what) (?:city|town|country|place) (?:do|am|are) (?:i|we) (?:liv|base|resid)",
            r"(?:which|what) (?:city|town|country) (?:am|are) (?:i|we)(?: now)? in *(?:[?.!]|$)",
            rf"{_WHAT_IS} (?:my|our)(?: home| current| new)? address{_END}",
            rf"where(?:'s| is) (?:my|our) (?:home|house|flat|apartment|place){_END}",
            r"where(?:'s| is) home (?:for|to) (?:me|us)\b",
            r"(?:which|what) (?:city|town|country|street|area) is (?:my|our) (?:home|house|flat)\b",
            r"wo (?:wohne|lebe) ich|wo (?:wohnen|leben) wir|wo bin ich zu ?hause",
            r"in welche[mr] (?:stadt|strasse|land|ort)\b.{0,12}\b(?:wohne|lebe|wohnen|leben)\b",
            r"(?:wie|was) (?:lautet|ist) (?:meine|unsere)(?: neue)? (?:adresse|anschrift)",
            r"ou (?:est-ce que )?(?:j'habite|je vis|nous habitons|on habite)|ou (?:habite|vis)-je",
            r"(?:quelle est|c'est quoi|quelle) (?:mon|notre) adresse",
            r"dans quel(?:le)? (?:ville|rue|pays)\b.{0,16}(?:j'habite|je vis|habit|vivons)",
            r"(?<!por )donde (?:vivo|vivimos|resido)|en que (?:ciudad|calle|pais) (?:vivo|vivimos)",
            r"cual es (?:mi|nuestra) direccion",
            rf"{_SELF_JA}(?:どこに住ん|どこ住み)|{_OWN_JA}(?:住所|住まい)(?:は|って|を)",
            "我们?(?:现在|現在)?住(?:在)?(?:哪|什么|什麼)|我的(?:住址|地址)",
        ),
        (
            rf"\b(?:i|we)(?:'ve| have| had)?{_NOW} (?:moved|relocated)(?:{_TO_A_HOME})",
            rf"\b(?:i|we){_NOW} (?:live|reside)\b(?! with(?:out)?\b)",
            rf"\b(?:i|we)(?:'m|'re| am| are){_NOW} (?:living|based)\b",
            r"\b(?:i|we)(?:'m|'re| am| are) moving (?:in)?to\b",
            r"\b(?:my|our)(?: new| current| home)? (?:address|flat|apartment|home|house) is\b",
            r"\b(?:i|we)(?:'ve| have)? (?:got|bought|rented) an?(?: \w+)? (?:flat|home|house) in\b",
            r"\b(?:ich|wir) (?:wohnen?|leben?|ziehen?)\b|\b(?:wohnen?|leben?) (?:ich|wir)\b",
            r"\b(?:um)?gezogen\b|\b(?:meine|unsere)(?: neue)? (?:adresse|wohnung|anschrift) ist",
            r"\bj'habite\b|\bje vis (?:a|en|au|dans)\b|\b(?:nous|on) (?:habitons|vivons|habite)\b",
            r"\bdemenag\w+|\b(?:mon|notre)(?: nouvelle?)? (?:adresse|appartement) est\b",
            r"\b(?:vivo|vivimos|resido) en\b|\b(?:me|nos) (?:he |hemos )?mud\w+",
            r"\b(?:mi|nuestra)(?: nueva)? (?:direccion|casa) es\b",
            "に(?:住んで|住み|引っ越|引越|転居)|住所は|に越して",
            "(?:我|我们|我們)(?:现在|現在)?住在|搬(?:到|去|家)|我的(?:新)?(?:住址|地址)是",
        ),
        "mov|reloc|live|resid|living|based|address|flat|apartment|home|house|wohn|leb|zieh|"
        "zog|adress|anschrift|habit|je vis|vivons|demenag|viv|mud|direccion|casa|住|引|転居|"
        "越して|搬|地址",
    ),
    "name": _Matter(
        (
            rf"{_WHAT_IS} my(?: full| first| last)? name{_END}",
            r"what am i called|what (?:should|do) you call me",
            r"wie heisse ich|(?:wie|was) (?:lautet|ist) mein name",
            r"comment (?:est-ce que )?je m'appelle|quel est mon (?:nom|prenom) *(?:[?.]|$)",
            r"como me llamo|cual es mi nombre",
            "(?:私|僕|俺|わたし)の名前",
            rf"我叫(?:什么|什麼)|我的名字{_WHICH_ZH}",
        ),
        _NAMED,
        _SIGNS_OF_NAME,
    ),
    "self": _Matter(
        (
            r"who am i *(?:[?.!]|$|again)|what do you know about me",
            r"wer bin ich\b|was weisst du uber mich",
            r"qui suis-je|que sais-tu (?:de|sur) moi",
            r"quien soy|que sabes de mi\b",
            "(?:私|僕|俺|わたし)(?:は|って)(?:誰|だれ)",
            "我是(?:谁|誰)",
        ),
        (
            *_NAMED,
            r"\b(?:i'm|i am) an? \w+",
            r"\bich bin (?:ein|eine) |\bje suis une? |\bsoy una? ",
            "我是(?:一名|一个|一個|一位)",
        ),
        f"{_SIGNS_OF_NAME}|i'm a|i am a|ich bin ein|je suis un|soy un|我是",
    ),
    "work": _Matter(
        (
            r"what do i do(?: for (?:a living|work))?\s*(?:\?|$)|where do i work\b(?! out)",
            r"who do i work for|(?:which|what) company (?:do|am) i\b.{0,10}\bwork",
            rf"{_WHAT_IS} my (?:job|profession|occupation|role|position|work){_END}",
            r"who(?:'s| is) my (?:boss|employer)\b",
            r"was (?:mache|arbeite) ich (?:beruflich|von beruf)|was ist mein beruf",
            r"wo arbeite ich|fur wen arbeite ich|wer ist mein (?:chef|arbeitgeber)",
            r"(?:ou|pour qui|que|dans quoi) (?:est-ce que )?je travaille",
            r"quel est mon (?:metier|travail)",
            r"qu'est-ce que je fais (?:dans la vie|comme (?:metier|travail))",
            r"(?:donde|para quien|en que) trabajo\b|a que me dedico",
            r"cual es mi (?:trabajo|profesion)",
            rf"(?:私|僕|俺)の(?:仕事|職業)|{_SELF_JA}(?:どこ|何)で働い|(?<!の)仕事は何",
            rf"我(?:是)?(?:做什么|做什麼|在哪(?:里|裡)?(?:工作|上班))|我的(?:工作|职业|職業){_WHICH_ZH}",
        ),
        (
            rf"\bi{_NOW} work(?:ed)? (?:as|at|for|in|with)\b",
            rf"\bi(?:'m| am){_NOW} working (?:as|at|for)\b",
            r"\bi(?:'m| am) an? (?:\w+ ){0,2}?(?!\w*(?:ever|over|after)\b)\w+(?:er|or|ist|ian)\b",
            r"\bi(?:'m| am) an? (?:\w+ ){0,2}?(?:nurse|chef|cook|pilot|judge|student|architect)\b",
            r"\bi (?:have )?(?:just )?(?:joined|got hired|was hired|quit|teach|freelance)\b",
            r"\bmy(?: new)? (?:job|boss|employer|profession|company)\b|\bnew job\b",
            r"\bich arbeite\b|\barbeite (?:ich|als|bei)\b|\bich bin \w*(?:er|erin|arzt|in)\b(?! )",
            r"\bvon beruf\b|\bmein(?:en?)?(?: neuer?)? (?:job|chef|arbeitgeber|arbeit)\b",
            r"\bje travaille\b|\bmon (?:metier|travail|patron|employeur)\b|\bje suis embauche",
            r"\btrabajo (?:como|en|de|para)\b|\bmi (?:trabajo|jefe|jefa|empresa|profesion)\b",
            "(?:で|に)(?:働いて|勤めて|勤務)|仕事は|仕事を(?:して|始め)",
            "(?:我|我在.{1,12})(?:工作|上班)|我的(?:工作|职业|職業)是|我是(?:一名|一位)",
        ),
        "work|job|boss|employ|profession|company|i'm a|i am a|im a|joined|hired|quit|teach|"
        "freelance|arbeit|ich bin|beruf|chef|travail|metier|patron|embauche|trabaj|jef|"
        "empresa|働|勤|仕事|工作|上班|职业|職業|我是",
    ),
    "number": _Matter(
        (
            rf"{_WHAT_IS} (?:my|our){_OF_PHONE} number{_END}",
            r"(?:wie|was) (?:lautet|ist) meine (?:neue )?(?:\w+)?nummer",
            r"(?:quel est|c'est quoi) mon (?:nouveau )?numero",
            r"cual es mi (?:nuevo )?(?:numero|telefono)",
            "(?:私|僕|俺)の(?:電話|携帯)?番号|電話番号(?:は|って)",
            rf"我的(?:电话|電話|手机|手機)?(?:号码|號碼|电话|電話){_WHICH_ZH}",
        ),
        (
            r"\b(?:my|our|new)(?: \w+){0,2} (?:number|phone|mobile|cell)\b.{0,40}\d{2}",
            r"\b(?:call|reach|text|ring) (?:me|us) (?:at|on|under)\b.{0,20}\d{2}",
            r"\b\w*nummer\b.{0,40}\d{2}|\bnumero\b.{0,40}\d{2}|\btelefono\b.{0,40}\d{2}",
            r"番号.{0,20}\d{2}|(?:号码|號碼|电话|電話|手机|手機).{0,12}\d{2}",
        ),
        "number|phone|mobile|cell|call|reach|text|ring|nummer|numero|telefono|番号|号码|號碼|电话|"
        "電話|手机|手機",
    ),
    "age": _Matter(
        (
            r"how old (?:am i|are we)\b(?! supposed)|when was i born",
            rf"when(?:'s| is) my birthday{_THEN}",
            rf"{_WHAT_IS} my (?:age|birthday|date of birth|birth date)",
            r"wie alt bin ich|wann (?:bin ich geboren|habe ich geburtstag|ist mein geburtstag)",
            r"quel age (?:ai-je|j'ai)|j'ai quel age|quand (?:suis-je nee?|est mon anniversaire)",
            r"cuantos anos tengo|cuando (?:naci|es mi cumpleanos|cumplo)",
            rf"(?:私|僕|俺)(?:は|って)(?:何歳|いくつ)|{_OWN_JA}誕生日(?:は|って)いつ",
            "我(?:今年)?(?:几岁|幾歲|多大)|我的?生日|我(?:是)?(?:什么|什麼)时候出生",
        ),
        (
            r"\bmy birthday\b|\bi was born\b|\bi (?:just )?turn(?:ed)? \d{1,2}\b",
            r"\bi(?:'m| am| will be) \d{1,2}\b(?! ?(?:%|min|hour|km|mile|page|week|day|p|k))",
            r"\bmein geburtstag\b|\bich bin \d{1,2}\b(?: jahre)?|\bich bin\b.{0,30}\bgeboren\b",
            r"\bmon anniversaire\b|\bj'ai \d{1,2} ans\b|\bje suis nee?\b",
            r"\bmi cumpleanos\b|\btengo \d{1,2} anos\b|\bnaci (?:en|el)\b|\bcumpl[io] \d",
            "誕生日は|\\d{1,2}歳(?:です|に)|生まれ",
            "我(?:的)?生日|我(?:今年)?\\d{1,2}(?:岁|歲)|我(?:是)?.{0,12}出生",
        ),
        "birth|born|i'm |i am |turn|i will be|geb|ich bin|anniversaire|ans|nee|ne |cumpl|"
        "anos|naci|誕生|歳|生まれ|生日|岁|歲|出生",
    ),
    "family": _Matter(
        (
            r"am i (?:married|single|divorced|engaged)\b|who (?:am i married to|lives with me)",
            r"do i have (?:any )?(?:kids|children|siblings|an? (?:wife|husband|partner|family))\b",
            rf"how many (?:kids|children|siblings) (?:do|have) (?:i|we)(?: have| got)?{_THEN}",
            r"bin ich (?:verheiratet|ledig)|habe ich (?:kinder|geschwister)",
            r"suis-je mariee?|est-ce que j'ai des (?:enfants|freres)|ai-je des (?:enfants|freres)",
            r"estoy (?:casad|solter)[oa]|tengo (?:hijos|hermanos)\s*\?",
            "(?:私|僕|俺)(?:は|って)結婚|子供(?:は|が)(?:いま|いる|何人)",
            "我(?:结婚|結婚)了|我有(?:没有)?(?:孩子|小孩|几个孩子)",
        ),
        (
            r"\bmy (?:wife|husband|partner|fiancee?|girlfriend|boyfriend|son|daughter|kids?)\b",
            r"\bmy (?:children|twins|brothers?|sisters?|family)\b",
            r"\b(?:i'm|i am|we're|i got|we got|we are) (?:married|engaged|single|divorced)\b",
            r"\bmein(?:e|er|en|em)? (?:frau|mann|partner|sohn|tochter|kinder|bruder|schwester)\b",
            r"\b(?:ma|mon|mes) (?:femme|mari|fils|fille|enfants|frere|soeur)s?\b",
            r"\b(?:mi|mis) (?:esposa|mujer|marido|esposo|hij[oa]s?|herman[oa]s?)\b",
            "妻|夫|息子|娘|結婚して|我(?:的)?(?:妻子|老婆|丈夫|老公|儿子|兒子|女儿|女兒)|结婚了|結婚了",
        ),
        "wife|husband|partner|fianc|friend|son|daughter|kid|child|twin|brother|sister|"
        "family|married|engaged|single|divorced|frau|mann|sohn|tochter|kinder|bruder|"
        "schwester|femme|mari|fils|fille|enfant|frere|soeur|espos|mujer|marido|hij|herman|"
        "妻|夫|息子|娘|結婚|结婚|老婆|老公|儿子|兒子|女",
    ),
    "origin": _Matter(
        (
            r"where (?:am|are|do) (?:i|we)(?: come)?(?: originally)? from\b|where did i grow up",
            rf"where was i born|{_WHAT_IS} my (?:nationality|home ?town)",
            r"wo(?:her)? (?:komme|stamme) ich\b|wo bin ich (?:aufgewachsen|geboren)",
            r"d'ou (?:je viens|viens-je|est-ce que je viens)|ou (?:ai-je|j'ai) grandi",
            r"de donde (?:soy|vengo)|donde (?:creci|naci)",
            "(?:私|僕|俺)の(?:出身|故郷)|(?<!の)出身はどこ|我(?:是)?(?:哪里|哪裡|哪儿)人|我来自(?:哪|何)",
        ),
        (
            r"\bi(?:'m| am| come)(?: originally)? from\b|\bi grew up\b|\bi was born in\b",
            r"\bmy home ?town\b|\bich (?:komme|stamme) aus\b|\baufgewachsen\b|\bgeboren in\b",
            r"\bje viens d|\bj'ai grandi\b|\bje suis originaire\b|\bsoy de\b|\bcreci en\b",
            r"\bnaci en\b",
            "出身です|出身は|で(?:育ち|生まれ)|我来自|我來自|我是.{1,8}人",
        ),
        "from|grew|born|home|komme|stamme|aufgew|geboren|viens|grandi|origin|soy de|creci|"
        "naci|出身|育|生|来自|來自|人",
    ),
    "likes": _Matter(
        (
            r"what do i (?:like|love|enjoy|hate|dislike)(?: most| to do| doing)?\s*(?:\?|$)",
            rf"{_WHAT_IS} my (?:hobby|hobbies|interests|likes|dislikes|passions?)\b",
            r"was (?:mag|liebe|hasse) ich\b(?: am liebsten| gern\w*)?\s*(?:\?|$)|meine hobbys\s*\?",
            r"qu'est-ce que j'aime\b|quels sont mes (?:loisirs|hobbies|gouts)",
            r"que me gusta\b|cuales son mis (?:aficiones|hobbies|gustos)",
            "(?:私|僕|俺)の趣味|(?:私|僕|俺)(?:は|が)何が好き|我(?:喜欢|喜歡)(?:什么|什麼)|我的(?:爱好|愛好)",
        ),
        (
            r"\bi(?: really| also| just| absolutely)? (?:love|enjoy|adore|hate|can't stand)\b",
            r"\bi(?: really| also)? like (?!to (?:know|ask|see)\b)|\bmy hobb|\bfavou?rite\b",
            r"\bi'm into\b",
            r"\bich (?:mag|liebe|hasse)\b|\bmein hobby\b|\blieblings|\bj'aime\b|\bj'adore\b",
            r"\bprefere\b",
            r"\bme (?:gusta|encanta)n?\b|\bmi (?:aficion|hobby)\b|\bfavorit[oa]\b",
            "趣味は|(?:が|も)(?:大)?好き|我(?:很|最|也)?(?:喜欢|喜歡|爱|愛)|我的(?:爱好|愛好)",
        ),
        "love|enjoy|adore|hate|stand|like|hobb|favo|i'm into|mag|liebe|hasse|lieblings|"
        "aime|prefer|gusta|encanta|aficion|趣味|好き|喜|爱|愛|好",
    ),
    "food": _Matter(
        (
            rf"what (?:can'?t|can|cannot|should|shouldn'?t|don'?t|do|may) i(?: not)? eat{_THEN}",
            r"what am i (?:allergic|intolerant)|do i have (?:any )?allerg",
            rf"am i (?:vegan|vegetarian)\b|am i (?:allergic|intolerant)(?: to any\w*)?{_THEN}",
            rf"{_WHAT_IS} my (?:allerg\w+|diet\w*)",
            r"was (?:darf|kann|esse) ich (?:nicht )?(?:essen)?\s*(?:\?|$)",
            r"wogegen bin ich allergisch",
            r"habe ich (?:eine )?(?:allergien?)|a quoi (?:suis-je|je suis) allergique",
            r"(?:que|qu'est-ce que) je (?:ne )?(?:peux|dois)(?: pas)? manger",
            r"que (?:no )?puedo comer|a que soy alergic[oa]|tengo alergias",
            "アレルギー(?:は|が|って)|食べられない(?:もの|物)|我(?:对什么|對什麼)过?敏|我不能吃(?:什么|什麼)",
        ),
        (
            r"\ballerg(?!\w*\s*\?)|\bintoleran",
            r"\bi(?:'m| am) an? ?(?:\w+ )?(?:vegan|vegetarian|diabetic)\b",
            r"\bi(?:'m| am) (?:vegan|vegetarian|diabetic|celiac|coeliac)\b",
            r"\bi (?:don't|do not|can't|cannot|never) eat\b|\bich esse kein",
            r"\bich bin (?:vegan|veget)",
            r"\bje ne mange pas\b|\bje suis (?:vegan|vegetari)|\bno como\b",
            r"\bsoy (?:vegan|vegetari|celiac)",
            r"\balergi|アレルギー|食べられ(?:ない|ません)|过敏|過敏|我不(?:能)?吃|我吃素",
        ),
        "allerg|alergi|intoler|vegan|vegetari|diabetic|celiac|coeliac|eat|esse|veget|mange|"
        "como|celiac|アレルギー|食べ|敏|吃",
    ),
}


def _any_of(patterns: Sequence[str]) -> Callable[[], re.Pattern[str]]:
    return late("|".join(f"(?:{plain_letters(one)})" for one in patterns))


# Each question in Latin letters has one of these words, which are found in a fortieth of the time.
_OF_ASKER = re.compile(
    r"\b(?:i|we|my|our|ich|wir|meine?|unsere|je|j'\w+|nous|on|mon|ma|mes|notre|suis|mi|mis|me|nuestra"
    r"|vivo|vivimos|resido|soy|llamo|trabajo|tengo|estoy|naci|cumplo|creci|vengo|puedo)\b"
)
_ASKED = {name: _any_of(one.asked) for name, one in _MATTERS.items()}
_STATED = {name: _any_of(one.stated) for name, one in _MATTERS.items()}


_ADVISE = (
    r"(?:recommend|suggest|say|tell (?:me|us)|propose|come up|mention|advise|call|name|pick|explain"
    r"|list|write|share|find)"
)
_ADVISED = (
    r"(?:recommended|suggested|said|told (?:me|us)|proposed|came up|mentioned|advised|named|picked"
    r"|explained|listed|gave|wrote|shared)"
)
_OF_ASSISTANT = late(
    rf"\b(?:did|had) you (?:\w+ )?{_ADVISE}\b|\bhave you (?:{_ADVISED}|found)\b"
    rf"|\byou(?:'ve|'d| have| had)? (?:just |already |once |previously |earlier )?{_ADVISED}\b"
    r"|\b(?:was|were|is|of) your (?:\w+ )?"
    r"(?:advice|suggestion|recommendation|answer|tip|trick|idea|proposal|explanation)s?\b"
    r"|\b(?:hast|hattest|haben|hatten) (?:du|sie)\b.{0,80}\b"
    r"(?:empfohlen|vorgeschlagen|gesagt|geraten|genannt|erwahnt|erklart)\b"
    r"|\b(?:war|waren) dein(?:e|er)? (?:rat|vorschlag|empfehlung|tipp|idee|antwort)\b"
    r"|\b(?:as-tu|tu (?:m')?as|tu m'avais|avez-vous|vous (?:m')?avez|m'as-tu|m'avais-tu) "
    r"(?:dit|recommande|conseille|suggere|propose|explique|mentionne)\w*"
    r"|\betait (?:ton|ta|votre) (?:conseil|suggestion|recommandation|idee|reponse)"
    r"|\b(?:recomendaste|dijiste|sugeriste|aconsejaste|propusiste|explicaste|mencionaste)\b"
    r"|\b(?:has|me ha) (?:recomendado|dicho|sugerido|aconsejado|propuesto)\b"
    r"|\b(?:fue|era) tu (?:consejo|sugerencia|recomendacion|idea|respuesta)"
    r"|(?:勧め|薦め|おすすめし|提案し|教え|アドバイスし|言っ)(?:て(?:くれ|下さ|くださ|もら|いただ)|ました)"
    r"|あなた[がは].{0,20}(?:勧め|薦め|提案|教え|言っ|言い)"
    r"|(?<![跟和对對向])你(?:之前|上次|刚才|剛才|曾|给我|給我|跟我|向我){0,2}"
    r"(?:推荐|推薦|建议|建議|提议|提議|提到|告诉|告訴|说|說)(?:过|過|了|我|的)"
)


_OF_OTHERS = late(  # somebody else said it, or the asker did
    r"(?:さん|先生|医者|友達|上司|[母父兄姉弟妹]|彼女?)[がはに]|我(?:上次|之前|曾|也)?[跟和对對向]你"
    r"|(?i:\bdid i (?:say|tell|mention)|\bi (?:told|said|mentioned)\b"
    r"|\bmy \w+ (?:told|said|asked)\b|\bhabe ich (?:dir )?gesagt\b)"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*(?=\S)")


def asks_what_assistant_said(question: str) -> bool:
    """Return whether a question is about what the assistant that is asked has said before.

    "I read the plan that you gave me. What is next?" is not. More than 300 characters are none.
    """
    if len(question) > _MOST_ASKED or _OF_OTHERS().search(question) is not None:
        return False
    sentences = _SENTENCE_END.split(plain_letters(question).strip())
    return any(
        _OF_ASSISTANT().search(one) is not None
        for one in sentences
        if len(sentences) == 1 or one.endswith(("?", "\uff1f"))
    )


def find_matter(question: str) -> str:
    """The matter of the asker that a question asks of; empty if it is none of those that are known.

    It looks at the first 300 characters.
    """
    text = plain_letters(question[:_MOST_ASKED])
    if text.isascii() and _OF_ASKER.search(text) is None:
        return ""
    return next((name for name, asked in _ASKED.items() if asked().search(text) is not None), "")


def states(matter: str) -> Callable[[str], bool]:
    """Tells whether a message states such a matter of its author; by its first 1,000 characters."""
    stated = _STATED[matter]().search
    signs = _MATTERS[matter].signs.split("|")

    def is_statement(text: str) -> bool:
        text = plain_letters(text[:_MOST_STATED])
        return any(sign in text for sign in signs) and stated(text) is not None

    return is_statement
