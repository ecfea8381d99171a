"""What deletion leaves on the disk, and what one user is shown of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab.correctness.programs.bench import Bench, texts_or_error
from benchmarks.lab.correctness.protocol import Embedding, Setting, marked, marks

__all__ = ["left_on_disk", "strangers_secret"]


async def left_on_disk(bench: Bench) -> None:
    """Search the bytes of every file for what a user said whose sessions were deleted."""
    embed = Embedding()
    subject = await bench.open("disk", Setting(limit_tokens=400, embed=embed))
    sessions = ["ann/1", "ann/2"]
    said = [f"zqx{n}v" for n in range(bench.sizes.spoken)]
    for n, mark in enumerate(said):
        await subject.append(sessions[n % 2], [marked(mark)])
        await subject.append("bob/1", [marked(f"other{n}")])
    await subject.settle()
    directory = bench.directory / "disk"
    before = _marks_in_files(directory, said)
    await subject.delete("ann", sessions)
    await subject.settle()
    readable: set[str] = set()
    for session in sessions:
        for work in (subject.load(session), subject.kept(session)):
            texts, _ = await texts_or_error(work)  # a load of deleted sessions may be refused
            readable |= set(marks(texts))
    others: set[str] = set()
    for work in (subject.load("bob/1"), subject.kept("bob/1")):
        others |= set(marks((await texts_or_error(work))[0]))
    rows = set(marks((await texts_or_error(subject.delivered()))[0]))
    await subject.close()
    files = _marks_in_files(directory, said)
    bench.report(
        {
            "said": len(said),
            "before": len(before),
            "readable": len(readable & set(said)),
            "rows": len(rows & set(said)),
            "in_files": len(files),
            "others_lost": sum(f"other{n}" not in others for n in range(len(said))),
            "bytes_files": sum(path.is_file() for path in directory.rglob("*")),
        }
    )


def _marks_in_files(directory: Path, said: Sequence[str]) -> set[str]:
    contents = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return {mark for mark in said if any(mark.encode() in content for content in contents)}


async def strangers_secret(bench: Bench) -> None:
    """Ask as Ann for a secret that Anna told, when long-term memory is shared."""
    secret = "SECRET-4711"
    question = "what is the combination of the old vault"
    for case, one_block in (
        (("store", False), ("block", True)) if bench.shares_blocks else (("store", False),)
    ):
        subject = await bench.open(
            case, Setting(limit_tokens=400, embed=Embedding(), one_block=one_block)
        )
        for user in ("anna", "ann"):
            fact = secret if user == "anna" else "not known to me"
            await subject.append(
                f"{user}/1",
                [f"the combination of the old vault is {fact} and nobody else may know it"],
            )
            for n in range(20):
                words = " ".join(
                    f"{user}{n}x{m}" for m in range(30)
                )  # nothing that the question has in common with it
                await subject.append(f"{user}/1", [f"[[{user}{n}]] {words}"])
        await subject.settle()
        own = leaked = 0
        for _ in range(bench.sizes.asked):
            own += any(secret in text for text in await subject.load("anna/1", query=question))
            leaked += any(secret in text for text in await subject.load("ann/1", query=question))
        bench.report(
            {f"{case}.asked": bench.sizes.asked, f"{case}.own": own, f"{case}.leaked": leaked}
        )
        await subject.close()
