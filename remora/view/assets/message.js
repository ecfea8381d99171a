// One message, and the summary that covers it.

import { ask, change } from "./api.js";
import { counted, el, fill, moment, number, section, stored } from "./dom.js";
import { stateOf } from "./strip.js";

export function summaryTitle(one) {
  const kind = one.degraded ? " (fallback: the model failed)" : one.model === "extractive" ? " (an extract, without a model)" : "";
  return [`messages ${number(one.first)} to ${number(one.through)}, ${counted(one.tokens, "token")}, by `, stored(one.model), kind];
}

/** Arguments of a tool as people read them: JSON with one value a line; any other text as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Something long behind one line. */
export function folded(kind, title, text) {
  const line = text.replace(/\s+/g, " ").slice(0, 200);
  return el("details", { class: kind }, el("summary", {}, el("span", { class: "what" }, title), " ", stored(line, "bdi", { class: "line" })),
    stored(pretty(text), "pre", { class: "code", tabindex: 0 }));
}

/** What a message says, its attachments and the tools that it calls. */
export function messageParts(one) {
  return [
    one.text ? stored(one.text, "pre", { class: "text" }) : null,
    one.attachments.length ? el("ul", { class: "chips", "aria-label": "Attachments" }, one.attachments.map((each) => el("li", {}, stored(each)))) : null,
    ...one.calls.map((each) => folded("call", ["calls ", stored(each.name, "bdi", { class: "called" })], each.arguments)),
  ];
}

export const cutNote = (one) => (one.cut ? el("p", { class: "quiet" }, "The rest is left out here.") : null);

export class MessagePanel {
  /** With `about.allow_changes`, a message can be deleted. */
  constructor(about) {
    this.about = about;
    this.body = el("div", { class: "message", "aria-live": "polite" });
    this.element = section("message", "Message", this.body);
    this.waiting = null;
    this.clear();
  }

  clear() {
    this.waiting?.abort();
    fill(this.body, el("p", { class: "empty" }, "Choose a message: click its number or its cell in the strip, or use the arrow keys there."));
  }

  async show(session, seq) {
    this.waiting?.abort();
    this.waiting = new AbortController();
    let found;
    try {
      [found] = await ask("messages", { user: session.user, session: session.session, first: seq, last: seq }, this.waiting.signal);
    } catch (e) {
      if (e.name === "AbortError") return;
      throw e;
    }
    const state = stateOf(session, seq);
    const summary = [session.summary, ...session.summaries].find((one) => one && one.first <= seq && seq <= one.through);
    const indexed = seq <= session.watermarks.indexing_through ? "indexed, or being indexed" : "not indexed yet";
    fill(this.body,
      el("h3", {}, `Message ${number(seq)}`),
      found
        ? el("p", { class: "quiet" }, stored(found.name ? `${found.role} ${found.name}` : found.role), `, ${counted(found.tokens, "token")}, `,
          moment(found.at), `, ${state}, ${indexed}, importance ${found.importance.toFixed(2)}`)
        : el("p", { class: "quiet" }, state === "removed" ? "It was deleted, or the session was rewound." : "It is not kept any more."),
      ...(found ? [...messageParts(found), cutNote(found)] : []),
      found?.answers ? el("p", { class: "quiet" }, "The result of the call ", stored(found.answers), ".") : null,
      found?.metadata ? [el("h3", {}, "Metadata"), stored(JSON.stringify(found.metadata, null, 1), "pre", { class: "code", tabindex: 0 })] : null,
      ...(summary && state === "archived"
        ? [el("h3", {}, "The summary that covers it"), el("p", { class: "quiet" }, summaryTitle(summary)), stored(summary.text, "pre", { class: "text" })]
        : []),
      found && this.about.allow_changes ? this.deletion(session, seq, found.id) : "");
  }

  deletion(session, seq, id) {
    const told = el("p", { role: "status" });
    const remove = async () => {
      if (!confirm(`Delete message ${seq}? Nothing can be restored.`)) return;
      try {
        await change("delete", { user: session.user, session: session.session, ids: [id] });
        fill(this.body, el("p", { role: "status" }, `Message ${number(seq)} is deleted. Its bytes leave the files within retention.deleted_s.`));
      } catch (e) {
        fill(told, el("span", { class: "failed" }, stored(e.message)));
      }
    };
    return el("div", { class: "actions" }, el("button", { type: "button", class: "danger", onclick: remove }, "delete this message"), told);
  }
}
