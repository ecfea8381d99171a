// One message, and the summary that covers it.

import { ask, change } from "./api.js";
import { counted, el, fill, moment, number, stored } from "./dom.js";
import { stateOf } from "./strip.js";

export function summaryTitle(one) {
  const kind = one.degraded ? " (fallback: the model failed)" : one.model === "extractive" ? " (an extract, without a model)" : "";
  return [`messages ${number(one.first)} to ${number(one.through)}, ${counted(one.tokens, "token")}, by `, stored(one.model), kind];
}

export function messageText(one) {
  return [stored(one.text, "pre", { class: "text" }), one.cut ? el("p", { class: "quiet" }, "The rest is left out here.") : null];
}

export class MessagePanel {
  /** With `about.allow_changes`, a message can be deleted. */
  constructor(about) {
    this.about = about;
    this.element = el("div", { class: "message", "aria-live": "polite" }, el("p", { class: "quiet" }, "Choose a cell: click it, or use the arrow keys."));
    this.waiting = null;
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
    fill(this.element,
      el("h3", {}, `Message ${number(seq)}`),
      found
        ? el("p", { class: "quiet" }, stored(found.name ? `${found.role} ${found.name}` : found.role), `, ${counted(found.tokens, "token")}, `,
          moment(found.at), `, ${state}, ${indexed}, importance ${found.importance.toFixed(2)}`)
        : el("p", { class: "quiet" }, state === "removed" ? "It was deleted, or the session was rewound." : "It is not kept any more."),
      ...(found ? messageText(found) : []),
      found?.metadata ? stored(JSON.stringify(found.metadata, null, 1), "pre", { class: "text quiet" }) : "",
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
        fill(this.element, el("p", { role: "status" }, `Message ${number(seq)} is deleted. Its bytes leave the files within retention.deleted_s.`));
      } catch (e) {
        fill(told, el("span", { class: "failed" }, stored(e.message)));
      }
    };
    return el("div", { class: "controls" }, el("button", { type: "button", class: "danger", onclick: remove }, "delete this message"), told);
  }
}
