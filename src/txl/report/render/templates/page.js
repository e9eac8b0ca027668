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

// The figures: drawn for the width there is, and again when that changes.
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows.map((row, i) => ({
  ...row,
  colour: `var(--row${i % 10})`,
  dash: ["", "7 4", "2 3"][Math.floor(i / 10) % 3],
  title: row.label === row.name || row.label === "-" ? row.name : `${row.name}: ${row.label}`,
  shown: true,
}));
const compact = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
const charts = [
  {
    kind: "curve", title: "Validation while learning", x: "tokens read", y: data.metric,
    tick: (x) => compact.format(x), value: (y) => y.toFixed(data.digits), logY: data.logarithmic,
    most: data.logarithmic ? Infinity : 1, // of the first steep fall no more than this above the lowest
  },
  {
    kind: "attention", title: "Score and attention length", x: "attention length", y: data.metric,
    note: "A ring marks the attention length of training.",
    tick: String, value: (y) => y.toFixed(data.digits), logX: true, dots: true,
  },
  {
    kind: "cost", title: "Cost and attention length", x: "attention length", y: "microseconds per token",
    tick: String, value: (y) => y.toPrecision(3), logX: true, fromZero: true, dots: true,
  },
];

// The mean over the runs of a row, at the places that all of them have.
function mean(runs) {
  const [first, ...rest] = runs.map((points) => new Map(points));
  if (!first) return [];
  return [...first].filter(([x]) => rest.every((run) => run.has(x)))
    .map(([x, y]) => [x, rest.reduce((sum, run) => sum + run.get(x), y) / (rest.length + 1)]);
}

function seriesOf(chart) {
  return rows.map((row) => {
    const runs = row.runs.filter((run) => run[chart.kind].length);
    const lines = runs.map((run) => run[chart.kind]);
    const trained = runs.length ? runs[0].trained : null;
    return {row, lines, mean: mean(lines), trained};
  }).filter((one) => one.lines.length);
}

const SVG = "http://www.w3.org/2000/svg";
function put(parent, element, attributes = {}, text = null) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}
const html = (parent, name, ...more) => put(parent, document.createElement(name), ...more);
const add = (parent, name, ...more) => put(parent, document.createElementNS(SVG, name), ...more);

// Round numbers between two bounds, about so many of them.
function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step + 0); // no -0
  return {found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9))};
}

function scale(low, high, from, to, logarithmic) {
  const way = logarithmic ? Math.log : (value) => value;
  const span = way(high) - way(low) || 1;
  return (value) => from + (way(value) - way(low)) / span * (to - from);
}

function bounds(chart, series) {
  const points = series.flatMap((one) => one.lines.flat());
  const ys = points.map((point) => point[1]);
  const low = Math.min(...ys), high = Math.min(Math.max(...ys), low + (chart.most || Infinity));
  const room = chart.logY ? 0 : (high - low || Math.abs(high) || 1) * 0.06;
  return {
    xs: [...new Set(points.map((point) => point[0]))].sort((a, b) => a - b),
    low: chart.fromZero ? 0 : low - room, high: high + room,
  };
}

function draw(chart) {
  const {figure, svg} = chart;
  chart.width = figure.clientWidth;
  svg.replaceChildren();
  chart.tip.hidden = true;
  chart.series = seriesOf(chart).filter((one) => one.row.shown);
  if (!chart.series.length) return;
  const width = Math.max(280, chart.width), height = Math.round(Math.min(340, 190 + width / 5));
  const {xs, low, high} = bounds(chart, chart.series);
  const left = 52, right = width - 14, top = 10, bottom = height - 42;
  const x = chart.toX = scale(chart.logX ? xs[0] : Math.min(0, xs[0]), xs.at(-1), left, right, chart.logX);
  const y = scale(low, high, bottom, top, chart.logY);
  chart.xs = xs;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const inside = {x: left - 6, y: top - 6, width: right - left + 12, height: bottom - top + 12};
  add(add(svg, "clipPath", {id: `clip-${chart.kind}`}), "rect", inside);
  const yTicks = ticks(low, high, 5);
  for (const value of yTicks.found) {
    add(svg, "line", {x1: left, x2: right, y1: y(value), y2: y(value), class: "grid"});
    add(svg, "text", {x: left - 7, y: y(value) + 4, "text-anchor": "end"}, value.toFixed(yTicks.digits));
  }
  let last = -Infinity;
  for (const value of chart.logX ? xs : ticks(0, xs.at(-1), Math.min(6, width / 90)).found) {
    if (x(value) - last < 34) continue;
    last = x(value);
    add(svg, "line", {x1: last, x2: last, y1: bottom, y2: bottom + 4, class: "axis"});
    add(svg, "text", {x: last, y: bottom + 17, "text-anchor": "middle"}, chart.tick(value));
  }
  add(svg, "line", {x1: left, x2: right, y1: bottom, y2: bottom, class: "axis"});
  add(svg, "text", {x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "name"}, chart.x);
  const area = add(svg, "g", {"clip-path": `url(#clip-${chart.kind})`});
  const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
  for (const one of chart.series) {
    const group = add(area, "g", {style: `--colour: ${one.row.colour}`, "stroke-dasharray": one.row.dash});
    if (one.lines.length > 1) for (const line of one.lines) add(group, "path", {d: path(line), class: "seed"});
    add(group, "path", {d: path(one.mean), class: "mean"});
    if (!chart.dots) continue;
    for (const [a, b] of one.mean) {
      const ring = chart.kind === "attention" && a === one.trained;
      add(group, "circle", {cx: x(a), cy: y(b), r: ring ? 5 : 3, class: ring ? "ring" : "dot"});
    }
  }
  chart.cursor = add(svg, "line", {y1: top, y2: bottom, class: "cursor", visibility: "hidden"});
}

