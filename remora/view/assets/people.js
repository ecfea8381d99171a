// Users, or the sessions of one, by last use, searched by how their ids begin.

import { ask } from "./api.js";
import { counted, debounced, el, fill, moment, renew, stored } from "./dom.js";

export const place = (user = null, session = null, seq = null) =>
  `#/${[user, session, seq].filter((one) => one !== null).map(encodeURIComponent).join("/")}`;

/** One list with its search field; `fetch` gets prefix and cursor, `row` makes an item. */
class Listing {
  constructor(label, id, fetch, row, empty) {
    this.fetch = fetch;
    this.row = row;
    this.empty = empty;
    this.clear();
    this.shown = 0;
    this.list = el("ul", { id, onkeydown: (event) => this.key(event) });
    this.more = el("button", { type: "button", class: "plain", hidden: true, onclick: () => this.append() }, "more");
    this.search = el("input", {
      type: "search", id: `${id}-search`, "aria-label": `${label} whose id begins with`, placeholder: `${label}: id begins with`,
      oninput: debounced(() => this.refresh()), onkeydown: (event) => this.key(event),
    });
    this.title = el("h2", {}, label);
    this.element = el("div", { class: "listing" }, this.title, el("div", { class: "search" }, this.search, el("kbd", { "aria-hidden": "true" }, "/")), this.list, this.more);
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
      this.rows.length ? null : el("li", { class: this.known ? "quiet" : "loading" },
        !this.known ? "Loading" : this.search.value ? "None begins like this; capitals count." : this.empty));
    this.more.hidden = !this.full;
    if (within && focused) {
      [...this.list.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
    }
  }

  key(event) {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const links = [...this.list.querySelectorAll("a")];
    const next = links.indexOf(document.activeElement) + move;
    (next < 0 ? this.search : links[Math.min(next, links.length - 1)])?.focus();
  }
}

export class People {
  constructor(element) {
    this.user = null;
    this.session = null;
    this.users = new Listing("Users", "users",
      (prefix, after) => ask("users", { prefix, after }),
      (one) => this.link(place(one.user), one.user, false, false, counted(one.sessions, "session"), one.last_at),
      "None yet.");
    this.sessions = new Listing("Sessions", "sessions",
      (prefix, after) => ask("sessions", { user: this.user, prefix, after }),
      (one) => this.link(place(this.user, one.session), one.session, one.session === this.session, one.live,
        (one.live ? "in memory, " : "") + counted(one.messages, "message"), one.last_at),
      "None: this user has memories only.");
    this.back = el("a", { href: place(), class: "back" }, "All users");
    fill(element, this.back, this.users.element, this.sessions.element);
    this.arrange();
  }

  link(href, id, current, live, figure, at) {
    return el("a", { href, "aria-current": current ? "true" : null, class: live ? "live" : null },
      stored(id), el("span", { class: "quiet" }, `${figure}, `, moment(at)));
  }

  arrange() {
    const all = this.user === null;
    this.back.hidden = all;
    this.users.element.hidden = !all;
    this.sessions.element.hidden = all;
  }

  /** Moves the focus to the search field. */
  search() {
    const { search } = this.user === null ? this.users : this.sessions;
    search.focus();
    search.select();
  }

  async show(user, session) {
    const other = user !== this.user;
    this.user = user;
    this.session = session;
    this.arrange();
    if (other) {
      this.sessions.search.value = "";
      this.sessions.clear();
      fill(this.sessions.title, user === null ? "" : el("a", { href: place(user) }, stored(user)));
    }
    this.sessions.draw();
    if (other && user !== null) await this.sessions.refresh();
  }

  async refresh() {
    await this.users.refresh();
    if (this.user !== null) await this.sessions.refresh();
  }
}
