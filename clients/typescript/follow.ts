/** A session's messages, as they become durable. */

import type { Client, Followed, Message } from "./remora.ts";

const PATH = "/v1/users/{user}/sessions/{session}/events";

/**
 * Iterates over the messages with numbers after `given.after`, those to come included; without it,
 * over those that come from now on. It goes on over connections that are lost, and ends when the
 * session is erased; `signal` ends it with an exception, `break` without one.
 */
export async function* follow(
  client: Client,
  names: { user: string; session: string },
  given: Pick<Followed, "after"> = {},
  options: { signal?: AbortSignal } = {},
): AsyncGenerator<Message, void> {
  for await (const event of client.events(PATH, names, given, options.signal)) {
    if (event.kind === "erased") return;
    if (event.kind === "message") yield event.data as Message;
  }
}
