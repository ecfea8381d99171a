// Recall explained: hits, what each list gave, and why others would be left out.

import { ask } from "./api.js";
import { bar, counted, el, fill, moment, section, stored, table } from "./dom.js";
import { place } from "./people.js";

const LISTS = { turn: "turn: words", window: "window: words near it", vector: "vector: meaning", reranker: "reranker" };

export class RecallPanel {
  constructor() {
    this.user = null;
    this.question = el("input", { type: "search", id: "question", required: true, placeholder: "where do I live?" });
    this.limit = el("input", { type: "number", id: "limit", min: 1, max: 100, value: 10 });
    this.button = el("button", { type: "submit" }, "recall");
    this.result = el("div", { "aria-live": "polite" });
    this.element = section("recall", "Recall",
      el("p", { class: "quiet" }, "A search of what this user said in all sessions, as the application would make it, with the reasons for the order."),
      el("form", { class: "controls", onsubmit: (event) => this.ask(event) },
        el("label", { for: "question" }, "question"), this.question,
        el("label", { for: "limit" }, "how many"), this.limit, this.button),
      this.result);
  }

  show(user) {
    if (user === this.user) return;
    this.user = user;
    this.clear();
  }

  /** What was found may be erased by now. */
  clear() {
    fill(this.result);
  }

  async ask(event) {
    event.preventDefault();
    if (this.button.ariaDisabled === "true") return;
    this.button.ariaDisabled = "true"; // `disabled` would take the focus away
    try {
      const user = this.user;
      const found = await ask("recall", { user, question: this.question.value, limit: this.limit.value });
      if (user === this.user) this.draw(found);
    } catch (e) {
      fill(this.result, el("p", { class: "failed" }, stored(e.message)));
    } finally {
      this.button.ariaDisabled = "false";
    }
  }

  draw(found) {
    const best = Math.max(...found.hits.map((one) => one.score), 1e-9);
    const lists = Object.keys(LISTS).filter((name) => found.hits.some((one) => name in one.parts));
    const rows = found.hits.map((one) => el("tr", { class: one.reason ? "left-out" : "" },
      el("td", { class: "figure" }, one.rank),
      el("td", { class: "found" },
        el("p", { class: "quiet" }, stored(one.type === "message" ? one.speaker || one.role : one.type.replaceAll("_", " ")), ", ",
          one.session ? el("a", { href: place(this.user, one.session) }, stored(one.session), one.seq ? ` #${one.seq}` : "") : "recorded", ", ", moment(one.at)),
        stored(one.text, "pre", { class: "text" }), one.reason ? el("p", { class: "reason" }, one.reason) : null),
      el("td", {}, bar(one.score / best, one.score.toFixed(2), "score")),
      ...lists.map((name) => el("td", {}, name in one.parts ? bar(one.parts[name], one.parts[name].toFixed(2), name) : "not found"))));
    fill(this.result,
      el("p", {}, rows.length ? `${counted(found.hits.filter((one) => !one.reason).length, "memory", "memories")} of ${counted(rows.length, "candidate")}` : "nothing found",
        found.note ? el("span", { class: "failed" }, "; ", stored(found.note)) : ""),
      rows.length ? table("Recalled memories", ["rank", "memory", "score", ...lists.map((name) => LISTS[name])], rows) : "",
      el("p", { class: "quiet" }, "The score is no sum of the bars: the session, neighbours, speakers, days and importance count as well."));
  }
}
