// Each compaction: the messages before, the summary after.

import { ask } from "./api.js";
import { counted, el, fill, number, seconds, section, stored } from "./dom.js";
import { cutNote, messageParts, summaryTitle } from "./message.js";

const MOVES = { dropped: "dropped without a summary", cleared: "cleared", restated: "the summary was replaced from outside" };
const PAGE = 100;
const FIRST = 20;

export class CompactionsPanel {
  constructor() {
    this.list = el("div", {});
    this.element = section("compactions", "Summaries", this.list);
    this.drawn = "";
    this.most = FIRST;
    this.more = el("button", { type: "button", onclick: () => { this.most = Infinity; this.draw(); } }, "all compactions");
  }

  /** Nothing is known of the session that is to be shown. */
  clear() {
    this.drawn = "";
    fill(this.list);
  }

  show(session) {
    const state = JSON.stringify([session.user, session.session, session.compactions.map((one) => [one.number, one.current, session.seconds[one.number]])]);
    if (state === this.drawn) return;
    this.drawn = state;
    if (this.session?.user !== session.user || this.session?.session !== session.session) this.most = FIRST;
    this.session = session;
    this.draw();
  }

  draw() {
    const { compactions } = this.session;
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((one) => one.dataset.number));
    fill(this.list, ...compactions.slice(0, this.most).map((one) => this.item(one, open.has(String(one.number)))),
      compactions.length > this.most ? this.more : null);
    if (!compactions.length) this.list.append(el("p", { class: "empty" }, "None yet: all messages are in the buffer. When it is full, the oldest of them are summarized."));
  }

  item(one, open) {
    const summary = one.summary;
    const replaced = one.current ? "" : " (replaced since)";
    if (one.kind in MOVES) {
      return el("p", {}, `up to message ${number(summary.through)}: ${MOVES[one.kind]}${replaced}`);
    }
    const before = el("div", { class: "before" });
    const details = el("details", { "data-number": one.number, class: summary.degraded ? "degraded" : "" },
      el("summary", {}, `at message ${number(one.at_seq)}: `, ...summaryTitle(summary),
        summary.input_tokens ? `, from ${counted(summary.input_tokens, "token")}` : "",
        one.number in this.session.seconds ? `, in ${seconds(this.session.seconds[one.number])}` : "", replaced),
      el("div", { class: "two" }, el("div", {}, el("h3", {}, "before"), before),
        el("div", {}, el("h3", {}, "after"), stored(summary.text, "pre", { class: "text" }),
          summary.lost.length ? el("p", { class: "failed" }, "in no summary: ",
            summary.lost.map((range) => `${counted(range.count, "message")} from ${number(range.first)} to ${number(range.last)}`).join(", ")) : "")));
    let filled = false;
    details.addEventListener("toggle", () => {
      if (details.open && !filled) {
        filled = true;
        this.fill(before, this.from(one), summary.through);
      }
    });
    details.open = open;
    return details;
  }

  /** The first message that this compaction added: behind the one before it. */
  from(one) {
    const earlier = this.session.compactions.filter((other) => other.number < one.number && other.current === one.current);
    const through = Math.max(0, ...earlier.map((other) => other.summary.through).filter((seq) => seq < one.summary.through));
    return Math.max(one.summary.first, through + 1);
  }

  async fill(before, first, through) {
    const last = Math.min(first + PAGE - 1, through);
    try {
      const found = await ask("messages", { user: this.session.user, session: this.session.session, first, last });
      before.append(...found.map((one) => el("div", {},
        el("p", { class: "quiet" }, `${number(one.seq)}, ${one.role}, ${counted(one.tokens, "token")}`), ...messageParts(one), cutNote(one))));
    } catch (e) {
      before.append(el("p", { class: "failed" }, stored(e.message)));
      return;
    }
    if (last < through) {
      const more = el("button", { type: "button", onclick: () => { more.remove(); this.fill(before, last + 1, through); } }, "more messages");
      before.append(more);
    }
  }
}
