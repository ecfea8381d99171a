// What the model sees: the context in its order and by source, against the budget.

import { ask } from "./api.js";
import { counted, debounced, el, fill, number, section, stored } from "./dom.js";
import { place } from "./people.js";
import { stateOf } from "./strip.js";

export const NAMES = {
  instructions: "instructions", synopsis: "user profile", summary: "summary", recent: "recent",
  working: "working memory", long_term: "recalled",
};
const PAGE = 50;
const LONG = 320; // characters of a text that is folded

export class ContextPanel {
  /** Calls `told` with the runs of numbers of the messages that are in the context now; null if that is not known. */
  constructor(told) {
    this.told = told;
    const load = debounced(() => this.load());
    this.budget = el("input", { type: "range", id: "budget", min: 0, step: 50, oninput: load });
    this.at = el("input", { type: "range", id: "at", min: 0, step: 1, oninput: load });
    this.budgetText = el("output", { for: "budget" });
    this.atText = el("output", { for: "at" });
    this.query = el("input", { type: "search", id: "query", placeholder: "What would the user ask? Empty: nothing is recalled", oninput: debounced(() => this.load(), 500) });
    this.result = el("div", { class: "result" });
    this.element = section("context", "What the model sees",
      el("div", { class: "controls" },
        el("div", { class: "field wide" }, el("label", { for: "query" }, "With memories for"), this.query),
        el("div", { class: "field" }, el("span", { class: "over" }, el("label", { for: "budget" }, "Budget"), this.budgetText), this.budget),
        el("div", { class: "field" }, el("span", { class: "over" }, el("label", { for: "at" }, "As of message"), this.atText), this.at)),
      this.result);
    this.turn = 0;
    this.items = el("ol", { class: "messages" });
    this.more = el("button", { type: "button", onclick: () => { this.most += PAGE; this.load(); } }, "more messages");
    this.clear();
  }

  show(session) {
    const other = this.session?.user !== session.user || this.session?.session !== session.session;
    const now = other || Number(this.at.value) === Number(this.at.max);
    this.session = session;
    this.at.max = String(session.last_seq);
    if (now) this.at.value = String(session.last_seq);
    if (other) {
      this.budget.max = String(Math.max(session.token_limit * 2, 1000));
      this.budget.value = String(session.token_limit);
      this.query.value = "";
    }
    return this.load();
  }

  /** Shows the context for another question. */
  ask(question) {
    this.query.value = question;
    return this.load();
  }

  /** Nothing is known of the session that is to be shown. */
  clear() {
    this.session = null;
    this.found = null;
    this.opened = new Set();
    this.most = PAGE;
    this.turn += 1;
    fill(this.result, el("p", { class: "loading" }, "Building the context"));
  }

  async load() {
    if (!this.session) return;
    const turn = (this.turn += 1);
    const at = Number(this.at.value);
    const now = at === this.session.last_seq;
    this.budgetText.textContent = counted(this.budget.value, "token");
    this.atText.textContent = now ? `${number(at)} (now)` : number(at);
    this.element.setAttribute("aria-busy", "true");
    try {
      const found = await ask("context", {
        user: this.session.user, session: this.session.session, max_tokens: this.budget.value,
        at: now ? null : at, query: this.query.value.trim(), messages: this.element.hidden ? 0 : this.most,
      });
      if (turn === this.turn) this.draw(found);
    } catch (e) {
      if (turn === this.turn) fill(this.result, el("p", { class: "failed callout" }, stored(e.message)));
    } finally {
      if (turn === this.turn) this.element.removeAttribute("aria-busy");
    }
  }

  draw(found) {
    this.found = found;
    // those of an earlier context say nothing of the conversation now
    this.told(found.at === null ? found.shown : null);
    const parts = this.parts();
    const whole = Math.max(found.budget, found.tokens, 1);
    const stack = el("div", { class: "stack", role: "img", "aria-label": this.describe(parts) });
    for (const [name, tokens] of parts) {
      const piece = el("span", { class: `part ${name}`, title: `${NAMES[name]}: ${counted(tokens, "token")}` });
      piece.style.width = `${(tokens / whole) * 100}%`;
      stack.append(piece);
    }
    const sources = Object.keys(NAMES).filter((name) => name in found.sources).map((name) => [name, found.sources[name]]);
    const used = ([name, one]) => !["off", "ok"].includes(one.status) || name in found.parts;
    const off = sources.filter((one) => !used(one));
    const unfolded = this.result.querySelector(".off")?.open;
    fill(this.result,
      el("p", { id: "context-size" }, el("strong", {}, number(found.tokens)), this.describe(parts).slice(number(found.tokens).length)),
      stack,
      el("ul", { class: "sources", "aria-label": "Sources of the context" }, sources.filter(used).map((one) => this.source(one))),
      off.length ? el("details", { class: "off", open: unfolded }, el("summary", {}, `Without ${off.map(([name]) => NAMES[name]).join(", ")}`),
        el("ul", { class: "sources" }, off.map((one) => this.source(one)))) : null,
      el("h3", { class: "order" }, `In this order: ${counted(found.count, "message")}`),
      found.count ? null : el("p", { class: "empty" }, "Nothing: the session has no messages yet, or the budget is too small for the newest."),
      this.items, this.more,
      el("p", { class: "quiet" }, "Memory blocks are the application's own code: this page does not show them."));
    this.list();
  }

