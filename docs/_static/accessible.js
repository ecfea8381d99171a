// Names of the page's parts for screen readers, and scrolling with the keyboard.
"use strict";
for (const [part, name] of [
  [".sidebar-drawer", "All pages"],
  [".toc-drawer", "On this page"],
]) {
  document.querySelector(part)?.setAttribute("aria-label", name);
}
for (const caption of document.querySelectorAll(".sidebar-tree .caption")) {
  caption.setAttribute("aria-level", "2");
}
const reach = () => {
  for (const box of document.querySelectorAll("pre, .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
addEventListener("resize", reach);
reach();
for (const head of document.querySelectorAll("th")) {
  if (head.textContent.trim()) continue; // an empty cell is no header
  const cell = document.createElement("td");
  cell.className = head.className;
  head.replaceWith(cell);
}
