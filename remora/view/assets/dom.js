// Elements are made of text nodes and attributes; nothing that is stored is ever read as HTML.

/** An element; a property `on…` is a listener, `class` and others are attributes. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  return fill(element, ...children);
}

/** Replaces what an element contains; null and false are left out. */
export function fill(element, ...children) {
  const nodes = children.flat(Infinity).filter((one) => one != null && one !== false);
  element.replaceChildren(...nodes.map(asNode));
  return element;
}

/**
 * As `fill`, but nodes that are there already stay, with their focus and a click that has begun: a
 * page may be drawn again every second. Elements with a `data-key` stay for the same key only.
 */
export function renew(element, ...children) {
  renewChildren(element, [...fill(element.cloneNode(false), ...children).childNodes]);
  return element;
}

function renewChildren(element, wanted) {
  const keyed = new Map([...element.children].filter((one) => one.dataset.key).map((one) => [one.dataset.key, one]));
  const keys = new Set(wanted.map((one) => one.dataset?.key));
  // first, so that those after them need not be moved: a click on a node that moves is lost
  for (const [key, one] of keyed) if (!keys.has(key)) one.remove();
  let place = element.firstChild;
  for (const fresh of wanted) {
    const key = fresh.dataset?.key;
    const old = key ? keyed.get(key) : place;
    const stays = old && old.nodeName === fresh.nodeName && old.dataset?.key === key;
    if (stays) renewNode(old, fresh);
    const node = stays ? old : fresh;
    if (node === place) place = place.nextSibling;
    else element.insertBefore(node, place);
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function renewNode(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  }
  renewChildren(old, [...fresh.childNodes]);
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** An id with its invisible characters named: with them, it can look like another id, or run backwards. */
export const named = (id) =>
  String(id).replace(/[\p{Cf}\u2028\u2029]/gu, (one) => `\u27e8U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);

/** Stored text: isolated, so that its direction and marks change nothing around it; outside `pre`, ids and other single lines. */
export function stored(text, tag = "bdi", properties = {}) {
  const shown = String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\ufffd");
  return el(tag, { dir: "auto", ...properties }, tag === "bdi" ? named(shown) : shown);
}

export const number = (value) => Number(value).toLocaleString("en");

/** A figure with the digits that matter. */
export const round = (value) =>
  value === null ? "none" : value < 10 ? value.toFixed(value < 1 ? 2 : 1) : number(Math.round(value));

export const bytes = (value) =>
  value < 1e6 ? `${round(value / 1e3)} kB` : value < 1e9 ? `${round(value / 1e6)} MB` : `${round(value / 1e9)} GB`;

export const seconds = (value) => (value < 1 ? `${round(value * 1e3)} ms` : `${round(value)} s`);

export const counted = (count, noun, plural = `${noun}s`) =>
  `${number(count)} ${Number(count) === 1 ? noun : plural}`;

/** A time as people read it, with the exact one as its title. */
export function moment(iso) {
  if (!iso) return el("span", {}, "never");
  const date = new Date(iso);
  const seconds = (Date.now() - date.getTime()) / 1000;
  const units = [[86400 * 365, "year"], [86400 * 30, "month"], [86400, "day"], [3600, "hour"], [60, "minute"]];
  const [size, unit] = units.find(([each]) => Math.abs(seconds) >= each) ?? [1, "second"];
  const text = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" }).format(-Math.round(seconds / size), unit);
  return el("time", { datetime: iso, title: iso }, text);
}

/**
 * Makes `wanted` the children of an element, and moves none that stays, so that it keeps its focus,
 * and what is open in it.
 */
export function settle(element, wanted) {
  const staying = new Set(wanted);
  for (const one of [...element.childNodes]) if (!staying.has(one)) one.remove();
  let next = element.firstChild;
  for (const one of wanted) {
    if (one === next) next = next.nextSibling;
    else element.insertBefore(one, next);
  }
}

/** A section with a heading that screen readers list. */
export function section(id, title, ...children) {
  const heading = el("h2", { id: `${id}-title` }, title);
  return el("section", { id, "aria-labelledby": `${id}-title` }, heading, ...children);
}

/** A bar from 0 to 1 with its value as text. */
export function bar(value, text, kind = "") {
  const fill = el("span", { class: `fill ${kind}` });
  fill.style.width = `${Math.max(0, Math.min(value, 1)) * 100}%`;
  return el("span", { class: "bar" }, fill, el("span", { class: "figure" }, text));
}

export function table(caption, heads, rows) {
  const isFigure = (column) => rows[0]?.children[column]?.classList.contains("figure");
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, el("table", {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, heads.map((one, column) => el("th", { scope: "col", class: isFigure(column) ? "figure" : null }, one)))),
    el("tbody", {}, rows)));
}

/** Calls `action` once after the last of several calls. */
export function debounced(action, milliseconds = 150) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}
