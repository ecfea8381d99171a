"""Conversations of users with an assistant that remora makes itself, with questions about them.

    python -m benchmarks.synthetic [FOLDER]

writes `chats.jsonl`, `desk.jsonl` and `daily.jsonl` again, which `benchmarks.recall` asks when it
is given no other file. The same code and the same material give the same bytes.

`desk.jsonl` is a service desk's traffic of tool calls and results; `make_desk` says what is asked.
In `daily.jsonl` one person tells 47 things in passing and asks for them later, in seven languages;
the questions were written before remora was asked any. In `chats.jsonl`, eight users talk for some
fourteen months. They ask for help with everyday things, and the assistant answers at length, with
lists and tool calls. In passing they say what is asked about later:

* ``list``, ``count``: things of one kind, three to eight, each in another session. Alike, and no
  evidence: what friends did, and what was only planned.
* ``update``: a value that changes up to three times; the evidence is the newest.
* ``single``, ``date``: a fact in one message, between others.
* ``instruction``: a rule that was given once; ``instruction applied``: a request that it is for.
* ``tool``: what the assistant told of a tool's result; ``advised``: what it recommended.
* ``unanswerable``: what this user never spoke of, though another may have.

The sentences in `material/` were written beforehand, and not changed after remora was asked, but
for one thing: at first no question shared words with its answer, and every method found so little
that they could not be told apart. Now half of the questions share some, and half of the things in
lists are said with a word for their kind.
"""
