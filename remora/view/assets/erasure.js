// Erasing a user or a session, and the receipt.

import { change } from "./api.js";
import { el, fill, moment, named, number, section, stored, table } from "./dom.js";

const NOUNS = {
  actors: "actors", messages: "messages", folds: "summaries", facets: "state items", memories: "memories",
  jobs: "jobs", "long-term": "rows of long-term memory",
};

export class ErasurePanel {
  /** Calls `told` with what is erased and how far it is: begun, failed, done. */
  constructor(told) {
    this.told = told;
    this.result = el("div", { role: "status", tabindex: -1 });
    this.buttons = el("div", { class: "actions" });
    this.element = section("erasure", "Erasure", el("p", { class: "quiet" }, "Removes messages, summaries and memories from all files. Backups and logs of yours stay."), this.buttons, this.result);
  }

  show(user, session) {
    const button = (label, chosen) => el("button", { type: "button", class: "danger", onclick: () => this.erase(user, chosen) }, label);
    fill(this.buttons, ...(user === null ? [] : [
      ...(session === null ? [] : [button("erase this session", session)]), button("erase this user", null)]));
  }

  async erase(user, session) {
    const what = session === null ? `the user ${user}` : `the session ${session} of ${user}`;
    if (!confirm(`Erase ${named(what)}, down to the bytes? Nothing can be restored.`)) return;
    fill(this.result, el("p", {}, "rewriting the files"));
    this.told(what, "begun");
    try {
      const receipt = await change("forget", { user, session });
      const rows = Object.entries({ ...receipt.journal, "long-term": receipt.long_term });
      fill(this.result,
        el("p", {}, stored(what), " is erased",
          receipt.erased_by ? [", and its bytes leave the files ", moment(receipt.erased_by)] : "", ". The receipt:"),
        table("Receipt of the erasure", ["what", "how many"], rows.map(([name, count]) =>
          el("tr", {}, el("th", { scope: "row" }, NOUNS[name] ?? name), el("td", { class: "figure" }, number(count))))));
      fill(this.buttons);
      this.told(what, "done");
      this.result.focus(); // the button that had it is gone
    } catch (e) {
      this.told(what, "failed");
      fill(this.result, el("p", { class: "failed" }, stored(e.message)));
    }
  }
}
