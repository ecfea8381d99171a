// The memory at a glance: its size, the health of the process that has it open, what that does now.

import { ask } from "./api.js";
import { bytes, counted, el, moment, number, renew, round, seconds, section, stored, table } from "./dom.js";
import { place } from "./people.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 160;
const HEIGHT = 30;
const FIGURES = [
  ["writes", "writes a second", round],
  ["append_p50_ms", "append p50, ms", round],
  ["append_p99_ms", "append p99, ms", round],
  ["load_p50_ms", "load p50, ms", round],
  ["load_p99_ms", "load p99, ms", round],
  ["recall_p99_ms", "recall p99, ms", round],
  ["late", "recalls too late, a second", round],
  ["commits", "commits a second", round],
  ["commit_p99_ms", "commit p99, ms", round],
  ["waiting", "requests that wait", number],
  ["refused", "refused a second", round],
  ["live", "sessions and users in memory", number],
  ["jobs", "background jobs", number],
  ["wal_bytes", "write-ahead log", bytes],
];
const MODEL = "summarize";
const WORDS = { flush: "index messages", summarize: "summaries" };

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

const tile = (label, value, note, kind = "") => el("li", { class: kind },
  el("span", { class: "label" }, label), el("strong", { class: "figure" }, value), el("span", { class: "quiet" }, note));

const summed = (queues, state) => Object.values(queues).reduce((sum, one) => sum + one[state], 0);

const LOADING = "\u2026";

export class OverviewPanel {
  /** Shows `jobs`, which is refreshed by its own panel. */
  constructor() {
    this.tiles = el("ul", { class: "tiles" });
    this.welcome = el("div", {});
    this.state = el("div", { class: "loading" }, "Asking the process that has the memory open");
    this.work = el("div", {});
    this.result = el("div", {});
    this.health = section("health", "Health", this.state, this.work, this.result);
    this.elements = [this.tiles, this.welcome, this.health];
    this.counts = null;
    this.found = null;
    this.jobs = null;
  }

  async refresh() {
    await Promise.all([this.refreshCounts(), this.refreshHealth()]);
  }

  async refreshCounts() {
    this.counts = await ask("counts");
    this.drawTiles();
  }

  /** What the jobs panel has found. */
  noteJobs(found) {
    this.jobs = found;
    this.drawTiles();
    this.drawWork();
  }

  async refreshHealth() {
    const first = this.found === null;
    this.found = await ask("health");
    if (first) this.state.className = "";
    this.drawTiles();
    this.drawHealth();
    this.drawWork();
  }

  drawTiles() {
    const { counts, jobs } = this;
    const size = this.found && Object.values(this.found.disk).reduce((sum, one) => sum + one, 0);
    const waiting = jobs && ["waiting", "running", "delayed"].reduce((sum, state) => sum + summed(jobs.queues, state), 0);
    const dead = jobs && summed(jobs.queues, "dead");
    const or = (value, show = number) => (value === null ? LOADING : show(value));
    renew(this.tiles,
      tile("Users", or(counts?.users ?? null), ""),
      tile("Sessions", or(counts?.sessions ?? null), ""),
      tile("Messages", or(counts?.messages ?? null), ""),
      tile("Jobs to do", or(waiting), jobs && summed(jobs.queues, "running") ? `${number(summed(jobs.queues, "running"))} running` : ""),
      tile("Failed jobs", or(dead), dead ? el("a", { href: "#jobs" }, "see why") : "", dead ? "bad" : ""),
      tile("On disk", or(size, bytes), ""));
    renew(this.welcome, counts && !counts.users ? el("section", { class: "welcome", "aria-label": "Begin" },
      el("h2", {}, "This memory is empty"),
      el("p", {}, "It is filled as soon as your server appends a message. This page shows it within a second:"),
      el("pre", { class: "code", tabindex: 0 }, 'async with remora.Runtime("memory") as runtime:\n    chat = runtime.session("alice", "chat")\n    await chat.append({"role": "user", "content": "I live in Lisbon."})'),
      el("p", { class: "quiet" }, "To look at a filled one: ", el("code", {}, "remora demo --dir demo"), ", then ", el("code", {}, "remora view demo"), ".")) : null);
  }

