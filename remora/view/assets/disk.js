// How much of the disk the memory takes, measured when somebody wants to know.

import { ask } from "./api.js";
import { bytes, counted, el, fill, moment, number, section, stored, table } from "./dom.js";
import { place } from "./people.js";

const POLL_MS = 500; // while a measurement runs

export class DiskPanel {
  constructor(attempt) {
    this.attempt = attempt;
    this.button = el("button", { type: "button", onclick: () => attempt(() => this.refresh(true)) }, "measure");
    this.said = el("p", { role: "status" });
    this.result = el("div", {});
    this.element = section("disk", "On disk", el("div", { class: "actions" }, this.button, this.said), this.result);
    this.timer = 0;
    this.shown = "";
  }

  async refresh(measure = false) {
    const found = await ask("disk", { measure: measure ? 1 : null });
    this.button.ariaDisabled = String(found.measuring !== null); // `disabled` would take the focus away
    clearTimeout(this.timer);
    if (found.measuring !== null) this.timer = setTimeout(() => this.attempt(() => this.refresh()), POLL_MS);
    fill(this.said, found.measuring !== null ? `measuring: ${counted(found.measuring, "row")} so far`
      : found.note ? stored(found.note) : found.at ? ["measured ", moment(found.at)]
        : "Not measured yet. It reads every row, in slices; the process that has the memory open goes on.");
    if (found.at === null || found.at === this.shown) return;
    this.shown = found.at;
    fill(this.result,
      table("Files and tables", ["file or table", "size"], found.files.map(([name, size]) => el("tr", {},
        el("th", { scope: "row" }, stored(name)), el("td", { class: "figure" }, bytes(size))))),
      table("Contents of the journal", ["what", "rows", "size of contents"], found.kinds.map((one) => el("tr", {},
        el("th", { scope: "row" }, one.kind), el("td", { class: "figure" }, number(one.rows)), el("td", { class: "figure" }, bytes(one.bytes))))),
      table("Users who take most", ["user", "rows", "size of contents", "indexed rows", "their share of the tables"], found.users.map((one) => el("tr", {},
        el("th", { scope: "row" }, el("a", { href: place(one.user) }, stored(one.user))),
        el("td", { class: "figure" }, number(one.rows)), el("td", { class: "figure" }, bytes(one.bytes)),
        [[one.long_term_rows, number], [one.long_term_bytes, bytes]].map(([value, show]) =>
          el("td", { class: "figure" }, value === null ? "unknown" : show(value)))))),
      found.all_users > found.users.length ? el("p", { class: "quiet" }, `The largest ${found.users.length} of ${counted(found.all_users, "user")}.`) : null);
  }
}
