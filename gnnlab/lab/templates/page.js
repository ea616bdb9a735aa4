"use strict";
// The ledger sorts by its columns and filters by verdict; long tables show their first rows; a report opens and closes
// all its code. Without this script the page is whole: tables in their own order, each code cell behind a fold of its own.
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
        table.parentElement.dispatchEvent(new Event("sorted"));
      });
    }
  }

  // a long table shows its first rows, and all of them on request or where verdicts are chosen
  const SHOWN = 10;
  for (const box of all(".wide:has(> table)")) {
    const body = box.querySelector("tbody");
    const chips = all(".chip", box.closest("section") || box);
    const status = box.closest("section")?.querySelector(".count");
    const rows = () => [...(body?.rows || [])];
    const more = document.createElement("button");
    more.type = "button";
    more.className = "switch more";
    more.textContent = `All ${rows().length} rows`;
    const long = rows().length > SHOWN + 4;
    const show = () => {
      const wanted = chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.verdict);
      rows().forEach((row, index) => {
        row.hidden = wanted.length > 0 && !wanted.includes(row.dataset.verdict);
        row.classList.toggle("folded", long && !more.hidden && wanted.length === 0 && index >= SHOWN);
      });
      const count = rows().filter((row) => !row.hidden).length;
      if (status) status.textContent = wanted.length > 0 ? `${count} of ${rows().length} shown` : "";
    };
    if (long) box.after(more);
    more.addEventListener("click", () => { more.hidden = true; show(); });
    box.addEventListener("sorted", show);
    for (const chip of chips) {
      chip.disabled = false;
      chip.addEventListener("click", () => {
        chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
        show();
      });
    }
    show();
  }

  // what scrolls takes the focus; what fits is no stop on the keyboard's way
  const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
  }));
  all("[tabindex]").forEach((box) => watch.observe(box));

  const button = document.querySelector(".contents .switch");
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