  drawHealth() {
    const { found } = this;
    const disk = el("p", { class: "quiet" }, `On disk: ${Object.entries(found.disk).map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}.`);
    if (!found.pid) {
      renew(this.state, el("p", { class: "state" }, el("strong", { class: "pill off" }, "closed"), " ", stored(found.note)),
        el("p", { class: "quiet" }, "That is fine: this page reads the files. Background jobs go on when your server opens the memory."));
      renew(this.result, disk);
      return;
    }
    const { health } = found;
    const word = !health.live ? "not live" : !health.ready ? "not ready" : health.degraded ? "degraded" : "well";
    renew(this.state,
      el("p", { class: "state" }, el("strong", { class: `pill ${word === "well" ? "ok" : word === "degraded" ? "omitted" : "failed"}` }, word), ` process ${found.pid} opened the memory `, moment(found.since)),
      health.problems.length ? el("ul", { class: "problems" }, health.problems.map((one) => el("li", { class: one.effect === "degraded" ? "callout" : "callout failed" },
        el("strong", {}, stored(one.text)), el("span", { class: "quiet" }, `${one.effect}. What to do: `,
          one.code === "dead_letters" ? el("a", { href: "#jobs" }, "the failed jobs below say why") : "docs/how-to/health.md has ", one.code === "dead_letters" ? "." : el("code", {}, one.code))))) : null);
    renew(this.result,
      el("h3", {}, "The last five minutes"),
      found.samples.length
        ? el("ul", { class: "figures" }, FIGURES.map(([name, label, show]) => sparkline(found.samples, name, label, show)))
        : el("p", { class: "loading" }, "Figures follow in some seconds"),
      el("p", { class: "quiet" }, "In which a page was open, the newest on the right; the height is relative to the highest. ",
        "p50: half took no longer; p99: 99 of 100. Late recalls are contexts that went without memories."),
      found.mailboxes.length ? table("Sessions for which most requests wait", ["whose", "requests that wait"], found.mailboxes.map((one) => el("tr", {},
        el("td", {}, el("a", { href: one.session === null ? place(one.user) : place(one.user, one.session) },
          stored(one.user), one.session === null ? "" : [" / ", stored(one.session)])),
        el("td", { class: "figure" }, counted(one.messages, "request"))))) : null,
      disk);
  }

  /** What the model and the indexer do. */
  drawWork() {
    const { found, jobs } = this;
    if (!found || !jobs || !found.pid) {
      renew(this.work);
      return;
    }
    const models = Object.entries(found.summaries);
    const calls = models.reduce((sum, [, one]) => sum + one.calls, 0);
    const failures = models.reduce((sum, [, one]) => sum + one.failures, 0);
    const tokens = (name) => models.reduce((sum, [, one]) => sum + one[name], 0);
    const others = Object.keys(found.queues).filter((name) => name !== MODEL);
    renew(this.work, el("div", { class: "work" },
      this.card("Model", models.filter(([, one]) => one.calls || one.failures).map(([name]) => name).join(", "), [MODEL],
        calls ? [`${counted(calls, "summary", "summaries")} since start, from ${number(tokens("tokens_in"))} to ${counted(tokens("tokens_out"), "token")}`, failures ? el("span", { class: "failed" }, `; ${counted(failures, "call")} failed`) : ""] : "No summary since start"),
      this.card("Indexer", "long-term memory", others, `${counted(others.reduce((sum, name) => sum + found.queues[name].done, 0), "job")} done since start`)));
  }

  card(title, of, names, done) {
    const { queues } = this.jobs;
    const mine = names.filter((name) => queues[name] && (queues[name].waiting || queues[name].running || queues[name].delayed));
    const oldest = Math.max(0, ...names.map((name) => this.found.queues[name]?.oldest_s ?? 0));
    return el("div", { class: "card" },
      el("h3", {}, title, " ", el("span", { class: "quiet" }, stored(of))),
      mine.length
        ? el("p", {}, el("span", { class: "dot busy", "aria-hidden": "true" }), mine.map((name) => {
          const states = ["running", "waiting", "delayed"].filter((state) => queues[name][state]).map((state) => `${number(queues[name][state])} ${state}`);
          return `${WORDS[name] ?? name}: ${states.join(", ")}`;
        }).join("; "), oldest >= 1 ? `; the oldest for ${seconds(oldest)}` : "")
        : el("p", {}, el("span", { class: "dot idle", "aria-hidden": "true" }), "nothing to do"),
      el("p", { class: "quiet" }, done));
  }
}
