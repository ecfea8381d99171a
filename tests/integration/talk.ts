// What `test_typescript` runs: a conversation with a served memory, through a network that fails.

import assert from "node:assert/strict";
import { Client, follow, RemoraError, Turn } from "../../clients/typescript/remora.ts";

const [address = "", apiKey = ""] = process.argv.slice(2);
const lost: ("before" | "after")[] = [];
let sent = 0;

/** The global `fetch`, which loses requests, or the answers of those that ran, when told to. */
const unreliable: typeof fetch = async (...request) => {
  sent += 1;
  const what = lost.pop();
  if (what === "before") throw new TypeError("refused");
  const answer = await fetch(...request);
  if (what === "after") throw new TypeError("cut");
  return answer;
};

async function failure(call: Promise<unknown>): Promise<RemoraError> {
  const error = await call.then(() => undefined, (reason: unknown) => reason);
  assert.ok(error instanceof RemoraError, String(error));
  return error;
}

const client = new Client(address, { apiKey, fetch: unreliable });
const chat = { user: "alice", session: "a/b ü" };
const said = (content: string) => ({ role: "user", content });

for (const what of ["before", "after"] as const) {
  lost.push(what, what);
  const receipt = await client.appendMessages(chat, { messages: [said(`lost ${what}`)] });
  assert.equal(receipt.seqs.length, 1);
  const turn = await Turn.begin(client, chat, `asked, lost ${what}`);
  assert.equal(turn.context.messages.at(-1)?.content, `asked, lost ${what}`);
  lost.push(what);
  const call = { id: "c1", type: "function", function: { name: "now", arguments: "{}" } };
  const replies = [
    turn.reply([
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", content: "noon", tool_call_id: "c1" },
    ]),
    turn.reply("It is noon."),
  ];
  await Promise.all(replies);
  assert.equal(turn.replies.length, 3);
  const again = await Turn.begin(client, chat, `asked, lost ${what}`, { key: turn.key });
  assert.ok(again.replayed);
  assert.throws(() => again.context, { kind: "TurnClosed" });
  assert.equal(again.replies.at(-1)?.content, "It is noon.");
}
const texts: unknown[] = [];
let after: number | null = 0;
while (after !== null) {
  const page = await client.listMessages(chat, { after, limit: 3 });
  texts.push(...page.messages.map((one) => one.content ?? null));
  after = page.after;
}

const { value } = await client.setValueOfSession({ ...chat, key: "step" }, { value: { at: 1 } });
assert.equal(value?.version, 1);
const stale = await failure(
  client.setValueOfSession({ ...chat, key: "step" }, { value: 2, version: 7 }),
);
assert.deepEqual([stale.kind, stale.status, stale.attributes.value], ["StateConflict", 409, { at: 1 }]);
lost.push("after");
sent = 0;
assert.equal((await failure(client.clearSession(chat))).kind, "OutcomeUnknown");
assert.equal(sent, 1);

const { ids } = await client.remember({ user: "alice" }, { content: "Alice plays the violin." });
const found = await client.recall({ user: "alice" }, { query: "What does Alice play?" });
assert.ok(found.memories.some((one) => one.id === ids[0]));

const bad = await failure(client.appendMessages(chat, { messages: [{ role: "nobody" }] }));
assert.deepEqual([bad.kind, bad.attributes.index], ["InvalidMessage", 0]);
const stranger = new Client(address, { apiKey: "remora_wrong" });
assert.equal((await failure(stranger.listUsers())).kind, "KeyRefused");
lost.push(...Array<"before">(100).fill("before"));
const gone = await failure(client.listUsers({}, { timeoutMs: 300 }));
assert.deepEqual([gone.kind, gone.retry], ["OwnerUnreachable", true]);
const stop = AbortSignal.abort(new Error("enough"));
await assert.rejects(client.listUsers({}, { signal: stop }), /enough/);
lost.length = 0;
const heard: unknown[] = [];
const aside = { user: "alice", session: "aside" };
await client.appendMessages(aside, { messages: [said("first")] });
lost.push("before", "after");
for await (const message of follow(client, aside, { after: 0 })) {
  heard.push(message.content);
  if (heard.length < 3) await client.appendMessages(aside, { messages: [said(`${heard.length}`)] });
  else await client.forgetSession(aside);
}
assert.deepEqual(heard, ["first", "1", "2"]);
const erased = await client.forgetUser({ user: "alice" });
assert.ok((erased.journal.messages ?? 0) > 0);
console.log(JSON.stringify(texts));
