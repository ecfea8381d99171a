/** Middleware of the AI SDK (the npm package `ai`, 7): a model that has remora's memory. */

import type { LanguageModelMiddleware } from "ai";

import type { ChatMessage, Client, ContextShown, Message, ToolCall, TurnAsked } from "./remora.ts";

export interface TurnOptions extends Pick<TurnAsked, "query" | "recall" | "max_tokens"> {
  /** Idempotency key: a request that comes again with it gets the stored reply. One of its own
   * without it. */
  key?: string;
}

type Generate = NonNullable<LanguageModelMiddleware["wrapGenerate"]>;
type Stream = NonNullable<LanguageModelMiddleware["wrapStream"]>;
type Generated = Awaited<ReturnType<Generate>>;
type StreamPart = Awaited<ReturnType<Stream>>["stream"] extends ReadableStream<infer Part> ? Part : never;
type CallOptions = Parameters<Generate>[0]["params"];
type PromptMessage = CallOptions["prompt"][number];
type UserPart = Extract<PromptMessage, { role: "user" }>["content"][number];
type FilePart = Extract<UserPart, { type: "file" }>;
type AssistantPart = Extract<PromptMessage, { role: "assistant" }>["content"][number];
type ResultPart = Extract<Extract<PromptMessage, { role: "tool" }>["content"][number], { type: "tool-result" }>;
type ChatPart = Record<string, any>;

/** A call of the model: what it sees, or the reply to it that is stored already. */
interface Step {
  message: ChatMessage[];
  known: number;
  prompt: PromptMessage[];
  reply: Message | undefined;
}

/**
 * Middleware for one turn: a message of the user, and all calls of the model that answer it, with
 * their tools. The model sees the application's system messages and remora's context; other
 * messages before the user's last are not sent, as the memory has them. What the user, the model
 * and its tools say is stored before the call returns; reasoning, sources and calls that the
 * provider runs itself are not. Of a reply that was broken off the text so far is kept, until a
 * retry replaces it.
 */
export function rememberTurn(
  client: Client,
  names: { user: string; session: string },
  options: TurnOptions = {},
): LanguageModelMiddleware {
  const { key = crypto.randomUUID(), ...asked } = options;

  async function begin({ prompt, abortSignal }: CallOptions): Promise<Step> {
    const call = { key, ...(abortSignal && { signal: abortSignal }) };
    const system = prompt.filter((one) => one.role === "system");
    const end = prompt.findLastIndex((one) => one.role === "user") + 1;
    if (end === 0) throw new TypeError("a turn needs a message of the user in the prompt");
    let start = end - 1;
    while (start > 0 && prompt[start - 1]?.role === "user") start -= 1;
    const message = prompt.slice(start, end).flatMap(toChat);
    const said = prompt.slice(end).flatMap(toChat);
    let shown = await client.beginTurn(names, { ...asked, message }, call);
    let known = shown.replies.length;
    if (known < said.length) {
      const reply = said.slice(known);
      await client.replyToTurn(names, { message, reply, stored: known }, call);
      shown = await client.beginTurn(names, { ...asked, message }, call);
      known = shown.replies.length;
    }
    const context: ContextShown["messages"] = shown.context?.messages ?? [];
    return { message, known, prompt: [...system, ...toPrompt(context)], reply: shown.replies[said.length] };
  }

  async function store(step: Step, reply: ChatMessage, signal?: AbortSignal): Promise<void> {
    if (!reply.content && !reply.tool_calls) return;
    const given = { message: step.message, reply, stored: step.known };
    await client.replyToTurn(names, given, { key, ...(signal && { signal }) });
  }

  return {
    specificationVersion: "v4",

    async wrapGenerate({ params, model }) {
      const step = await begin(params);
      if (step.reply !== undefined) return resultOf(step.reply);
      const result = await model.doGenerate({ ...params, prompt: step.prompt });
      const reply = new Reply();
      result.content.forEach((part) => reply.add(part));
      await store(step, reply.message(), params.abortSignal);
      return result;
    },

    async wrapStream({ params, model }) {
      const step = await begin(params);
      if (step.reply !== undefined) return { stream: streamOf(resultOf(step.reply)) };
      const result = await model.doStream({ ...params, prompt: step.prompt });
      const reader = result.stream.getReader();
      const reply = new Reply();
      let open = true;
      async function interrupt(): Promise<void> {
        if (!open) return;
        open = false;
        await store(step, reply.interrupted());
      }
      const stream = new ReadableStream<StreamPart>({
        async pull(controller) {
          try {
            const { done, value } = await reader.read();
            if (done) {
              await interrupt(); // it ended without a finish
              controller.close();
              return;
            }
            if (value.type === "finish") {
              open = false;
              await store(step, reply.message(), params.abortSignal);
            } else if (value.type === "error") {
              await interrupt();
            } else {
              reply.add(value);
            }
            controller.enqueue(value);
          } catch (error) {
            await interrupt();
            throw error;
          }
        },
        async cancel(reason) {
          await reader.cancel(reason);
          await interrupt();
        },
      });
      return { ...result, stream };
    },
  };
}

