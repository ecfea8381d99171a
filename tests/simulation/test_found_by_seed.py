"""Bugs of remora's own that the simulation found: the smallest case of each, as it was printed,
must break nothing any more.
"""

from __future__ import annotations

import pytest

from remora import BufferPolicy
from remora.testing.simulation import CONFIG
from tests.checker.exploring import Settings, play, read_case, report

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here

FOUND = {
    # Seed 72: the first of two messages was handed over, and its window has the words of the
    # second; that was deleted before it was handed over itself, so nobody looked for it in
    # long-term memory.
    "words of a message that was never handed over": (
        BufferPolicy(above_tokens=60, keep_tokens=30),
        (
            '{"program":{"callers":[{"number":0,"calls":[{"number":1,"kind":"append","user":"bob","session":"s0","shapes":["user"],'
            '"words":40},{"number":5,"kind":"append","user":"bob","session":"s0","shapes":["user"]},{"number":7,"kind":"delete",'
            '"user":"bob","session":"s0"}]}]},"seed":72,"faults":[],"crashes":[]}'
        ),
    ),
    # Seed 2319: with one message rewound, the next but two stood in a window; when it was rewound
    # as well, only those rows were written anew whose numbers are next to its own.
    "words across a gap": (
        BufferPolicy(above_tokens=60, keep_tokens=30),
        (
            '{"program":{"callers":[{"number":0,"calls":[{"number":2,"kind":"append","session":"s0","shapes":["user","user"]},'
            '{"number":3,"kind":"rewind","session":"s0"},{"number":4,"kind":"append","session":"s0","shapes":["user","user"],'
            '"words":20},{"number":7,"kind":"rewind","session":"s0"}]}]},"seed":2319,"faults":[],"crashes":[]}'
        ),
    ),
    # Seed 511: a user's actor lost its state to a commit that was kept, and could not be read
    # again; the job that the commit held was run by nobody before the user's next message, or the
    # next start.
    "a job of an actor that was lost": (
        None,
        (
            '{"program":{"callers":[{"number":0,"calls":[{"number":0,"kind":"append","session":"s0","shapes":["user"],"key":"k2"}]},'
            '{"number":1,"calls":[{"number":0,"kind":"load","session":"s0"},{"number":1,"kind":"load","session":"s1","asks":true}]},'
            '{"number":2,"calls":[{"number":0,"kind":"append","session":"s0","shapes":["user"],"key":"k1","retries":20}]},'
            '{"number":3,"calls":[{"number":0,"kind":"append","session":"s0","shapes":["user"],"words":40,"key":"r23ca9eda"}]}]},'
            '"seed":511,"faults":[{"port":"commit","nth":2,"kind":"refused","times":1},{"port":"read","nth":5,"kind":"fail","times":8},'
            '{"port":"commit","nth":4,"kind":"kept","times":1}],"crashes":[],"closes":[]}'
        ),
    ),
}


@pytest.mark.parametrize(("policy", "text"), FOUND.values(), ids=FOUND.keys())
@pytest.mark.parametrize("journal", ["memory", "sqlite"])
def test_it_stays_mended(policy: BufferPolicy | None, text: str, journal: str) -> None:
    """G7, G13, S5.05: what a seed once found wrong is right, whatever journal is below."""
    settings = Settings(policy, CONFIG) if policy is not None else None  # its seed's own
    run = play(
        read_case(text), settings=settings, journal="sqlite" if journal == "sqlite" else "memory"
    )
    assert not run.violations, report(run)
