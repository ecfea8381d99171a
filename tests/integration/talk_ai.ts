// What `test_typescript` runs: the AI SDK, with a model that plays a script, and a served memory.

import assert from "node:assert/strict";
import { generateText, jsonSchema, stepCountIs, streamText, tool, wrapLanguageModel } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { rememberTurn, type TurnOptions } from "../../clients/typescript/ai.ts";
import { Client } from "../../clients/typescript/remora.ts";

type Generated = Awaited<ReturnType<MockLanguageModelV4["doGenerate"]>>;
type Part = Awaited<ReturnType<MockLanguageModelV4["doStream"]>>["stream"] extends ReadableStream<infer One> ? One : never;
type Message = MockLanguageModelV4["doGenerateCalls"][number]["prompt"][number];

const [address = "", apiKey = ""] = process.argv.slice(2);
const client = new Client(address, { apiKey });
const none = undefined;
const usage = {
  inputTokens: { total: none, noCache: none, cacheRead: none, cacheWrite: none },
  outputTokens: { total: none, text: none, reasoning: none },
};

function says(text: string): Generated {
  return { content: [{ type: "text", text }], finishReason: { unified: "stop", raw: none }, usage, warnings: [] };
}

function calls(name: string, input: unknown): Generated {
  const call = { type: "tool-call", toolCallId: "c1", toolName: name, input: JSON.stringify(input) } as const;
  return { content: [call], finishReason: { unified: "tool-calls", raw: none }, usage, warnings: [] };
}

/** The wrapped model, which plays replies, and the prompts that it was sent. */
function scripted(session: string, script: Generated[], options: TurnOptions = {}) {
  const replies = [...script];
  const mock = new MockLanguageModelV4({
    doGenerate: async () => {
      const next = replies.shift();
      if (next === undefined) throw new Error("the script is over");
      return next;
    },
  });
  const middleware = rememberTurn(client, { user: "alice", session }, options);
  return { model: wrapLanguageModel({ model: mock, middleware }), prompts: () => mock.doGenerateCalls.map((one) => one.prompt) };
}

function streaming(session: string, parts: Part[], options: TurnOptions = {}, endless = false) {
  const mock = new MockLanguageModelV4({
    doStream: async () => ({
      stream: new ReadableStream<Part>({
        start(controller) {
          for (const part of parts) controller.enqueue(part);
          if (!endless) controller.close();
        },
      }),
    }),
  });
  const middleware = rememberTurn(client, { user: "alice", session }, options);
  return { model: wrapLanguageModel({ model: mock, middleware }), calls: () => mock.doStreamCalls.length };
}

async function stored(session: string) {
  const { messages } = await client.listMessages({ user: "alice", session }, { limit: 100 });
  return messages;
}

async function texts(session: string) {
  return (await stored(session)).map((one) => `${one.role}: ${one.content ?? one.tool_calls?.[0]?.function.name}`);
}

const shown = (prompt: Message[] | undefined) => JSON.stringify(prompt);

// a turn with a tool: the model sees the application's instructions and the memory's context
const ran: unknown[] = [];
const weather = tool({
  description: "The weather in a city",
  inputSchema: jsonSchema<{ city: string }>({ type: "object", properties: { city: { type: "string" } } }),
  execute: async ({ city }: { city: string }) => {
    ran.push(city);
    return { city, degrees: 19 };
  },
});
const asked = { instructions: "Be brief.", tools: { weather }, stopWhen: stepCountIs(3), maxRetries: 0 };
const question = "I moved to Lisbon. How warm is it here?";
const first = scripted("monday", [calls("weather", { city: "Lisbon" }), says("19 degrees.")], { key: "r1" });
assert.equal((await generateText({ ...asked, model: first.model, prompt: question })).text, "19 degrees.");
const turn = [`user: ${question}`, "assistant: weather", 'tool: {"city":"Lisbon","degrees":19}', "assistant: 19 degrees."];
assert.deepEqual(await texts("monday"), turn);
assert.deepEqual(ran, ["Lisbon"]);
const [, second] = first.prompts();
assert.deepEqual(second?.map((one) => one.role), ["system", "user", "assistant", "tool"]);
assert.deepEqual(second?.[0], { role: "system", content: "Be brief." });
const result = second?.at(-1);
assert.ok(result?.role === "tool" && result.content[0]?.type === "tool-result");
assert.equal(result.content[0].toolName, "weather");

// the same request again: stored replies, and the model is not called
for (const _ of [1, 2]) {
  const again = scripted("monday", [], { key: "r1" });
  assert.equal((await generateText({ ...asked, model: again.model, prompt: question })).text, "19 degrees.");
  assert.equal(again.prompts().length, 0);
}
assert.deepEqual(await texts("monday"), turn);
const over = streaming("monday", [], { key: "r1" });
assert.equal(await streamText({ ...asked, model: over.model, prompt: question }).text, "19 degrees.");
assert.equal(over.calls(), 0);

