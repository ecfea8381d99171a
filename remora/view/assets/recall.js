// Recall explained: hits, what each list gave, and why others would be left out.

import { ask } from "./api.js";
import { bar, counted, el, fill, moment, section, stored } from "./dom.js";
import { place } from "./people.js";

const LISTS = { turn: "turn: words", window: "window: words near it", vector: "vector: meaning", reranker: "reranker" };

export class RecallPanel {
  /** Calls `inContext` with the question whose context is to be shown. */
  constructor(inContext) {
    this.user = null;
    this.question = el("input", { type: "search", id: "question", required: true, placeholder: "where do I live?" });
    this.limit = el("input", { type: "number", id: "limit", min: 1, max: 100, value: 10 });
    this.button = el("button", { type: "submit", class: "main" }, "recall");
    this.asked = "";
    this.context = el("button", { type: "button", class: "plain", onclick: () => inContext(this.asked) }, "show in the context");
    this.result = el("div", { "aria-live": "polite" });
    this.element = section("recall", "Recall",
      el("form", { class: "controls ask", onsubmit: (event) => this.ask(event) },
        el("div", { class: "field wide" }, el("label", { for: "question" }, "Question"), this.question),
        el("div", { class: "field small" }, el("label", { for: "limit" }, "How many"), this.limit), this.button),
      this.result);
    this.clear();
  }

  show(user, session) {
    this.context.hidden = session === null;
    if (user === this.user) return;
    this.user = user;
    this.clear();
  }

  /** What was found may be erased by now. */
  clear() {
    fill(this.result, el("p", { class: "empty" }, "Searches what this user said in all sessions, as your application would with recall(), and says why each memory has its place."));
  }

  async ask(event) {
    event.preventDefault();
    if (this.button.ariaDisabled === "true") return;
    this.button.ariaDisabled = "true"; // `disabled` would take the focus away
    this.result.setAttribute("aria-busy", "true");
    try {
      const { user } = this;
      const question = this.question.value;
      const found = await ask("recall", { user, question, limit: this.limit.value });
      this.asked = question;
      if (user === this.user) this.draw(found);
    } catch (e) {
      fill(this.result, el("p", { class: "failed callout" }, stored(e.message)));
    } finally {
      this.button.ariaDisabled = "false";
      this.result.removeAttribute("aria-busy");
    }
  }

  draw(found) {
    const best = Math.max(...found.hits.map((one) => one.score), 1e-9);
    const lists = Object.keys(LISTS).filter((name) => found.hits.some((one) => name in one.parts));
    const given = found.hits.filter((one) => !one.reason).length;
    const items = found.hits.map((one) => el("li", { class: one.reason ? "hit left-out" : "hit" },
      el("div", { class: "head" },
        el("span", { class: "rank" }, one.rank),
        el("span", { class: "role" }, stored(one.type === "message" ? one.speaker || one.role : one.type.replaceAll("_", " "))),
        one.session ? el("a", { href: one.seq ? place(this.user, one.session, one.seq) : place(this.user, one.session) }, stored(one.session), one.seq ? ` #${one.seq}` : "") : "recorded",
        el("span", { class: "quiet" }, moment(one.at), ", ", counted(one.tokens, "token"))),
      stored(one.text, "pre", { class: "text" }),
      one.reason ? el("p", { class: "reason" }, one.reason) : null,
      el("dl", { class: "scores" },
        el("div", {}, el("dt", {}, "score"), el("dd", {}, bar(one.score / best, one.score.toFixed(2), "score"))),
        lists.map((name) => el("div", {}, el("dt", {}, LISTS[name]), el("dd", {}, name in one.parts ? bar(one.parts[name], one.parts[name].toFixed(2)) : "not found"))))));
    fill(this.result,
      el("p", { class: "count" }, items.length ? `${counted(given, "memory", "memories")} of ${counted(items.length, "candidate")}` : "Nothing found. Messages are found when they are indexed: the strip shows how far that is.",
        found.note ? el("span", { class: "failed" }, stored(found.note)) : "", items.length ? this.context : ""),
      el("ol", { class: "hits" }, items),
      items.length ? el("p", { class: "quiet" }, "The score is no sum of the bars: the session, neighbours, speakers, days and importance count as well.") : null);
  }
}
