"""The page of ``remora view`` in a real browser: how soon it shows, and what it costs the owner.

    python -m benchmarks.view paint [--sessions 10000] [--messages 100000] [--repeat 9] [--json F]
    python -m benchmarks.view owner [--pairs 9] [--seconds 4] [--json F]

`paint` opens two memories in turn, a large one and one with 10 users, 10 sessions and 10 messages,
and compares them: the first paint, the first rows of users, a session with its context. Each is
measured by the browser, from the start of the navigation.

`owner` has a process append as fast as it can, with and without a page open that refreshes itself:
pairs in one run, in alternating order. The rate depends on who else wants the processors, the
browser among them; the owner's processor time for each append does not, so both are compared.

They need Chromium (``apt-get install chromium-headless-shell``) and Playwright.
"""