// another conversation recalls it; what the application sends of history is not doubled
const friday = scripted("friday", [says("In Lisbon.")], { max_tokens: 2000 });
await generateText({
  model: friday.model,
  messages: [
    { role: "user", content: "Hello." },
    { role: "assistant", content: "Hello!" },
    { role: "user", content: "Where do I live?" },
  ],
});
assert.match(shown(friday.prompts()[0]), /<recalled>.*moved to Lisbon/s);
assert.doesNotMatch(shown(friday.prompts()[0]), /Hello/);
assert.deepEqual(await texts("friday"), ["user: Where do I live?", "assistant: In Lisbon."]);

// a model that fails loses nothing, and a retry stores nothing twice
const fails = scripted("failing", [], { key: "f" });
await assert.rejects(generateText({ model: fails.model, prompt: "Hi", maxRetries: 0 }), /the script is over/);
assert.deepEqual(await texts("failing"), ["user: Hi"]);
const works = scripted("failing", [says("Hello.")], { key: "f" });
await generateText({ model: works.model, prompt: "Hi" });
assert.deepEqual(await texts("failing"), ["user: Hi", "assistant: Hello."]);

// a turn that ended between a call and its result goes on there
const names = { user: "alice", session: "resumed" };
const message = [{ role: "user", content: "How warm is Faro?" }];
const call = { id: "c1", type: "function", function: { name: "weather", arguments: '{"city":"Faro"}' } };
await client.replyToTurn(names, { message, reply: { role: "assistant", content: null, tool_calls: [call] } }, { key: "q" });
const resumed = scripted("resumed", [says("19 there, too.")], { key: "q" });
await generateText({ ...asked, model: resumed.model, prompt: "How warm is Faro?" });
assert.deepEqual([ran.at(-1), resumed.prompts().length, (await texts("resumed")).length], ["Faro", 1, 4]);

// a stream is stored before it says that it is finished
const deltas: Part[] = [
  { type: "text-start", id: "1" },
  { type: "text-delta", id: "1", delta: "Once " },
  { type: "text-delta", id: "1", delta: "upon." },
  { type: "text-end", id: "1" },
  { type: "finish", usage, finishReason: { unified: "stop", raw: none } },
];
const whole = streaming("stream", deltas);
for await (const part of streamText({ model: whole.model, prompt: "A story" }).stream) {
  if (part.type === "finish-step") assert.equal((await texts("stream")).at(-1), "assistant: Once upon.");
}

// of a stream that was broken off the text is kept, until the retry replaces it
const story: Message[] = [{ role: "user", content: [{ type: "text", text: "A story" }] }];
const cut = streaming("cut", deltas.slice(0, 2), { key: "s" }, true);
const { stream } = await cut.model.doStream({ prompt: story });
const reader = stream.getReader();
await reader.read();
await reader.read();
await reader.cancel();
const kept = (await stored("cut")).at(-1);
assert.deepEqual([kept?.content, kept?.metadata?.incomplete], ["Once ", true]);
const retried = streaming("cut", deltas, { key: "s" });
assert.equal(await streamText({ model: retried.model, prompt: "A story" }).text, "Once upon.");
assert.deepEqual((await stored("cut")).map((one) => one.content).slice(1), ["Once upon."]);

// a model whose stream fails
const broken = new MockLanguageModelV4({
  doStream: async () => ({
    stream: new ReadableStream<Part>({
      pull(controller) {
        const part = failing.shift();
        if (part === undefined) controller.error(new Error("cut off"));
        else controller.enqueue(part);
      },
    }),
  }),
});
const failing = deltas.slice(0, 3);
const middleware = rememberTurn(client, { user: "alice", session: "broken" });
const wrapped = wrapLanguageModel({ model: broken, middleware });
const cutOff = await wrapped.doStream({ prompt: story });
const heard: Part[] = [];
await assert.rejects(async () => {
  for await (const part of cutOff.stream) heard.push(part);
}, /cut off/);
assert.equal(heard.length, 3);
assert.equal((await stored("broken")).at(-1)?.metadata?.incomplete, true);

// pictures go to the memory and come back
const dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const sees = scripted("picture", [says("A dot.")]);
await generateText({
  model: sees.model,
  messages: [{ role: "user", content: [{ type: "text", text: "What is it?" }, { type: "file", data: dot, mediaType: "image/png" }] }],
});
const looks = scripted("picture", [says("Red.")]);
await generateText({ model: looks.model, prompt: "Which color?" });
const picture = looks.prompts()[0]?.flatMap((one) => (one.role === "user" ? one.content : [])).find((part) => part.type === "file");
assert.deepEqual([picture?.mediaType, picture?.data], ["image/png", { type: "data", data: dot }]);
await assert.rejects(generateText({ model: looks.model, messages: [{ role: "assistant", content: "Hi" }], maxRetries: 0 }), /a message of the user/);
console.log("done");
