// What keys do, and the list of them.

import { el } from "./dom.js";

const KEYS = [
  ["/", "search users, or the sessions of a user"],
  ["\u2191 \u2193", "move in a list, or in the conversation"],
  ["\u2190 \u2192", "move in the strip, or between tabs"],
  ["Page Up, Page Down, Home, End", "move further"],
  ["1 to 6", "the tabs of a session"],
  ["o", "the overview"],
  ["u", "from a session to its user"],
  ["Escape", "leave a field, or close what is open"],
  ["?", "this list"],
];

const isField = (target) => target instanceof HTMLElement
  && (target.matches("input:not([type=range]), textarea, select") || target.isContentEditable);

/** Listens for keys: `actions` has a function for each; the list is shown by `show`. */
export function listenForKeys(actions) {
  const close = el("button", { type: "button", onclick: () => list.close() }, "Close");
  const list = el("dialog", { id: "keys", "aria-labelledby": "keys-title" },
    el("h2", { id: "keys-title" }, "Keys"),
    el("dl", {}, KEYS.map(([key, does]) => el("div", {}, el("dt", {}, key.split(", ").map((one) => el("kbd", {}, one))), el("dd", {}, does)))),
    close);
  list.addEventListener("click", (event) => event.target === list && list.close());
  document.body.append(list);
  const show = () => list.open || list.showModal();
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || list.open) return;
    if (event.key === "Escape") {
      actions.leave(isField(event.target) ? event.target : null);
      return;
    }
    if (isField(event.target)) return;
    const action = event.key === "?" ? show : actions[event.key];
    if (action && action() !== false) event.preventDefault();
  });
  return show;
}
