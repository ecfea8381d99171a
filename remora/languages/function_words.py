"""Words that say little in their language: they tell which language it is, and are not searched.

Written for this module, from the grammar of each language: articles, pronouns, prepositions,
conjunctions, auxiliary verbs, question words.
"""

from __future__ import annotations

from collections.abc import Mapping

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
