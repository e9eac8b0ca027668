"use strict";

// Sorting: a click on a heading, or Enter and Space on it, sorts the rows; rows without a number come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const body = table.tBodies[0];
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = heading.classList.contains("number");
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[column];
      const number = "number" in cell.dataset ? Number(cell.dataset.number) : null;
      return {row, key: numeric ? number : cell.textContent};
    });
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      const order = numeric ? a.key - b.key : a.key.localeCompare(b.key, "en", {numeric: true});
      return down ? -order : order;
    });
    body.append(...keyed.map((item) => item.row));
  }));
}