/** What a model says, from its parts or those of its stream. */
class Reply {
  #text = "";
  readonly #calls: ToolCall[] = [];

  add(part: StreamPart | Generated["content"][number]): void {
    if (part.type === "text") this.#text += part.text;
    else if (part.type === "text-delta") this.#text += part.delta;
    else if (part.type === "tool-call" && !part.providerExecuted) {
      this.#calls.push(calling(part.toolCallId, part.toolName, part.input));
    }
  }

  message(): ChatMessage {
    const calls = this.#calls.length > 0 && { tool_calls: this.#calls };
    return { role: "assistant", content: this.#text || null, ...calls };
  }

  /** The text alone: a call that the application never got is not stored. */
  interrupted(): ChatMessage {
    return { role: "assistant", content: this.#text, metadata: { incomplete: true } };
  }
}

function calling(id: string, name: string, input: string): ToolCall {
  return { id, type: "function", function: { name, arguments: input } };
}

// -- from the AI SDK to chat messages -----------------------------------------------------------

function toChat(one: PromptMessage): ChatMessage[] {
  if (one.role === "system") return [];
  if (one.role === "user") {
    const [first, ...others] = one.content.map(toChatPart);
    const content = first?.type === "text" && others.length === 0 ? first.text : [first, ...others];
    return [{ role: "user", content }];
  }
  if (one.role === "tool") {
    const results = one.content.filter((part) => part.type === "tool-result");
    return results.map((part) => ({ role: "tool", tool_call_id: part.toolCallId, content: textOf(part.output) }));
  }
  const reply = new Reply();
  for (const part of one.content) {
    if (part.type === "text") reply.add(part);
    else if (part.type === "tool-call") reply.add({ ...part, input: JSON.stringify(part.input ?? {}) } as StreamPart);
  }
  return [reply.message()];
}

function toChatPart(part: UserPart): ChatPart {
  if (part.type === "text") return { type: "text", text: part.text };
  if (part.data.type === "text") return { type: "text", text: part.data.text };
  const url = addressOf(part);
  if (part.mediaType.startsWith("image")) return { type: "image_url", image_url: { url } };
  return { type: "file", file: { file_data: url, ...(part.filename && { filename: part.filename }) } };
}

function addressOf({ data, mediaType }: FilePart): string {
  if (data.type === "url") return data.originalUrl ?? data.url.href;
  if (data.type !== "data") throw new TypeError(`a memory cannot store a file by ${data.type}: send its data or its URL`);
  const bytes = data.data;
  if (typeof bytes === "string") return `data:${mediaType};base64,${bytes}`;
  return `data:${mediaType};base64,${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}`;
}

function textOf(output: ResultPart["output"]): string {
  switch (output.type) {
    case "text":
    case "error-text":
      return output.value;
    case "json":
    case "error-json":
      return JSON.stringify(output.value);
    case "execution-denied":
      return output.reason ?? "The user did not allow this call.";
    case "content":
      return output.value.map((part) => (part.type === "text" ? part.text : `[${part.type}]`)).join("\n");
  }
}

// -- from chat messages to the AI SDK -----------------------------------------------------------

function toPrompt(messages: ChatMessage[]): PromptMessage[] {
  const prompt: PromptMessage[] = [];
  const tools = new Map<string, string>();
  for (const one of messages as unknown as Message[]) {
    if (one.role === "user") {
      prompt.push({ role: "user", content: partsOf(one) });
    } else if (one.role === "assistant") {
      for (const call of one.tool_calls ?? []) tools.set(call.id, call.function.name);
      prompt.push({ role: "assistant", content: [...partsOf(one), ...callsOf(one)] });
    } else if (one.role === "tool") {
      const toolCallId = one.tool_call_id ?? "";
      const output = { type: "text", value: plain(one) } as const;
      const part = { type: "tool-result", toolCallId, toolName: tools.get(toolCallId) ?? "unknown", output } as const;
      const last = prompt.at(-1);
      if (last?.role === "tool") last.content.push(part);
      else prompt.push({ role: "tool", content: [part] });
    } else {
      prompt.push({ role: "system", content: plain(one) });
    }
  }
  return prompt;
}

function partsOf({ content }: Message): UserPart[] {
  if (!content) return [];
  return typeof content === "string" ? [{ type: "text", text: content }] : content.map(toPart);
}

function plain(one: Message): string {
  return partsOf(one).map((part) => (part.type === "text" ? part.text : `[${part.mediaType}]`)).join("\n");
}

function toPart(part: ChatPart): UserPart {
  if (part.type === "text") return { type: "text", text: part.text };
  const url: unknown = part.type === "image_url" ? part.image_url?.url : part.file?.file_data;
  if (typeof url !== "string") return { type: "text", text: `[${part.type}]` };
  const inline = /^data:([^;,]+);base64,(.*)$/s.exec(url);
  if (inline !== null) {
    return { type: "file", mediaType: inline[1] ?? "", data: { type: "data", data: inline[2] ?? "" } };
  }
  return { type: "file", mediaType: "image/*", data: { type: "url", url: new URL(url) } };
}

function callsOf(one: Message): Extract<AssistantPart, { type: "tool-call" }>[] {
  return (one.tool_calls ?? []).map((call) => ({
    type: "tool-call",
    toolCallId: call.id,
    toolName: call.function.name,
    input: argumentsOf(call),
  }));
}

/** What a model wrote may be no JSON: then it is shown as it is. */
function argumentsOf(call: ToolCall): unknown {
  try {
    return JSON.parse(call.function.arguments || "{}");
  } catch {
    return call.function.arguments;
  }
}

// -- a reply that is stored already -------------------------------------------------------------

function resultOf(reply: Message): Generated {
  const calls = reply.tool_calls ?? [];
  const none = undefined;
  const text = plain(reply);
  return {
    content: [
      ...(text ? [{ type: "text" as const, text }] : []),
      ...calls.map((call) => ({
        type: "tool-call" as const,
        toolCallId: call.id,
        toolName: call.function.name,
        input: call.function.arguments,
      })),
    ],
    finishReason: { unified: calls.length > 0 ? "tool-calls" : "stop", raw: none },
    usage: {
      inputTokens: { total: none, noCache: none, cacheRead: none, cacheWrite: none },
      outputTokens: { total: none, text: none, reasoning: none },
    },
    warnings: [],
  };
}

function streamOf({ content, finishReason, usage, warnings }: Generated): ReadableStream<StreamPart> {
  const parts: StreamPart[] = [{ type: "stream-start", warnings }];
  for (const part of content) {
    if (part.type === "text") {
      const id = "stored";
      parts.push({ type: "text-start", id }, { type: "text-delta", id, delta: part.text }, { type: "text-end", id });
    } else if (part.type === "tool-call") {
      parts.push(part);
    }
  }
  parts.push({ type: "finish", usage, finishReason });
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(part);
      controller.close();
    },
  });
}
