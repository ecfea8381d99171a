// A session as a strip: one cell a message, drawn as far as it is in view.

import { counted, el, fill, number } from "./dom.js";

const CELL = 12;
const STEP = 14;
const STATES = {
  archived: "archived: in a summary, dropped or cleared",
  summarizing: "being summarized",
  buffer: "in the buffer",
  removed: "deleted or rewound",
  trimmed: "no longer kept",
};

function inRanges(ranges, seq) {
  let low = 0;
  let high = ranges.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (seq < ranges[middle].first) high = middle - 1;
    else if (seq > ranges[middle].last) low = middle + 1;
    else return true;
  }
  return false;
}

export function stateOf(session, seq) {
  const marks = session.watermarks;
  if (seq <= session.trimmed) return "trimmed";
  if (inRanges(session.removed, seq)) return "removed";
  if (seq <= marks.archived_through) return "archived";
  return seq <= marks.summarizing_through ? "summarizing" : "buffer";
}

/** Shows cells, and calls `chosen` with a message's number. */
export class Strip {
  constructor(chosen) {
    this.chosen = chosen;
    this.session = null;
    this.seq = 0;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.space = el("div", { class: "space" }, this.canvas);
    this.element = el("div", {
      class: "strip", tabindex: "0", role: "slider", "aria-label": "Message", "aria-valuemin": "1",
      "aria-orientation": "horizontal",
      onscroll: () => this.draw(), onkeydown: (event) => this.key(event),
    }, this.space);
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.marks = el("p", { class: "marks quiet" });
    this.legend = el("ul", { class: "legend" }, Object.keys(STATES).map((name) =>
      el("li", {}, el("span", { class: `cell ${name}`, "aria-hidden": "true" }), STATES[name])),
      el("li", {}, el("span", { class: "cell indexed", "aria-hidden": "true" }), "indexed, or being indexed"));
    new ResizeObserver(() => this.layout()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(session) {
    const grown = this.session && session.last_seq > this.session.last_seq;
    const atEnd = this.element.scrollTop + this.element.clientHeight >= this.element.scrollHeight - STEP;
    const first = this.session === null;
    this.session = session;
    const marks = session.watermarks;
    this.element.setAttribute("aria-valuemax", String(session.last_seq));
    const behind = Math.max(session.last_seq - marks.indexing_through, 0);
    fill(this.marks,
      `${counted(session.last_seq, "message")}, archived through ${number(marks.archived_through)}`,
      marks.summarizing_through > marks.archived_through
        ? `, being summarized through ${number(marks.summarizing_through)}` : "",
      `, ${number(session.buffered)} in the buffer (${number(session.buffered_tokens)} of ${counted(session.token_limit, "token")})`,
      `, indexed through ${number(marks.indexing_through)}`, behind ? `, ${number(behind)} to go` : "");
    this.layout();
    if (first || (grown && atEnd)) this.element.scrollTop = this.element.scrollHeight;
    this.say();
  }

  layout() {
    if (!this.session) return;
    const width = this.element.clientWidth;
    this.columns = Math.max(1, Math.floor((width - 4) / STEP));
    const rows = Math.ceil(this.session.last_seq / this.columns);
    this.space.style.height = `${Math.max(rows * STEP, STEP)}px`;
    this.draw();
  }

  draw() {
    if (!this.session || !this.columns) return;
    const scale = devicePixelRatio || 1;
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const style = getComputedStyle(this.element);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = Object.fromEntries([...Object.keys(STATES), "indexed", "chosen"].map((one) => [one, colour(one)]));
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const { watermarks: marks, last_seq: last } = this.session;
    const top = this.element.scrollTop;
    const from = Math.floor(top / STEP) * this.columns + 1;
    const to = Math.min(last, Math.ceil((top + height) / STEP) * this.columns);
    for (let seq = from; seq <= to; seq += 1) {
      const x = ((seq - 1) % this.columns) * STEP + 2;
      const y = Math.floor((seq - 1) / this.columns) * STEP - top + 1;
      const state = stateOf(this.session, seq);
      pen.fillStyle = colours[state];
      pen.beginPath();
      pen.roundRect(x, y, CELL, CELL, 2);
      pen.fill();
      if (seq <= marks.indexing_through && state !== "removed" && state !== "trimmed") {
        pen.fillStyle = colours.indexed;
        pen.fillRect(x, y + CELL - 3, CELL, 3);
      }
      if (seq === marks.archived_through || seq === marks.indexing_through) {
        pen.fillStyle = colours.chosen;
        pen.fillRect(x + CELL, y - 1, 2, STEP);
      }
      if (seq === this.seq) {
        pen.strokeStyle = colours.chosen;
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, y + 1, CELL - 2, CELL - 2);
      }
    }
  }

  click(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - 2) / STEP);
    const row = Math.floor((event.clientY - box.top + this.element.scrollTop) / STEP);
    const seq = row * this.columns + column + 1;
    if (column >= 0 && column < this.columns && seq <= this.session.last_seq) this.choose(seq);
    this.element.focus();
  }

  key(event) {
    const moves = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns,
      PageDown: this.columns * 10, PageUp: -this.columns * 10, Home: -Infinity, End: Infinity,
    };
    const move = moves[event.key];
    if (!move || !this.session?.last_seq) return;
    event.preventDefault();
    this.choose(Math.min(this.session.last_seq, Math.max(1, (this.seq || this.session.last_seq) + move)));
  }

  choose(seq) {
    this.mark(seq);
    this.chosen(seq);
  }

  /** Marks a message, and moves the strip to it. */
  mark(seq) {
    this.seq = seq;
    const y = Math.floor((seq - 1) / this.columns) * STEP;
    if (y < this.element.scrollTop) this.element.scrollTop = y;
    else if (y + STEP > this.element.scrollTop + this.element.clientHeight) {
      this.element.scrollTop = y + STEP - this.element.clientHeight;
    }
    this.draw();
    this.say();
  }

  say() {
    const seq = this.seq || this.session.last_seq;
    const indexed = seq <= this.session.watermarks.indexing_through ? ", indexed" : ", not indexed yet";
    const text = seq ? `message ${seq}, ${STATES[stateOf(this.session, seq)]}${indexed}` : "no messages";
    this.element.setAttribute("aria-valuenow", String(seq));
    this.element.setAttribute("aria-valuetext", text);
  }
}
