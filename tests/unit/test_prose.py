"""The counts of prose on pages (`tools.lint.prose`) see what they are for, and only fall."""

from __future__ import annotations

from tools.lint.prose import COUNTS, Page, lowered, prose
from tools.lint.source import Source

LONG = f"Here {'word ' * 30}stand.\n"
CODE = "```sh\nremora what; is stored\n```\n"
QUIET = f"""# What is shown; those that are read

> What a quoted error says; it is quoted.

Run this. What is `what; x`?

{CODE}
<!-- written by tools.example -->
What was measured; it is written by a program. {LONG}
<!-- until here -->
"""


def page(text: str, name: str = "docs/how-to/a.md") -> Source:
    return Source(name, text)


def test_each_count_sees_its_habit_and_names_the_line() -> None:
    begin = f"Run this.\n\n{CODE}\n"
    for text, said in (
        (f"{begin}{LONG * 2}", "a.md:7: sentences of more than 25 words: 2, and 1 are allowed"),
        (f"{begin}It waits; it ends.", "a.md:7: semicolons: 1, and 0 are allowed"),
        (f"{begin}| a | b |\n|---|---|\n| c; d | e |", "a.md:9: semicolons: 1"),
        (
            f"{begin}What it is. What it has. And those\nthat wait.",
            '"those that" for a thing: 3, and 2',
        ),
        (f"{begin}It is stored. It was then told.", "a.md:7: verbs in the passive: 2"),
        (f"{'word ' * 101}\n\n{CODE}", "a.md:1: words before the first code or command: 101"),
        (f"{begin}{'Go. ' * 900}", "a.md:1: words: 908, and 900 are allowed"),
    ):
        found = [line for line in prose([page(text)], {}) if said in line]
        assert len(found) == 1, (said, list(prose([page(text)], {})))


def test_code_headings_quotations_and_generated_parts_have_no_counts() -> None:
    assert not list(prose([page(QUIET)], {}))
    assert Page(page(QUIET)).sentences == [(5, "Run this."), (5, "What is X?")]
    evidence = page("What it is; what it was; those that are.", "docs/evidence/a.md")
    assert not list(prose([evidence], {}))


def test_a_count_may_fall_and_must_not_rise() -> None:
    files = [page(f"Run this; wait.\n\n{CODE}\nGo; go; go.")]
    before = {"docs/how-to/a.md": {"semicolons": 5}, "docs/how-to/gone.md": {"words": 2000}}
    assert not list(prose(files, before))
    after = lowered(files, before)
    assert after == {"docs/how-to/a.md": {"semicolons": 3}}
    assert not list(prose(files, after))
    risen = [page(f"{files[0].text} Go; go.")]
    assert len(list(prose(risen, after))) == 1
    assert lowered(risen, after) == after  # an update raises nothing
    assert lowered(risen, {}) == {"docs/how-to/a.md": {"semicolons": 4}}  # but begins a table


def test_all_pages_together_have_a_budget() -> None:
    files = [page("go " * 28_000, f"docs/evidence/{name}.md") for name in "ab"]
    assert list(prose(files, {})) == [
        "docs/: words of all pages: 56000, and 55000 are allowed: shorten a page"
    ]
    assert not list(prose(files, lowered(files, {})))


def test_a_misspelt_number_is_told() -> None:
    text = f"Run this.\n\n{CODE}"
    assert list(prose([page(text)], {"docs/how-to/a.md": {"wrods": 1}}))
    assert set(COUNTS) == {"words", "before_code", "long", "semicolons", "what", "passive"}
