/** Requests to a memory over HTTP: sent, sent again where that is safe, and answered or refused. */

export interface ClientOptions {
  /** As `remora keys FILE --add TENANT` printed it. */
  apiKey: string;
  /** Milliseconds that a request takes at most, with all that are sent again; 30,000 without it. */
  timeoutMs?: number;
  /** Sends the requests; the global `fetch` without it. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Idempotency key: the same request with the same key has one effect. */
  key?: string;
  timeoutMs?: number;
  signal?: AbortSignal;
}

/** What an operation of the description is, as `remora.ts` lists them. */
export interface Operation {
  method: string;
  path: string;
  query: boolean;
  keyed: boolean;
  repeatable: boolean;
}

/** A request that failed. */
export class RemoraError extends Error {
  /** The kind: a class of `remora.errors`, as `KeyConflict`, or one of the server, as `NotFound`. */
  readonly kind: string;
  /** Of HTTP; 0 if there was no answer. */
  readonly status: number;
  /** Whether the same request may succeed later. */
  readonly retry: boolean;
  /** Of the exception: `index`, `actual`, `value` … */
  readonly attributes: Record<string, unknown>;

  constructor(
    kind: string,
    status: number,
    detail: string,
    retry: boolean,
    attributes: Record<string, unknown> = {},
  ) {
    super(detail);
    this.name = "RemoraError";
    this.kind = kind;
    this.status = status;
    this.retry = retry;
    this.attributes = attributes;
  }
}

/** An event of a stream: its data is JSON. */
export interface StreamEvent {
  id: string;
  kind: string;
  data: unknown;
}

interface Problem {
  title: string;
  detail: string;
  retry: boolean;
  attributes?: Record<string, unknown>;
}

/** There was no answer, or none of the memory's: the request may have run. */
class Lost extends Error {}

/** A refusal after which the same request may be sent at once, or after some milliseconds. */
class Later extends Error {
  readonly refusal: RemoraError;
  readonly waitMs: number;

  constructor(refusal: RemoraError, waitMs: number) {
    super(refusal.message);
    this.refusal = refusal;
    this.waitMs = waitMs;
  }
}

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2_000;
const SILENT_MS = 45_000;
const NO_OWNER = new Set(["OwnerUnreachable", "OwnerFailed"]);
const PASSING = new Set(["OutcomeUnknown", "RuntimeClosed", "OwnershipLost"]);

export class Service {
  readonly url: string;
  readonly #apiKey: string;
  readonly #timeoutMs: number;
  readonly #fetch: typeof fetch;

  constructor(url: string, options: ClientOptions) {
    if (!/^https?:\/\/[^/]/.test(url)) {
      throw new TypeError(`the address of a service begins with http:// or https://: ${url}`);
    }
    if (!options.apiKey) throw new TypeError("a client needs an API key: pass apiKey");
    this.url = url.replace(/\/+$/, "");
    this.#apiKey = options.apiKey;
    this.#timeoutMs = options.timeoutMs ?? 30_000;
    this.#fetch = options.fetch ?? fetch;
  }

