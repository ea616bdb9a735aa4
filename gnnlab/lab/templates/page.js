"use strict";
// The ledger sorts by its columns and filters by verdict; a report opens and closes all its code. Without this script
// the page is whole: the table in its own order, each code cell behind a fold of its own.
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  for (const table of all("table.ledger")) {
    const body = table.tBodies[0];
    const value = (row, index) => {
      const text = row.cells[index].dataset.sort;
      if (text === "") return -Infinity;
      return Number.isNaN(Number(text)) ? text : Number(text);
    };
    for (const head of all("th[data-key]", table)) {
      const button = head.querySelector("button");
      button.disabled = false;
      button.addEventListener("click", () => {
        const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
        all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", direction);
        const sign = direction === "ascending" ? 1 : -1;
        const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
        const sorted = [...body.rows].sort((a, b) => sign * order(value(a, head.cellIndex), value(b, head.cellIndex)));
        body.append(...sorted);
      });
    }
  }

  for (const part of all("section")) {
    const chips = all(".chip", part);
    const rows = all("table.ledger tbody tr", part);
    const status = part.querySelector(".count");
    for (const chip of chips) {
      chip.disabled = false;
      chip.addEventListener("click", () => {
        chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
        const wanted = chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.verdict);
        rows.forEach((row) => { row.hidden = wanted.length > 0 && !wanted.includes(row.dataset.verdict); });
        const shown = rows.filter((row) => !row.hidden).length;
        status.textContent = wanted.length > 0 ? `${shown} of ${rows.length} shown` : "";
      });
    }
  }

  // what scrolls takes the focus; what fits is no stop on the keyboard's way
  const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  }));
  all("[tabindex]").forEach((box) => watch.observe(box));

  // on paper nothing can be opened
  const folded = all(".facts details, details.missing");
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = folded.filter((part) => !part.open);
    closed.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => closed.forEach((part) => { part.open = false; }));

  const button = document.querySelector(".switch");
  const code = all("details.code");
  if (button && code.length > 0) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(open));
      button.textContent = open ? "Hide code" : "Show code";
      code.forEach((cell) => { cell.open = open; });
    });
  }
})();
