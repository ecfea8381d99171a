// The page: where it is (the part of the address behind #), and when it asks again.

import { ask, listen } from "./api.js";
import { CompactionsPanel } from "./compactions.js";
import { ContextPanel } from "./context.js";
import { Conversation } from "./conversation.js";
import { DiskPanel } from "./disk.js";
import { el, fill, named, stored } from "./dom.js";
import { ErasurePanel } from "./erasure.js";
import { JobsPanel } from "./jobs.js";
import { listenForKeys } from "./keys.js";
import { MessagePanel } from "./message.js";
import { OverviewPanel } from "./overview.js";
import { People, place } from "./people.js";
import { RecallPanel } from "./recall.js";
import { Strip } from "./strip.js";
import { Tabs } from "./tabs.js";

const LEAST_MS = 1000; // between two refreshes
const SHARE = 4; // a refresh that took long is followed by a pause so many times as long: many pages may be open
const main = document.getElementById("main");
const problem = document.getElementById("problem");
const menu = document.getElementById("menu");
const people = new People(document.getElementById("people"));
const panels = {};
let here = { user: null, session: null, seq: null };
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
  return { user: parts[0] ?? null, session: parts[1] ?? null, seq: Number(parts[2]) || null };
}

function say(error) {
  problem.hidden = !error;
  fill(problem, error ? [stored(error.message), " ", el("button", { type: "button", onclick: () => changed() }, "Try again")] : "");
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

function openMenu(open) {
  document.body.classList.toggle("menu", open);
  menu.setAttribute("aria-expanded", String(open));
}

function arrange() {
  const title = here.session ?? here.user ?? "Overview";
  document.title = `${named(title)} \u2013 remora`;
  document.body.dataset.shows = here.session !== null ? "session" : here.user !== null ? "user" : "memory";
  menu.textContent = here.user === null ? "Users" : "Sessions";
  openMenu(here.user !== null && here.session === null);
  const heading = el("h1", {}, here.user === null ? title : [
    el("span", { class: here.session === null ? null : "quiet" }, el("a", { href: place(here.user) }, stored(here.user))),
    here.session === null ? "" : [" / ", stored(here.session)]]);
  if (here.user === null) fill(main, heading, panels.overview.elements, panels.jobs.element, panels.disk.element);
  else if (here.session === null) {
    panels.recall.element.hidden = false;
    panels.recall.element.removeAttribute("role");
    fill(main, heading, el("p", { class: "quiet" }, "Choose a session in the list, or search all of them here."),
      panels.recall.element, ...panels.erasures());
    for (const one of panels.erasures()) one.hidden = false;
  } else {
    fill(main, el("div", { class: "top" }, heading, panels.strip.marks, panels.strip.element, panels.strip.legend), panels.tabs.element);
    panels.tabs.hold([
      ["conversation", "Conversation", panels.conversation.element], ["context", "What the model sees", panels.context.element],
      ["recall", "Recall", panels.recall.element], ["message", "Message", panels.message.element],
      ["compactions", "Summaries", panels.compactions.element],
      ...panels.erasures().map((one) => ["erasure", "Erase", one])]);
  }
}

/** Shows one message, in the conversation and with its details. */
function choose(seq, { byStrip = false, details = true } = {}) {
  if (!shown || seq < 1 || seq > shown.last_seq) return;
  attempt(() => Promise.all([panels.message.show(shown, seq), panels.conversation.choose(seq)]));
  if (!byStrip) panels.strip.mark(seq);
  if (details) panels.tabs.choose("message");
}

async function go() {
  if (location.hash === "#main" || location.hash === "#jobs") {
    (document.getElementById(location.hash.slice(1)) ?? main).scrollIntoView();
    return;
  }
  const before = here;
  here = where();
  const inPlace = arranged && shown && !left && before.user === here.user && before.session === here.session;
  if (inPlace) {
    if (here.seq !== null) {
      choose(here.seq, { details: false });
      panels.tabs.reveal();
    }
    return;
  }
  shown = null;
  erased = left = false;
  panels.strip = new Strip((seq) => choose(seq, { byStrip: true }));
  for (const one of [panels.conversation, panels.message, panels.context, panels.compactions]) one.clear();
  panels.tabs.wanted = here.seq === null ? "" : "conversation";
  panels.conversation.seq = here.seq ?? 0;
  arrange();
  if (here.user !== null) panels.recall.show(here.user, here.session);
  panels.erasure.show(here.user, here.session);
  // at the same time: neither needs the other's answer
  await Promise.all([attempt(() => people.show(here.user, here.session)), refresh()]);
  if (here.seq !== null) choose(here.seq, { details: false });
}

async function refresh() {
  const at = here;
  if (erased) return;
  await attempt(async () => {
    if (at.user === null) {
      await Promise.all([panels.overview.refresh(), panels.jobs.refresh(), panels.disk.refresh()]);
    } else if (at.session !== null) {
      const session = await ask("session", { user: at.user, session: at.session });
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
      await Promise.all([panels.conversation.show(session), panels.context.show(session)]);
    }
  });
}

/** Shows nothing of a session that is not there: it may have been erased. */
function leave(at) {
  left = true;
  shown = null;
  for (const one of [panels.conversation, panels.message, panels.context, panels.compactions, panels.recall]) one.clear();
  fill(main, el("h1", {}, [el("a", { href: place(at.user) }, stored(at.user)), " / ", stored(at.session)]),
    el("p", { role: "status", class: "empty" }, "There is no such session; if there was one, it was erased."),
    el("p", {}, el("a", { href: place(at.user) }, "Sessions of this user"), " \u00b7 ", el("a", { href: place() }, "Overview")));
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

const isMenuUsed = () => getComputedStyle(menu).display !== "none";

await attempt(async () => {
  [about] = await Promise.all([ask("about"), listen(changed, live)]);
  document.getElementById("directory").textContent = named(about.directory);
  document.getElementById("directory").title = about.directory;
  panels.overview = new OverviewPanel();
  panels.jobs = new JobsPanel(about, (found) => panels.overview.noteJobs(found));
  panels.disk = new DiskPanel(attempt);
  panels.context = new ContextPanel((seqs) => panels.conversation.note(seqs));
  panels.conversation = new Conversation(choose, say);
  panels.message = new MessagePanel(about);
  panels.compactions = new CompactionsPanel();
  panels.tabs = new Tabs("Parts of the session", (id) => id === "context" && attempt(() => panels.context.load()));
  panels.recall = new RecallPanel((question) => {
    panels.tabs.choose("context");
    attempt(() => panels.context.ask(question));
  });
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
  menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
  const showKeys = listenForKeys({
    "/": () => { if (isMenuUsed()) openMenu(true); people.search(); },
    o: () => { location.hash = place(); },
    u: () => here.user !== null && (location.hash = place(here.user)),
    ...Object.fromEntries([1, 2, 3, 4, 5, 6].map((digit) => [digit, () => here.session !== null && panels.tabs.chooseAt(digit - 1)])),
    leave: (field) => {
      if (field) field.blur();
      else if (isMenuUsed()) openMenu(false);
      main.focus({ preventScroll: true });
    },
  });
  document.getElementById("help").addEventListener("click", showKeys);
  arranged = true;
  await Promise.all([attempt(() => people.users.refresh()), go()]);
  if (again) changed();
  // figures change although nothing is stored
  setInterval(() => {
    if (here.user === null && document.visibilityState === "visible") attempt(() => panels.overview.refreshHealth());
  }, 2000);
});
