// Background jobs, dead letters, and erasures.

import { ask, change } from "./api.js";
import { counted, el, moment, number, renew, section, stored, table } from "./dom.js";
import { place } from "./people.js";

const STATES = ["waiting", "running", "delayed", "dead"];

export class JobsPanel {
  /** Calls `told` with what is found. */
  constructor(about, told) {
    this.about = about;
    this.told = told;
    this.said = el("p", { role: "status" });
    this.list = el("div", {});
    this.element = section("jobs", "Background jobs", el("p", { class: "quiet" }, "Summaries and indexing, made after messages are stored. A dead letter failed too often, and is not tried again by itself; no message is lost by it."), this.said, this.list);
  }

  async refresh() {
    const found = await ask("jobs");
    this.told(found);
    const queues = Object.entries(found.queues).map(([name, states]) => el("tr", {},
      el("th", { scope: "row" }, name), STATES.map((state) =>
        el("td", { class: state === "dead" && states.dead ? "figure failed" : "figure" }, number(states[state])))));
    const jobs = found.jobs.map((one) => el("li", { "data-key": `${one.id} ${one.state}` },
      el("strong", {}, stored(one.id)), el("span", { class: `pill ${one.state}` }, one.state),
      el("a", { href: one.session ? place(one.user, one.session) : place(one.user) },
        stored(one.user), one.session ? [" / ", stored(one.session)] : ""),
      el("span", { class: "quiet" }, one.attempts ? counted(one.attempts, "failure") : "",
        one.next_try ? [", again ", moment(one.next_try)] : one.last_try ? [", tried ", moment(one.last_try)] : ""),
      this.about.allow_changes && one.state === "dead" ? el("span", { class: "buttons" },
        el("button", { type: "button", onclick: () => this.act("retry", one.id), "aria-label": `retry ${one.id}` }, "retry"),
        el("button", { type: "button", onclick: () => this.act("drop", one.id), "aria-label": `drop ${one.id}` }, "drop")) : null,
      one.error ? el("span", { class: "why" }, stored(one.error)) : null));
    renew(this.list,
      queues.length ? table("Jobs by queue", ["queue", ...STATES], queues) : el("p", { class: "empty" }, "No background jobs wait, and there are no dead letters."),
      jobs.length ? el("ul", { class: "jobs", "aria-label": "Jobs" }, jobs) : "",
      ...(found.erasures.length ? [el("h3", {}, "Erasures that wait for files to be rewritten"),
        table("Erasures", ["erasure", "whose, as a digest", "failures", "last failure"], found.erasures.map((one) => el("tr", {},
          el("th", { scope: "row" }, one.id), el("td", {}, stored(one.user)), el("td", { class: "figure" }, number(one.attempts)),
          el("td", { class: "why" }, stored(one.error)))))] : []));
  }

  async act(verb, id) {
    const sure = verb === "drop" ? `Drop ${id} permanently? No message is lost, but its work is never done.` : `Run ${id} again?`;
    if (!confirm(sure)) return;
    let said;
    let failed = false;
    try {
      const { changed, open } = await change(`jobs/${verb}`, { ids: [id] });
      said = verb === "drop" ? `${counted(changed, "dead letter")} dropped` : `${counted(changed, "dead letter")} ${open ? "put back into its queue" : "will run again when a server opens the memory"}`;
    } catch (e) {
      said = e.message;
      failed = true;
    }
    try {
      await this.refresh(); // before it is said: what the list still shows can no longer be changed
    } finally {
      this.said.textContent = said;
      this.said.className = failed ? "failed" : "";
    }
  }
}
