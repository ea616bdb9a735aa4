"use strict";
// Verdicts can be filtered, all code of a report opened and closed, and what scrolls takes the focus. Without this
// script the page is whole: all rows are shown, and each code cell opens by itself.
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const pressed = (button) => button.getAttribute("aria-pressed") === "true";

  for (const section of all("section:has(.chip)")) {
    const chips = all(".chip", section);
    const rows = all("tr[data-verdict]", section);
    for (const chip of chips) {
      chip.disabled = false;
      chip.addEventListener("click", () => {
        chip.setAttribute("aria-pressed", String(!pressed(chip)));
        const wanted = chips.filter(pressed).map((one) => one.dataset.verdict);
        rows.forEach((row) => { row.hidden = wanted.length > 0 && !wanted.includes(row.dataset.verdict); });
        const shown = rows.filter((row) => !row.hidden).length;
        section.querySelector(".count").textContent = wanted.length > 0 ? `${shown} of ${rows.length} shown` : "";
      });
    }
  }

  const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }));
  all("pre, .wide, .output_html, .text_cell_render, .output_markdown").forEach((box) => watch.observe(box));

  const button = document.querySelector(".switch");
  const code = all("details.code");
  if (button && code.length > 0) {
    button.hidden = false;
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!pressed(button)));
      button.textContent = pressed(button) ? "Hide code" : "Show code";
      code.forEach((cell) => { cell.open = pressed(button); });
    });
  }
})();
