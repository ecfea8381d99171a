/** A turn: one request of the user, from their message to the reply. */

import type { Client, ChatMessage, ContextShown, Message, TurnAsked, TurnShown } from "./remora.ts";
import { RemoraError, type CallOptions } from "./service.ts";

/** Begin one with `Turn.begin`; its requests have one idempotency key. */
export class Turn {
  readonly key: string;
  /** Whether this request was answered before: `replies` has the answer. */
  readonly replayed: boolean;
  /** What is stored of the turn after the user's messages. */
  replies: Message[];
  readonly #client: Client;
  readonly #context: ContextShown | null;
  readonly #names: { user: string; session: string };
  readonly #message: TurnAsked["message"];
  #last: Promise<unknown> = Promise.resolve();

  private constructor(
    client: Client,
    names: { user: string; session: string },
    message: TurnAsked["message"],
    key: string,
    begun: TurnShown,
  ) {
    this.#client = client;
    this.#names = names;
    this.#message = message;
    this.key = key;
    this.replayed = begun.answered;
    this.#context = begun.context;
    this.replies = begun.replies;
  }

  /** What the model should see. A turn that was answered before has none: this throws. */
  get context(): ContextShown {
    if (this.#context === null) {
      throw new RemoraError("TurnClosed", 0, "the turn was answered before: see its replies", false);
    }
    return this.#context;
  }

  /** Stores the user's message and loads the context; without a key, it makes one of its own. */
  static async begin(
    client: Client,
    names: { user: string; session: string },
    asked: TurnAsked | string,
    options: CallOptions = {},
  ): Promise<Turn> {
    const given = typeof asked === "string" ? { message: asked } : asked;
    const key = options.key ?? crypto.randomUUID();
    const begun = await client.beginTurn(names, given, { ...options, key });
    return new Turn(client, names, given.message, key, begun);
  }

  /** Stores what the assistant says, calls, or is told by tools. Calls are stored in their order. */
  reply(messages: string | ChatMessage | ChatMessage[], options: CallOptions = {}): Promise<void> {
    const stored = this.#last.then(async () => {
      const given = { message: this.#message, reply: messages, stored: this.replies.length };
      const answer = await this.#client.replyToTurn(this.#names, given, { ...options, key: this.key });
      this.replies = answer.replies;
    });
    this.#last = stored.catch(() => undefined);
    return stored;
  }
}
