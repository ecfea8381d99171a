"""Questions about their asker, and what states the answer."""

from __future__ import annotations

import pytest

from remora.languages.dates import read_question
from remora.languages.personal import asks_what_assistant_said, find_matter, states

TODAY = 20_700


@pytest.mark.parametrize(
    ("question", "matter", "statement"),
    [
        ("Where do I live?", "home", "I moved to Lisbon."),
        ("Which city am I based in?", "home", "we've just relocated to Ghent"),
        ("whats my address", "home", "My new address is 4 Mill Lane."),
        ("who am i", "self", "Hi, my name is Ada."),
        ("Wer bin ich?", "self", "Ich bin eine Kunsttischlerin."),
        ("What's my name?", "name", "Everyone calls me Wim."),
        ("Where's home for me?", "home", "We've got a small house in Sintra."),
        ("What do I do?", "work", "I'm a software developer, by the way"),
        ("Who do I work for?", "work", "I started at my new job on Monday."),
        ("What is my phone number?", "number", "I have a new number: +351 933 222 111"),
        ("How old am I?", "age", "I turned 41 last week!"),
        ("Do I have any siblings?", "family", "My brother is visiting."),
        ("Where am I from?", "origin", "I grew up near Pécs."),
        ("What are my hobbies?", "likes", "I love restoring radios."),
        ("What can't I eat?", "food", "I'm allergic to sesame."),
        ("Wo wohne ich?", "home", "Wir sind nach Köln gezogen."),
        ("Wie heiße ich?", "name", "Ich heiße Jörg."),
        ("Où est-ce que j’habite ?", "home", "Nous avons déménagé à Lyon."),
        ("Comment je m'appelle ?", "name", "Je m’appelle Zoé."),
        ("¿Dónde vivo?", "home", "Me he mudado a Vigo."),
        ("¿A qué me dedico?", "work", "Trabajo como panadero."),
        ("私はどこに住んでいますか？", "home", "先月、札幌に引っ越しました。"),
        ("私の趣味は何？", "likes", "趣味は釣りです"),
        ("我住在哪里？", "home", "我搬到杭州了。"),
        ("我叫什么名字？", "name", "我叫李雷。"),
        ("Where do I live?", "home", "Wir wohnen in Bremen."),  # of another language
        ("donde vivo", "home", "Vivo en Lugo."),
        ("Cuantos anos tengo?", "age", "Tengo 41 años."),
        ("Was ist meine Telefonnummer?", "number", "Meine Nummer ist 0151 23456."),
        ("D'ou je viens ?", "origin", "Je viens de Lille."),
    ],
)
def test_a_question_and_a_statement(question: str, matter: str, statement: str) -> None:
    assert find_matter(question) == matter
    assert states(matter)(statement)


@pytest.mark.parametrize(
    "question",
    [
        "Where does my brother live?",
        "Which city does my brother live in?",
        "What do I do when the printer jams?",
        "Who am I meeting tomorrow?",
        "What is the number of the order?",
        "What is my name server?",
        "Where is my house key?",
        "What is my work around for bug 5?",
        "How old am I supposed to be to vote?",
        "What is my number of orders?",
        "What is my flight number?",
        "What's our locker number?",
        "Where do I work out?",
        "How many children did we invite?",
        "Who am I in love with?",
        "Who am I supposed to call?",
        "Am I allergic to cats?",
        "What should I eat before the marathon?",
        "When's my birthday dinner reservation?",
        "Which company does Anna, whom I met, work for?",
        "Where did I live before Lisbon?",
        "Quel est mon nom d'utilisateur ?",
        "Por donde vivo hay ruido, ¿qué hago?",
        "兄はどこに住んでいますか",
        "太郎の誕生日はいつ",
        "彼の出身はどこ",
        "子供が何か言った",
        "我的电话是什么时候坏的",
        "我的工作压力大怎么办",
        "我的名字是谁起的",
        "",
    ],
)
def test_other_questions_are_of_no_matter(question: str) -> None:
    assert not find_matter(question)


@pytest.mark.parametrize(
    ("matter", "text"),
    [
        ("home", "I would like to live more healthily."),
        ("home", "My brother's band plays live music."),
        ("home", "I moved on."),
        ("work", "I am a bit over it."),
        ("age", "I am 30 minutes late."),
        ("number", "My lucky number is seven."),
    ],
)
def test_what_is_no_statement(matter: str, text: str) -> None:
    assert not states(matter)(text)


@pytest.mark.parametrize(
    ("question", "alone"),
    [
        ("What did I tell you yesterday?", True),
        ("what did we talk about last week", True),
        ("Worüber haben wir letzte Woche gesprochen?", True),
        ("De quoi avons-nous parlé hier ?", True),
        ("¿Qué te dije ayer?", True),
        ("昨日何を話しましたか？", True),
        ("昨天我跟你说了什么？", True),
        ("What did I say in March about the kitchen?", False),
        ("What did I eat yesterday?", False),
        ("昨天我吃了什么？", False),
        ("What did I tell you?", False),
    ],
)
def test_questions_of_days_alone(question: str, *, alone: bool) -> None:
    assert read_question(question, TODAY)[1] == alone


@pytest.mark.parametrize(
    "question",
    [
        "Which hotel did you recommend?",
        "You told me about a trick for candles, what was it?",
        "I forgot it. What was your advice on the dough?",
        "remind me which walk you suggested",
        "Welches Restaurant hast du mir empfohlen?",
        "Was war dein Vorschlag für den Namen?",
        "Quel hôtel m'as-tu recommandé ?",
        "¿Qué libro me recomendaste?",
        "どのホテルを勧めてくれましたか？",
        "你推荐了哪家餐厅？",
        "Which hotel have you found for me?",
        "Do you remember the recipe you shared?",
        "Remind me of your recommendation for Lisbon",
        "What did you write?",
        "Welches Restaurant hattest du vorgeschlagen?",
        "Quel hôtel m'avais-tu recommandé ?",
        "¿Qué hotel me ha recomendado usted?",
        "どのホテルをおすすめしましたか",
    ],
)
def test_questions_about_what_the_assistant_said(question: str) -> None:
    assert asks_what_assistant_said(question)


@pytest.mark.parametrize(
    "question",
    [
        "What did I tell you yesterday?",
        "What would you recommend for dinner?",
        "Did you know that I moved?",
        "I read the plan that you suggested. What is next?",
        "Was hast du heute vor?",
        "私は昨日何を言った？",
        "我告诉你什么了？",
        "お母さんが教えてくれたレシピは",
        "我跟你说过我儿子叫什么吗",
        "我上次跟你说的那家餐厅",
        "Did you tell Anna about the party?",
        "Did I mention that you said yes?",
        "My boss told me that you said yes?",
        "",
    ],
)
def test_other_questions_are_not_about_the_assistant(question: str) -> None:
    assert not asks_what_assistant_said(question)
