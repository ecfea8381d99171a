// How the process does that has the memory open: figures of the last minutes.

import { ask } from "./api.js";
import { bytes, counted, el, moment, number, renew, round, section, stored, table } from "./dom.js";
import { place } from "./people.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 160;
const HEIGHT = 30;
const FIGURES = [
  ["writes", "writes a second", round],
  ["commits", "commits a second", round],
  ["append_p50_ms", "append p50, ms", round],
  ["append_p99_ms", "append p99, ms", round],
  ["load_p50_ms", "load p50, ms", round],
  ["load_p99_ms", "load p99, ms", round],
  ["recall_p99_ms", "recall p99, ms", round],
  ["late", "recalls too late, a second", round],
  ["commit_p99_ms", "commit p99, ms", round],
  ["waiting", "requests that wait", number],
  ["refused", "refused a second", round],
  ["live", "sessions and users in memory", number],
  ["jobs", "background jobs", number],
  ["wal_bytes", "write-ahead log", bytes],
];

function drawing(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function sparkline(samples, name, label, show) {
  const values = samples.map((one) => one[name] ?? 0);
  const most = Math.max(...values, 1e-9);
  const step = WIDTH / Math.max(values.length - 1, 1);
  const points = samples.flatMap(({ [name]: value }, place) => // where nothing was measured, there is no point
    value === null ? [] : `${(place * step).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`);
  const last = samples.at(-1)?.[name] ?? null;
  const said = `${label}: ${last === null ? "none" : show(last)} now, at most ${show(Math.max(...values, 0))}`;
  return el("li", {},
    el("span", { class: "quiet" }, label), el("strong", { class: "figure" }, last === null ? "none" : show(last)),
    drawing("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said, preserveAspectRatio: "none" },
      drawing("polyline", { points: points.join(" ") })));
}

export class HealthPanel {
  constructor() {
    this.result = el("div", {});
    this.element = section("health", "Health", this.result);
  }

  async refresh() {
    const found = await ask("health");
    const disk = Object.entries(found.disk).map(([name, size]) => `${name} ${bytes(size)}`).join(", ");
    if (!found.pid) {
      renew(this.result, el("p", {}, stored(found.note)), el("p", { class: "quiet" }, `On disk: ${disk}.`));
      return;
    }
    const { health } = found;
    const word = !health.live ? "not live" : !health.ready ? "not ready" : health.degraded ? "degraded" : "well";
    renew(this.result,
      el("p", {}, el("strong", { class: word === "well" ? "" : "failed" }, word), `: process ${found.pid} opened the memory `, moment(found.since)),
      health.problems.length ? el("ul", {}, health.problems.map((one) => el("li", { class: "failed" }, `${one.effect}: `, stored(one.text)))) : null,
      el("p", { class: "quiet" }, "The last five minutes in which a page was open, the newest on the right; the height is relative to the highest. ",
        "p50: half took no longer; p99: 99 of 100. Late recalls are contexts that went without memories."),
      found.samples.length
        ? el("ul", { class: "figures" }, FIGURES.map(([name, label, show]) => sparkline(found.samples, name, label, show)))
        : el("p", { class: "quiet" }, "Figures follow in some seconds."),
      found.mailboxes.length ? table("Sessions for which most requests wait", ["whose", "requests that wait"], found.mailboxes.map((one) => el("tr", {},
        el("td", {}, el("a", { href: one.session === null ? place(one.user) : place(one.user, one.session) },
          stored(one.user), one.session === null ? "" : [" / ", stored(one.session)])),
        el("td", { class: "figure" }, counted(one.messages, "request"))))) : null,
      el("p", { class: "quiet" }, `On disk: ${disk}.`));
  }
}