// What stands at a place of the x axis, below the figure, and a line through the place.
function point(chart, index) {
  if (!chart.series.length) return;
  chart.at = Math.max(0, Math.min(chart.xs.length - 1, index));
  const place = chart.xs[chart.at], left = chart.toX(place);
  const lines = chart.series
    .map((one) => ({row: one.row, y: (one.mean.find((pair) => pair[0] === place) || [])[1]}))
    .filter((one) => one.y !== undefined).sort((a, b) => a.y - b.y);
  chart.cursor.setAttribute("x1", left);
  chart.cursor.setAttribute("x2", left);
  chart.cursor.setAttribute("visibility", "visible");
  chart.tip.replaceChildren();
  html(chart.tip, "strong", {}, `${place.toLocaleString("en")} ${chart.x === "attention length" ? "keys" : chart.x}`);
  for (const line of lines) {
    const item = html(chart.tip, "div", {style: `--colour: ${line.row.colour}`});
    sample(item, line.row);
    html(item, "span", {}, line.row.name);
    html(item, "span", {class: "value"}, chart.value(line.y));
  }
  chart.tip.hidden = false;
}

// A piece of a row's line.
function sample(parent, row) {
  const piece = add(parent, "svg", {viewBox: "0 0 24 10", class: "sample", "aria-hidden": true});
  add(piece, "line", {x1: 1, x2: 23, y1: 5, y2: 5, class: "mean", "stroke-dasharray": row.dash});
}

function leave(chart) {
  chart.tip.hidden = true;
  if (chart.cursor) chart.cursor.setAttribute("visibility", "hidden");
}

function build(chart) {
  chart.figure = html(document.getElementById("charts"), "figure", {});
  html(chart.figure, "figcaption", {}, chart.title);
  html(chart.figure, "p", {}, `${chart.y}${chart.logY ? ", logarithmic" : ""}. ${chart.note || ""}`);
  const label = `${chart.title}: ${chart.y} against ${chart.x}; the arrow keys read out values`;
  chart.svg = add(chart.figure, "svg", {role: "img", tabindex: 0, "aria-label": label});
  chart.tip = html(chart.figure, "div", {class: "tip", "aria-live": "polite"});
  chart.tip.hidden = true;
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * chart.svg.viewBox.baseVal.width / box.width;
    const gaps = (chart.xs || []).map((value) => Math.abs(chart.toX(value) - at));
    point(chart, gaps.indexOf(Math.min(...gaps)));
  });
  chart.svg.addEventListener("pointerleave", () => leave(chart));
  chart.svg.addEventListener("blur", () => leave(chart));
  chart.svg.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (step) point(chart, chart.at === undefined ? 0 : chart.at + step);
    if (event.key === "Escape") leave(chart);
    if (step) event.preventDefault();
  });
  new ResizeObserver(() => chart.figure.clientWidth !== chart.width && draw(chart)).observe(chart.figure);
}

const drawn = charts.filter((chart) => seriesOf(chart).length);
if (drawn.length) {
  document.getElementById("figures").hidden = false;
  const legend = document.getElementById("legend");
  for (const row of rows.filter((row) => drawn.some((chart) => seriesOf(chart).some((one) => one.row === row)))) {
    const button = html(legend, "button", {type: "button", "aria-pressed": true, style: `--colour: ${row.colour}`});
    sample(button, row);
    html(button, "span", {}, row.title);
    button.addEventListener("click", () => {
      row.shown = !row.shown;
      button.setAttribute("aria-pressed", row.shown);
      drawn.forEach(draw);
    });
  }
  drawn.forEach(build);
}
