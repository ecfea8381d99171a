// Panels of which one is shown; beside it, where there is room, the first one always.

import { el, fill } from "./dom.js";

const WIDE = matchMedia("(min-width: 1100px)");

export class Tabs {
  /** Shows `panels`: the id, the label and the element of each; calls `shown` with an id. */
  constructor(label, shown) {
    this.shown = shown;
    this.wanted = "";
    this.list = el("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: (event) => this.key(event) });
    this.element = el("div", { class: "panes" }, this.list);
    WIDE.addEventListener("change", () => this.apply());
  }

  hold(panels) {
    this.panels = panels;
    this.buttons = panels.map(([id, name]) => el("button", {
      type: "button", role: "tab", id: `tab-${id}`, "aria-controls": id, onclick: () => this.choose(id),
    }, name));
    for (const [id, , panel] of panels) {
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", `tab-${id}`);
      panel.tabIndex = 0; // it may have more than fits, and nothing in it that takes the focus
    }
    fill(this.list, this.buttons);
    fill(this.element, this.list, panels.map(([, , panel]) => panel));
    this.apply();
  }

  /** The panel that is shown, or the one that is beside the first. */
  get current() {
    const [[first], [second]] = this.panels;
    return this.wanted && !(WIDE.matches && this.wanted === first) ? this.wanted : WIDE.matches ? second : first;
  }

  choose(id) {
    this.wanted = id;
    this.apply();
    this.shown(id);
  }

  /** Chooses the tab with this number; false if there is none. */
  chooseAt(place) {
    if (!this.element.isConnected || place >= this.panels.length) return false;
    this.choose(this.panels[place][0]);
    (this.buttons[place].hidden ? this.panels[place][2].querySelector("[tabindex]") : this.buttons[place]).focus();
    return true;
  }

  /** Shows the first panel, where it is not beside the others anyway. */
  reveal() {
    if (!WIDE.matches) this.choose(this.panels[0][0]);
  }

  apply() {
    if (!this.panels) return;
    const { current } = this;
    this.panels.forEach(([id, , panel], place) => {
      panel.hidden = id !== current && !(WIDE.matches && place === 0);
      this.buttons[place].setAttribute("aria-selected", String(id === current));
      this.buttons[place].hidden = WIDE.matches && place === 0;
    });
  }

  key(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const seen = this.buttons.filter((one) => !one.hidden);
    const next = seen[(seen.indexOf(document.activeElement) + move + seen.length) % seen.length];
    next.click();
    next.focus();
  }
}
