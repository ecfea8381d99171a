// What the model sees: the context by source, against the budget.

import { ask } from "./api.js";
import { counted, debounced, el, fill, number, section, stored, table } from "./dom.js";

const NAMES = { synopsis: "user profile", summary: "summary", long_term: "recalled", recent: "recent", working: "working memory" };

const PAGE = 100;

export class ContextPanel {
  constructor() {
    const load = debounced(() => this.load());
    this.budget = el("input", { type: "range", id: "budget", min: 0, step: 50, oninput: load });
    this.at = el("input", { type: "range", id: "at", min: 0, step: 1, oninput: load });
    this.budgetText = el("output", { for: "budget" });
    this.atText = el("output", { for: "at" });
    this.query = el("input", { type: "search", id: "query", placeholder: "recall nothing", oninput: debounced(() => this.load(), 500) });
    this.result = el("div", {});
    this.element = section("context", "What the model sees",
      el("p", { class: "quiet" }, "What the application would send to its model now, at most so many tokens: the summary of what was said before, recent messages, and memories of this user."),
      el("div", { class: "controls" },
        el("label", { for: "budget" }, "budget ", this.budgetText), this.budget,
        el("label", { for: "at" }, "as of message ", this.atText), this.at,
        el("label", { for: "query" }, "with memories for"), this.query),
      this.result);
    this.turn = 0;
    this.messages = null;
    this.most = PAGE;
    this.heading = el("summary", {});
    this.items = el("ol", { class: "messages" });
    this.more = el("button", { type: "button", onclick: () => { this.most += PAGE; this.list(); } }, "more messages");
    this.details = el("details", { ontoggle: () => this.toggle() }, this.heading, this.items, this.more);
  }

  show(session) {
    const other = this.session?.user !== session.user || this.session?.session !== session.session;
    const now = other || Number(this.at.value) === Number(this.at.max);
    this.session = session;
    this.at.max = String(session.last_seq);
    if (now) this.at.value = String(session.last_seq);
    if (other) {
      this.most = PAGE;
      this.budget.max = String(Math.max(session.token_limit * 2, 1000));
      this.budget.value = String(session.token_limit);
      this.query.value = "";
    }
    return this.load();
  }

  /** Nothing is known of the session that is to be shown. */
  clear() {
    this.session = null;
    this.messages = null;
    this.turn += 1;
    fill(this.result);
  }

  async load() {
    if (!this.session) return;
    const turn = (this.turn += 1);
    const at = Number(this.at.value);
    const now = at === this.session.last_seq;
    this.budgetText.textContent = counted(this.budget.value, "token");
    this.atText.textContent = now ? `${number(at)} (now)` : number(at);
    try {
      const found = await ask("context", {
        user: this.session.user, session: this.session.session, max_tokens: this.budget.value,
        at: now ? null : at, query: this.query.value.trim(), messages: this.details.open ? 1 : 0,
      });
      if (turn === this.turn) this.draw(found);
    } catch (e) {
      if (turn === this.turn) fill(this.result, el("p", { class: "failed" }, stored(e.message)));
    }
  }

  draw(found) {
    const whole = Math.max(found.budget, found.tokens, 1);
    const stack = el("div", { class: "stack", role: "img", "aria-label": this.describe(found) });
    for (const [name, tokens] of Object.entries(found.parts)) {
      const piece = el("span", { class: `part ${name}`, title: `${NAMES[name]}: ${counted(tokens, "token")}` });
      piece.style.width = `${(tokens / whole) * 100}%`;
      stack.append(piece);
    }
    const sources = Object.entries(found.sources).map(([name, one]) => el("tr", { class: one.status === "off" ? "quiet" : "" },
      el("th", { scope: "row" }, el("span", { class: `cell part ${name}`, "aria-hidden": "true" }), NAMES[name] ?? stored(name)),
      el("td", {}, one.status),
      el("td", { class: "figure" }, number(found.parts[name] ?? 0)),
      el("td", { class: "figure" }, number(one.count)),
      el("td", { class: "figure" }, one.omitted ? `${number(one.omitted)} (${counted(one.omitted_tokens, "token")})` : ""),
      el("td", {}, stored(one.detail))));
    fill(this.result,
      stack,
      el("p", { id: "context-size" }, this.describe(found)),
      table("Sources of the context", ["source", "status", "tokens", "gave", "left out", "why"], sources),
      el("p", { class: "quiet" }, "Memory blocks are the application's own code: this page does not show them."),
      this.details);
    this.messages = found.messages;
    fill(this.heading, counted(found.count, "message"));
    if (this.details.open && !this.messages) this.load();  // opened in the meantime
    else this.list();
  }

  /** Asks for the messages when they are looked at: a context may have thousands. */
  toggle() {
    if (!this.details.open) fill(this.items);
    else if (this.messages) this.list();
    else this.load();
  }

  list() {
    if (!this.details.open || !this.messages) return;
    const shown = this.messages.slice(0, this.most).map((one) => el("li", { class: `shown ${one.source}` },
      el("p", { class: "quiet" }, `${one.role}, ${NAMES[one.source]}${one.seq ? ` message ${number(one.seq)}` : ""}, ${counted(one.tokens + one.recalled, "token")}`,
        one.recalled ? `, ${number(one.recalled)} of them recalled` : ""),
      stored(one.text, "pre", { class: "text" }), one.cut ? el("p", { class: "quiet" }, "The rest is left out here.") : null));
    fill(this.items, shown);
    this.more.hidden = this.messages.length <= this.most;
  }

  describe(found) {
    const parts = Object.entries(found.parts).map(([name, tokens]) => `${NAMES[name]} ${number(tokens)}`);
    const left = found.omitted ? `; ${counted(found.omitted, "older message")} left out` : "";
    const waiting = found.awaiting.length ? `; ${counted(found.awaiting.length, "tool call")} without a result withheld` : "";
    const sum = parts.length > 0 ? ` = ${parts.join(" + ")}` : "";
    return `${number(found.tokens)} of ${counted(found.budget, "token")}${sum}${left}${waiting}`;
  }
}