  /** Asks for an operation; a request that is safe to repeat is sent until there is an answer. */
  protected async call<Answer>(
    operation: Operation,
    names: Record<string, string>,
    given: object | undefined,
    options: CallOptions,
  ): Promise<Answer> {
    const key = options.key ?? (operation.keyed ? crypto.randomUUID() : undefined);
    const deadline = Date.now() + (options.timeoutMs ?? this.#timeoutMs);
    const repeatable = operation.repeatable || key !== undefined;
    let pause = FIRST_PAUSE_MS;
    for (;;) {
      let failure: RemoraError;
      let again = repeatable;
      try {
        return await this.#send<Answer>(operation, names, given, key, deadline, options.signal);
      } catch (error) {
        if (error instanceof Later) {
          failure = error.refusal;
          again = true;
          pause = Math.max(pause, error.waitMs);
        } else if (error instanceof Lost) {
          const reads = operation.method === "GET";
          const detail = `${this.url} gave no answer (${error.message})`;
          failure = reads
            ? new RemoraError("OwnerUnreachable", 0, detail, true)
            : new RemoraError("OutcomeUnknown", 0, `${detail}: it may have run`, true);
        } else {
          throw error;
        }
      }
      const wait = pause * (0.5 + Math.random() / 2);
      if (!again || Date.now() + wait >= deadline) throw failure;
      await sleep(wait, options.signal);
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }

  /** Events of a stream; a connection that is lost is made again, and goes on behind the last one. */
  async *events(
    path: string,
    names: Record<string, string>,
    given: object,
    signal?: AbortSignal,
  ): AsyncGenerator<StreamEvent, void> {
    let pause = FIRST_PAUSE_MS;
    let silentSince = Date.now();
    let last: string | undefined;
    for (;;) {
      let failure: RemoraError;
      try {
        for await (const event of this.#connect(path, names, given, last, signal)) {
          silentSince = Date.now();
          pause = FIRST_PAUSE_MS;
          last = event.id || last;
          if (event.kind === "problem") throw this.#named(event.data as Problem, 0, pause);
          if (event.kind !== "") yield event;
        }
        failure = new RemoraError("OwnerUnreachable", 0, `${this.url} ended the stream`, true);
      } catch (error) {
        if (error instanceof Later) {
          failure = error.refusal;
          pause = Math.max(pause, error.waitMs);
        } else if (error instanceof Lost) {
          const detail = `${this.url} gave no answer (${error.message})`;
          failure = new RemoraError("OwnerUnreachable", 0, detail, true);
        } else {
          throw error;
        }
      }
      if (Date.now() - silentSince > this.#timeoutMs) throw failure;
      await sleep(pause * (0.5 + Math.random() / 2), signal);
      pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    }
  }

  async *#connect(
    path: string,
    names: Record<string, string>,
    given: object,
    last: string | undefined,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<StreamEvent, void> {
    const silent = new AbortController();
    const signals = signal ? AbortSignal.any([signal, silent.signal]) : silent.signal;
    const watch = () => setTimeout(() => silent.abort(new Error("no sign of life")), SILENT_MS);
    let timer = watch();
    try {
      const headers: Record<string, string> = { authorization: `Bearer ${this.#apiKey}` };
      if (last !== undefined) headers["last-event-id"] = last;
      const url = `${this.url}${filled(path, names)}?${last === undefined ? parameters(given) : ""}`;
      const answer = await this.#fetch(url, { headers, signal: signals, redirect: "manual" });
      if (answer.status !== 200) throw this.#refusal(answer, await answer.text());
      const decoder = new TextDecoder();
      let left = "";
      for await (const part of answer.body ?? []) {
        clearTimeout(timer);
        const events = (left + decoder.decode(part, { stream: true })).split("\n\n");
        left = events.pop() ?? "";
        for (const event of events) yield fields(event);
        timer = watch();
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof RemoraError || error instanceof Later || error instanceof Lost) throw error;
      throw new Lost(words(error));
    } finally {
      clearTimeout(timer);
      silent.abort();
    }
  }

  async #send<Answer>(
    operation: Operation,
    names: Record<string, string>,
    given: object | undefined,
    key: string | undefined,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<Answer> {
    const path = filled(operation.path, names);
    const headers: Record<string, string> = { authorization: `Bearer ${this.#apiKey}` };
    if (key !== undefined) headers["idempotency-key"] = latin1(key);
    let url = this.url + path;
    let body: string | undefined;
    if (operation.query && given !== undefined) {
      url += `?${parameters(given)}`;
    } else if (given !== undefined) {
      headers["content-type"] = "application/json";
      body = JSON.stringify(given);
    }
    const limit = AbortSignal.timeout(Math.max(deadline - Date.now(), 1));
    const signals = signal === undefined ? limit : AbortSignal.any([signal, limit]);
    let answer: Response;
    let text: string;
    try {
      const init: RequestInit = { method: operation.method, headers, signal: signals };
      if (body !== undefined) init.body = body;
      answer = await this.#fetch(url, { ...init, redirect: "manual" });
      text = await answer.text();
    } catch (error) {
      signal?.throwIfAborted();
      throw new Lost(words(error));
    }
    if (answer.status !== 200) throw this.#refusal(answer, text);
    try {
      return JSON.parse(text) as Answer;
    } catch {
      throw new RemoraError("InvalidInput", 200, `${this.url} is no memory over HTTP`, false);
    }
  }

  #refusal(answer: Response, text: string): Error {
    const waitMs = Number(answer.headers.get("retry-after") ?? 1) * 1_000 || 1_000;
    if (answer.headers.get("content-type") !== "application/problem+json") {
      if ([408, 425, 502, 503, 504].includes(answer.status)) return new Lost(`status ${answer.status}`);
      const kind = answer.status === 429 ? "RateLimited" : "InvalidInput";
      const detail = `${this.url} is no memory over HTTP: status ${answer.status}`;
      const refusal = new RemoraError(kind, answer.status, detail, answer.status === 429);
      return answer.status === 429 ? new Later(refusal, waitMs) : refusal;
    }
    return this.#named(JSON.parse(text) as Problem, answer.status, waitMs);
  }

  #named(problem: Problem, status: number, waitMs: number): Error {
    if (PASSING.has(problem.title) || problem.title === "RequestTimeout") return new Lost(problem.detail);
    const { title, detail, retry, attributes } = problem;
    const refusal = new RemoraError(title, status, detail, retry, attributes);
    if (title === "RateLimited") return new Later(refusal, waitMs);
    return NO_OWNER.has(title) ? new Later(refusal, 0) : refusal;
  }
}

function filled(path: string, names: Record<string, string>): string {
  return path.replace(/{(\w+)}/g, (_, name: string) => segment(names[name] ?? ""));
}

/** An event's fields; the server writes each of them in one line. */
function fields(event: string): StreamEvent {
  const found: Record<string, string> = {};
  for (const line of event.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) found[line.slice(0, at)] = line.slice(at + 2);
  }
  const data: unknown = found.data === undefined ? null : JSON.parse(found.data);
  return { id: found.id ?? "", kind: found.event ?? "", data };
}

/** An id as a part of a path; `fetch` would resolve one or two dots, so an id must not be them. */
function segment(name: string): string {
  if (name === "." || name === "..") {
    throw new RemoraError("InvalidId", 0, `an id that is sent in a path must not be ${name}`, false);
  }
  return encodeURIComponent(name);
}

/** `fetch` takes headers of Latin-1: these are the bytes of UTF-8. */
function latin1(text: string): string {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

function parameters(given: object): string {
  const shown = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined && value !== null) shown.set(name, String(value));
  }
  return shown.toString();
}

/** Why there was no answer; `fetch` says it in the cause. */
function words(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error as { cause?: unknown };
  const why = cause instanceof Error ? cause.message || (cause as { code?: string }).code : "";
  return why ? `${error.message}: ${why}` : error.message;
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
