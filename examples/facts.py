"""Facts that a chat model extracts: where a user lives, and that this has changed."""

from __future__ import annotations

import asyncio
import json
import tempfile

import remora


class Model:
    """Stands for a chat model: it answers what `remora.Runtime` asks for facts."""

    name = "scripted"

    async def complete(self, messages: list[dict[str, object]]) -> str:
        asked, rows = str(messages[0]["content"]), str(messages[-1]["content"]).splitlines()
        if '"replaces"' in asked:
            return json.dumps({"replaces": [{"new": len(rows), "old": 1}]})
        said = [json.loads(row) for row in rows]
        found = [
            {"text": f"{one['speaker']} lives in {city}", "sources": [one["message"]]}
            for one in said
            for city in ("Lisbon", "Porto")
            if city in one["text"]
        ]
        return json.dumps({"facts": found})


async def main() -> None:
    config = remora.Config.from_dict({"facts": {"enabled": True}})
    with tempfile.TemporaryDirectory() as directory:
        async with remora.Runtime(directory, config=config, chat_model=Model()) as runtime:
            ana = runtime.user("ana")
            for day, text in enumerate(("My flat in Lisbon is tiny.", "I moved to Porto!")):
                chat = ana.session(f"day {day}")
                await chat.append({"role": "user", "name": "Ana", "content": text})
                await chat.flush()  # or wait: an idle session is indexed by itself
                await chat.settle()  # for this example: the facts are there when it returns
            for fact in await ana.recall("Where does Ana live?", types="fact"):
                print("holds:", fact.text, "| from message", fact.sources, "of", fact.session)
            for fact in await ana.remembered(types="fact"):
                if fact.superseded_by:
                    print("no longer:", fact.text)
            await ana.session("day 1").forget()
            for fact in await ana.recall("Where does Ana live?", types="fact"):
                print("after forgetting:", fact.text)


if __name__ == "__main__":
    asyncio.run(main())
