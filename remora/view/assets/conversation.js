// The messages of a session as a conversation: some of them at a time, and more as it is scrolled.

import { ask } from "./api.js";
import { counted, el, fill, moment, number, section, settle, stored } from "./dom.js";
import { folded, messageParts, summaryTitle } from "./message.js";
import { stateOf } from "./strip.js";

const PAGE = 40;
const MOST = 200; // messages that are in the page at once
const NEAR = 600; // pixels to the end of what is there, at which more is fetched
const SUMMARIES = new Set(["summary", "entry"]);

export class Conversation {
  /** Calls `chosen` with the number of a message, `failed` with an error. */
  constructor(chosen, failed) {
    this.chosen = chosen;
    this.failed = failed;
    this.list = el("ol", { class: "turns" });
    this.scroller = el("div", {
      class: "scroller", tabindex: "0", role: "group", "aria-label": "Messages, the oldest first",
      onscroll: () => this.fetchMore(), onkeydown: (event) => this.key(event),
    }, this.list);
    this.element = section("conversation", "Conversation", this.scroller);
    this.turn = 0;
    this.clear();
  }

  /** Nothing is known of the session that is to be shown. */
  clear() {
    this.turn += 1;
    this.session = null;
    this.seen = null;
    this.seq = 0;
    this.busy = false;
    this.forget();
    fill(this.list, el("li", { class: "loading" }, "Loading messages"));
  }

  forget() {
    this.items = new Map(); // by number; null where there is no message any more
    this.marks = new Map();
    this.first = 0;
    this.last = 0;
  }

  async show(session) {
    const before = this.session;
    const atEnd = !before || this.isAtEnd();
    this.session = session;
    if (before && JSON.stringify([before.removed, before.trimmed]) !== JSON.stringify([session.removed, session.trimmed])) {
      for (const seq of this.items.keys()) if (["removed", "trimmed"].includes(stateOf(session, seq))) this.items.set(seq, null);
    }
    if (!session.last_seq) fill(this.list, el("li", { class: "empty" }, "No messages yet. They appear here as soon as your server appends one."));
    else if (!this.last) await this.open(this.seq || session.last_seq);
    else {
      this.draw();
      if (atEnd && session.last_seq > this.last) {
        await this.fetch(this.last + 1, Math.min(session.last_seq, this.last + PAGE));
        if (this.last === session.last_seq) this.scroller.scrollTop = this.scroller.scrollHeight;
      }
    }
  }

  /** Marks the messages that a model could see, and are not in the context beside it; null if there is none. */
  note(seen) {
    this.seen = seen;
    if (this.session && this.last) this.draw();
  }

  isAtEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    return this.last === this.session?.last_seq && scrollTop + clientHeight >= scrollHeight - 20;
  }

  /** Fetches the messages around one, and shows it. */
  async open(seq) {
    const { last_seq: last } = this.session;
    const first = Math.max(1, Math.min(seq - PAGE / 2, last - PAGE + 1));
    this.turn += 1;
    this.busy = false;
    this.forget();
    await this.fetch(first, Math.min(last, first + PAGE - 1));
    this.reveal(seq, seq === last && !this.seq);
  }

  /** Shows a message, and marks it as the chosen one. */
  async choose(seq) {
    this.seq = seq;
    if (!this.session) return;
    if (seq < this.first || seq > this.last) await this.open(seq);
    else this.reveal(seq, false);
  }

  reveal(seq, atEnd) {
    this.draw();
    if (atEnd) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      return;
    }
    const item = this.items.get(seq);
    if (!item) return;
    const box = item.getBoundingClientRect();
    const room = this.scroller.getBoundingClientRect();
    if (box.top < room.top + 8 || box.bottom > room.bottom - 8) this.scroller.scrollTop += box.top - room.top - Math.max(24, (room.height - box.height) / 3);
  }

  fetchMore() {
    if (this.busy || !this.last || !this.scroller.clientHeight) return;
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    if (this.first > this.session.trimmed + 1 && scrollTop < NEAR) this.fetch(Math.max(this.session.trimmed + 1, this.first - PAGE), this.first - 1);
    else if (this.last < this.session.last_seq && scrollTop + clientHeight > scrollHeight - NEAR) this.fetch(this.last + 1, Math.min(this.session.last_seq, this.last + PAGE));
  }

  async fetch(first, last) {
    const { turn, session } = this;
    this.busy = true;
    try {
      const found = await ask("messages", { user: session.user, session: session.session, first, last });
      if (turn !== this.turn) return;
      for (let seq = first; seq <= last; seq += 1) this.items.set(seq, null);
      for (const one of found) this.items.set(one.seq, this.item(one));
    } catch (e) {
      if (turn === this.turn) {
        this.busy = false;
        this.failed(e);
      }
      return;
    }
    const earlier = this.last && last < this.first;
    this.first = this.first ? Math.min(this.first, first) : first;
    this.last = Math.max(this.last, last);
    this.limit(earlier);
    // what is in view stays where it is
    const anchor = [...this.list.children].find((one) => one.getBoundingClientRect().bottom > this.scroller.getBoundingClientRect().top);
    const top = anchor?.getBoundingClientRect().top;
    this.draw();
    if (anchor?.isConnected) this.scroller.scrollTop += anchor.getBoundingClientRect().top - top;
    this.busy = false;
    this.fetchMore();
  }

  /** Leaves out messages at the other end than the one that has grown. */
  limit(earlier) {
    while (this.last - this.first >= MOST) {
      const gone = earlier ? this.last : this.first;
      this.items.delete(gone);
      if (earlier) this.last -= 1;
      else this.first += 1;
    }
  }

  draw() {
    const { session } = this;
    const nodes = [];
    const { archived_through: archived, summarizing_through: summarizing } = session.watermarks;
    const summaries = new Map();
    for (const one of session.compactions) { // the newest first
      if (one.current && SUMMARIES.has(one.kind) && one.summary.text && !summaries.has(one.summary.through)) summaries.set(one.summary.through, one);
    }
    const shown = session.compactions.find((one) => one.current && SUMMARIES.has(one.kind));
    if (this.first === 1) nodes.push(this.mark("begin", "", () => "Beginning of the session"));
    else if (this.first === session.trimmed + 1) nodes.push(this.mark("begin", session.trimmed, () => `Messages 1 to ${number(session.trimmed)} are no longer kept`));
    let gone = 0;
    const tellGone = (seq) => {
      if (gone) nodes.push(this.mark(`gone ${seq}`, gone, () => `${counted(gone, "message")} deleted or rewound`));
      gone = 0;
    };
    for (let seq = this.first; seq <= this.last; seq += 1) {
      if (summarizing > archived && seq === archived + 1) nodes.push(this.mark("summarizing", "", () => "Being summarized now"));
      if (archived && seq === Math.max(archived, summarizing) + 1) nodes.push(this.mark("buffer", "", () => "In the buffer from here: the model sees these as they are, if they fit"));
      const item = this.items.get(seq);
      if (!item) gone += 1;
      else {
        tellGone(seq);
        const state = stateOf(session, seq);
        if (item.dataset.state !== state) item.dataset.state = state;
        if (item.hasAttribute("aria-current") !== (seq === this.seq)) item.toggleAttribute("aria-current", seq === this.seq);
        const without = this.seen !== null && seq > archived && !this.seen.some(([first, end]) => first <= seq && seq <= end);
        item.querySelector(".omitted").hidden = !without;
        nodes.push(item);
      }
      const compaction = summaries.get(seq);
      if (compaction) {
        tellGone(seq);
        nodes.push(this.summary(compaction, compaction === shown));
      }
    }
    tellGone(this.last);
    settle(this.list, nodes);
  }

  mark(key, state, text) {
    const known = this.marks.get(key);
    if (known?.state === state) return known.item;
    const item = el("li", { class: `mark ${key.split(" ")[0]}` }, el("span", {}, text()));
    this.marks.set(key, { state, item });
    return item;
  }

  summary(one, newest) {
    const key = `summary ${one.number}`;
    const known = this.marks.get(key);
    if (known?.state === newest) return known.item;
    const { summary } = one;
    const item = el("li", { class: summary.degraded ? "summary degraded" : "summary" },
      el("details", { open: newest },
        el("summary", {}, el("strong", {}, newest ? "Summary that the model sees" : "Earlier summary"), " of ", ...summaryTitle(summary)),
        stored(summary.text, "pre", { class: "text" })));
    this.marks.set(key, { state: newest, item });
    return item;
  }

  item(one) {
    const body = el("div", { class: "body" });
    const parts = one.answers
      ? [folded("call result", "result", one.text || "empty"), ...messageParts({ ...one, text: "" })]
      : messageParts(one);
    const more = one.cut ? el("button", { type: "button", class: "plain", onclick: () => this.expand(one, body) }, "Show all of it") : null;
    fill(body, parts, more);
    return el("li", { class: `turn ${one.role}`, "data-seq": one.seq },
      el("div", { class: "head" },
        el("span", { class: "role" }, stored(one.name ? `${one.role} ${one.name}` : one.role)),
        el("button", { type: "button", class: "plain seq", "aria-label": `details of message ${one.seq}`, onclick: () => this.chosen(one.seq) }, `#${number(one.seq)}`),
        el("span", { class: "pill omitted", hidden: true }, "left out"),
        el("span", { class: "quiet" }, counted(one.tokens, "token"), ", ", moment(one.at))),
      body);
  }

  async expand(one, body) {
    try {
      const { session } = this;
      const [whole] = await ask("messages", { user: session.user, session: session.session, first: one.seq, last: one.seq });
      if (whole) fill(body, messageParts(whole), whole.cut ? el("p", { class: "quiet" }, "The first 100,000 characters.") : null);
    } catch (e) {
      this.failed(e);
    }
  }

  key(event) {
    if (event.target !== this.scroller) return;
    const move = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!move || !this.session?.last_seq) return;
    event.preventDefault();
    let seq = this.seq || (move > 0 ? this.session.last_seq - 1 : this.session.last_seq + 1);
    do seq = Math.min(this.session.last_seq, Math.max(1, seq + move));
    while (seq > 1 && seq < this.session.last_seq && ["removed", "trimmed"].includes(stateOf(this.session, seq)));
    this.chosen(seq);
  }
}
