// Users and sessions, by last use, searched by how their ids begin.

import { ask } from "./api.js";
import { counted, debounced, el, fill, moment, renew, stored } from "./dom.js";

export const place = (user = null, session = null) =>
  `#/${[user, session].filter((one) => one !== null).map(encodeURIComponent).join("/")}`;

/** One list with its search field; `fetch` gets prefix and cursor, `row` makes an item. */
class Listing {
  constructor(label, id, fetch, row) {
    this.fetch = fetch;
    this.row = row;
    this.clear();
    this.shown = 0;
    this.list = el("ul", { id });
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.append() }, "more");
    this.search = el("input", {
      type: "search", id: `${id}-search`, "aria-label": `${label} whose id begins with`, placeholder: "id begins with",
      oninput: debounced(() => this.refresh()),
    });
    this.element = el("div", { class: "listing" }, el("h2", {}, label), this.search, this.list, this.more);
  }

  /** Nothing is known yet. */
  clear() {
    this.rows = [];
    this.known = false;
  }

  async refresh() {
    const turn = (this.shown += 1);
    const wanted = Math.max(this.rows.length, 1);
    let rows = [];
    do {
      const page = await this.fetch(this.search.value, rows.at(-1)?.cursor);
      if (turn !== this.shown) return;
      rows = [...rows, ...page];
      this.full = page.length === 100;
    } while (this.full && rows.length < wanted);
    this.rows = rows;
    this.known = true;
    this.draw();
  }

  async append() {
    const turn = (this.shown += 1);
    const page = await this.fetch(this.search.value, this.rows.at(-1)?.cursor);
    if (turn !== this.shown) return;
    this.full = page.length === 100;
    this.rows = [...this.rows, ...page];
    this.draw();
  }

  draw() {
    const focused = document.activeElement?.getAttribute?.("href");
    const within = this.list.contains(document.activeElement);
    renew(this.list, this.rows.map((one) => el("li", { "data-key": one.cursor.replace(/^-?\d+\//, "") }, this.row(one))),
      this.known && !this.rows.length ? el("li", { class: "quiet" }, this.search.value ? "None begins like this; capitals count." : "None yet.") : null);
    this.more.hidden = !this.full;
    if (within && focused) {
      [...this.list.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
    }
  }
}

export class People {
  constructor(element) {
    this.user = null;
    this.session = null;
    this.users = new Listing("Users", "users",
      (prefix, after) => ask("users", { prefix, after }),
      (one) => this.link(place(one.user), one.user, one.user === this.user,
        counted(one.sessions, "session"), one.last_at));
    this.sessions = new Listing("Sessions", "sessions",
      (prefix, after) => ask("sessions", { user: this.user, prefix, after }),
      (one) => this.link(place(this.user, one.session), one.session, one.session === this.session,
        (one.live ? "in memory, " : "") + counted(one.messages, "message"), one.last_at));
    this.sessions.element.hidden = true;
    fill(element, this.users.element, this.sessions.element);
  }

  link(href, id, current, figure, at) {
    return el("a", { href, "aria-current": current ? "true" : null },
      stored(id), el("span", { class: "quiet" }, `${figure}, `, moment(at)));
  }

  async show(user, session) {
    const other = user !== this.user;
    this.user = user;
    this.session = session;
    this.users.draw();
    this.sessions.element.hidden = user === null;
    if (other) {
      this.sessions.search.value = "";
      this.sessions.clear();
    }
    this.sessions.draw();
    if (other && user !== null) await this.sessions.refresh();
  }

  async refresh() {
    await this.users.refresh();
    if (this.user !== null) await this.sessions.refresh();
  }
}