  /** Sources with their tokens, in the order of the context. */
  parts() {
    return Object.keys(NAMES).filter((name) => this.found.parts[name]).map((name) => [name, this.found.parts[name]]);
  }

  source([name, one]) {
    const facts = [
      one.count ? `gave ${number(one.count)}` : "", one.shortened ? `${number(one.shortened)} shortened` : "",
      one.omitted ? `${number(one.omitted)} left out (${counted(one.omitted_tokens, "token")})` : "",
    ].filter(Boolean).join(", ");
    return el("li", {},
      el("span", { class: `dot part ${name}`, "aria-hidden": "true" }), el("strong", {}, NAMES[name]),
      el("span", { class: `pill ${one.status}` }, one.status),
      el("span", { class: "facts" }, facts),
      el("span", { class: "figure" }, name in this.found.parts ? number(this.found.parts[name]) : "0"),
      one.detail ? el("span", { class: "why" }, stored(one.detail)) : null);
  }

  list() {
    const { messages } = this.found;
    const nodes = [];
    let last = 0;
    for (const [at, one] of messages.entries()) {
      if (one.seq > last + 1) nodes.push(...this.gaps(last + 1, one.seq - 1));
      if (one.seq) last = one.seq;
      nodes.push(this.item(one, at));
    }
    fill(this.items, nodes);
    this.more.hidden = this.found.count <= messages.length;
  }

  /** Says why messages between two others are missing: those of each state by themselves. */
  gaps(first, last) {
    const { trimmed, watermarks } = this.session;
    const ends = [trimmed, watermarks.archived_through, last].map((one) => Math.min(one, last));
    return ends.flatMap((end) => {
      if (end < first) return [];
      const from = first;
      first = end + 1;
      return [this.gap(from, end)];
    });
  }

  gap(first, last) {
    const state = first === last ? stateOf(this.session, last) : last <= this.session.trimmed ? "trimmed" : last <= this.session.watermarks.archived_through ? "archived" : "buffer";
    const why = { archived: this.found.sources.summary.count ? "in the summary" : "archived", trimmed: "no longer kept", removed: "deleted or rewound" }[state] ?? "left out";
    return el("li", { class: "gap" }, el("a", { href: place(this.session.user, this.session.session, last) },
      first === last ? `message ${number(first)}` : `messages ${number(first)} to ${number(last)}`), `: ${why}`);
  }

  item(one, at) {
    const key = one.seq || `${one.source} ${at}`;
    const text = stored(one.text, "pre", { class: "text" });
    const long = one.text.length > LONG || one.text.split("\n").length > 6;
    const open = this.opened.has(key);
    const more = !long ? null : el("button", {
      type: "button", class: "plain", "aria-expanded": String(open), onclick: () => {
        if (!this.opened.delete(key)) this.opened.add(key);
        text.classList.toggle("clamp", !this.opened.has(key));
        more.textContent = this.opened.has(key) ? "less" : "more";
        more.setAttribute("aria-expanded", String(this.opened.has(key)));
      },
    }, open ? "less" : "more");
    text.classList.toggle("clamp", long && !open);
    return el("li", { class: `shown ${one.source}` },
      el("div", { class: "head" },
        el("span", { class: `dot part ${one.source}`, "aria-hidden": "true" }),
        el("span", { class: "role" }, one.role), " ", el("span", { class: "quiet" }, NAMES[one.source]),
        one.seq ? el("a", { href: place(this.session.user, this.session.session, one.seq) }, `#${number(one.seq)}`) : null,
        one.shortened ? el("span", { class: "pill omitted" }, `shortened by ${counted(one.shortened, "token")}`) : null,
        one.recalled ? el("span", { class: "pill" }, `${number(one.recalled)} recalled`) : null,
        el("span", { class: "figure" }, counted(one.tokens + one.recalled, "token"))),
      text, more, one.cut && (open || !long) ? el("p", { class: "quiet" }, "The rest is left out here.") : null);
  }

  describe(parts) {
    const { found } = this;
    const left = found.omitted ? `; ${counted(found.omitted, "older message")} left out` : "";
    const waiting = found.awaiting.length ? `; ${counted(found.awaiting.length, "tool call")} without a result withheld` : "";
    const sum = parts.length > 0 ? ` = ${parts.map(([name, tokens]) => `${NAMES[name]} ${number(tokens)}`).join(" + ")}` : "";
    return `${number(found.tokens)} of ${counted(found.budget, "token")}${sum}${left}${waiting}`;
  }
}
