// The page: where it is (the part of the address behind #), and when it asks again.

import { ask, listen } from "./api.js";
import { CompactionsPanel } from "./compactions.js";
import { ContextPanel } from "./context.js";
import { DiskPanel } from "./disk.js";
import { el, fill, named, section, stored } from "./dom.js";
import { ErasurePanel } from "./erasure.js";
import { HealthPanel } from "./health.js";
import { JobsPanel } from "./jobs.js";
import { MessagePanel } from "./message.js";
import { People, place } from "./people.js";
import { RecallPanel } from "./recall.js";
import { Strip } from "./strip.js";

const LEAST_MS = 1000; // between two refreshes
const SHARE = 4; // a refresh that took long is followed by a pause so many times as long: many pages may be open
const main = document.getElementById("main");
const problem = document.getElementById("problem");
const people = new People(document.getElementById("people"));
const panels = {};
let here = { user: null, session: null };
let shown = null;
let erased = false; // what is shown is being erased here, or was: its receipt is all that is left
let left = false; // what is shown is no session, or was erased elsewhere
let next = 0;
let arranged = false;

function where() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map((one) => {
    try {
      return decodeURIComponent(one);
    } catch {
      return one;
    }
  });
  return { user: parts[0] ?? null, session: parts[1] ?? null };
}

function say(error) {
  problem.hidden = !error;
  fill(problem, error ? stored(error.message) : "");
}

/** Runs what asks the server, and says what failed. */
async function attempt(action) {
  try {
    await action();
    say(null);
  } catch (e) {
    if (e.name !== "AbortError") say(e);
  }
}

function arrange() {
  const title = here.session ?? here.user ?? "The memory";
  document.title = `${named(title)} – remora`;
  const heading = el("h1", {}, here.user === null ? title : [
    el("a", { href: place(here.user) }, stored(here.user)), here.session === null ? "" : [" / ", stored(here.session)]]);
  if (here.user === null) fill(main, heading, panels.health.element, panels.jobs.element, panels.disk.element);
  else if (here.session === null) {
    fill(main, heading, el("p", { class: "quiet" }, "Choose a session of this user in the list, or search all of them here."),
      panels.recall.element, ...panels.erasures());
  } else {
    fill(main, heading,
      section("session", "Messages", el("p", { class: "quiet" }, "One cell a message, the oldest first. When the buffer is full, the oldest of it are summarized."), panels.strip.element, panels.strip.marks, panels.strip.legend, panels.message.element),
      panels.context.element, panels.recall.element, panels.compactions.element, ...panels.erasures());
  }
}

async function go() {
  if (location.hash === "#main") {
    main.focus();
    return;
  }
  here = where();
  shown = null;
  erased = left = false;
  panels.strip = new Strip((seq) => attempt(() => panels.message.show(shown, seq)));
  panels.message = new MessagePanel(about);
  panels.context.clear();
  panels.compactions.clear();
  arrange();
  if (here.user !== null) panels.recall.show(here.user);
  panels.erasure.show(here.user, here.session);
  // at the same time: neither needs the other's answer
  await Promise.all([attempt(() => people.show(here.user, here.session)), refresh()]);
}

async function refresh() {
  const at = here;
  if (erased) return;
  await attempt(async () => {
    if (at.user === null) await Promise.all([panels.health.refresh(), panels.jobs.refresh(), panels.disk.refresh()]);
    else if (at.session !== null) {
      const session = await ask("session", at);
      if (at !== here) return;
      if (session === null) {
        leave(at);
        return;
      }
      if (left) arrange();
      left = false;
      shown = session;
      panels.strip.show(session);
      panels.compactions.show(session);
      await panels.context.show(session);
    }
  });
}

/** Shows nothing of a session that is not there: it may have been erased. */
function leave(at) {
  left = true;
  shown = null;
  for (const one of [panels.context, panels.compactions, panels.recall]) one.clear();
  fill(main, el("h1", {}, [el("a", { href: place(at.user) }, stored(at.user)), " / ", stored(at.session)]),
    el("p", { role: "status" }, "There is no such session; if there was one, it was erased."));
}

/** Asks again, at most once a second, and not while nobody looks. */
let about;
let running = false;
let again = false;
async function changed() {
  again = true;
  if (running || !arranged) return;
  running = true;
  while (again) {
    again = false;
    if (document.visibilityState === "hidden") break;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, next - Date.now())));
    const begun = Date.now();
    await attempt(() => people.refresh());
    await refresh();
    next = Math.max(begun + LEAST_MS, Date.now() + SHARE * (Date.now() - begun));
  }
  running = false;
}

function live(told) {
  const status = document.getElementById("live");
  const text = told ? "page updates itself" : "page asks every 5 s";
  if (status.textContent !== text) status.textContent = text;
  status.className = told ? "told" : "";
}

await attempt(async () => {
  [about] = await Promise.all([ask("about"), listen(changed, live)]);
  document.getElementById("directory").textContent = named(about.directory);
  panels.jobs = new JobsPanel(about);
  panels.health = new HealthPanel();
  panels.disk = new DiskPanel(attempt);
  panels.context = new ContextPanel();
  panels.recall = new RecallPanel();
  panels.compactions = new CompactionsPanel();
  panels.erasure = new ErasurePanel((what, state) => {
    erased = state !== "failed";
    if (state === "done") {
      fill(main, el("h1", {}, stored(what)), panels.erasure.element);
      changed();
    }
  });
  panels.erasures = () => (about.allow_changes ? [panels.erasure.element] : []);
  addEventListener("hashchange", go);
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && changed());
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  arranged = true;
  await Promise.all([attempt(() => people.users.refresh()), go()]);
  if (again) changed();
  // figures change although nothing is stored
  setInterval(() => {
    if (here.user === null && document.visibilityState === "visible") attempt(() => panels.health.refresh());
  }, 2000);
});
