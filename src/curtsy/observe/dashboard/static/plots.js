// Plots of the last hour and the last day: bars with labelled axes, and the same numbers as a table.

import { brief, count, h, mark, plural, put, svg } from "./basics.js";

const PERIODS = { hour: { seconds: 3600, words: "last hour", step: 900 }, day: { seconds: 86400, words: "last day", step: 21600 } };

const LENGTHS = { 60: "in a minute", 300: "in 5 minutes", 900: "in 15 minutes", 3600: "in an hour" };

const KINDS = [
  { id: "requests", title: "Requests", noun: "request", show: count },
  { id: "pages", title: "Pages", noun: "page", show: count },
  { id: "errors", title: "Errors", noun: "error", show: count },
  { id: "wait", title: "Average wait before a request", show: brief },
];

const HEIGHT = 150;
const LEFT = 54; // pixels for the labels of the vertical axis
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 22;

const time = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en", { weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const total = (series, kind, now) => intervals(series, 3600, now).reduce((sum, each) => sum + each[kind], 0);

// All intervals of a period up to now, the oldest first; those without counts are not in the data.
export function intervals(series, period, now) {
  const { from, seconds } = series;
  const last = Math.floor(now / seconds);
  const offset = from / seconds;
  return Array.from({ length: Math.round(period / seconds) }, (_, place) => {
    const number = last - Math.round(period / seconds) + 1 + place;
    const value = (name) => series[name][number - offset] ?? 0;
    const [requests, pages, errors, waited] = ["requests", "pages", "errors", "waited"].map(value);
    return { at: number * seconds, requests, pages, errors, waited, wait: requests ? waited / requests : 0 };
  });
}

// The end of the vertical axis: a number of one digit and zeros, even so that its half is whole too.
function roundTop(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].map((each) => each * power).find((each) => each >= most * 0.999);
}

export class Plots {
  constructor(root, now) {
    this.now = now;
    this.history = null;
    this.period = "hour";
    this.shown = "";
    const choose = Object.entries(PERIODS).map(([id, { words }]) => h("button", { type: "button", class: "chip", "data-period": id, onclick: () => this.choose(id) }, words[0].toUpperCase() + words.slice(1)));
    this.choices = choose;
    this.note = h("p", { class: "note" });
    this.plots = KINDS.map((kind) => {
      const parts = { kind, sum: h("span", { class: "sum" }), chart: svg("svg", { role: "img", height: HEIGHT }) };
      parts.element = h("figure", { class: "plot", "data-plot": kind.id }, h("figcaption", {}, h("h3", {}, kind.title), parts.sum), parts.chart);
      return parts;
    });
    this.body = h("tbody");
    this.caption = h("caption", { class: "sr" });
    this.details = h("details", { class: "numbers-of" }, h("summary", {}, "The same numbers as a table"),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the history" }, h("table", {}, this.caption,
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "From"), ...KINDS.map((kind) => h("th", { scope: "col", class: "num" }, kind.id === "wait" ? "Average wait" : kind.title)))), this.body)));
    this.details.addEventListener("toggle", () => this.draw());
    this.choices.forEach((each) => mark(each, "aria-pressed", String(each.dataset.period === this.period)));
    root.querySelector(".periods").replaceChildren(...choose);
    const grid = h("div", { class: "plots" }, ...this.plots.map((each) => each.element));
    root.querySelector(".sheet").replaceChildren(grid, this.note, this.details);
    new ResizeObserver(() => this.draw()).observe(grid);
  }

  choose(period) {
    this.period = period;
    for (const each of this.choices) mark(each, "aria-pressed", String(each.dataset.period === period));
    this.draw();
  }

  // Show a history; null shows empty plots of a host without one.
  show(history) {
    this.history = history;
    this.draw();
  }

  draw() {
    const width = Math.floor(this.plots[0].element.clientWidth);
    const series = this.history?.[this.period];
    if (!series || !width) return;
    const { seconds, words } = PERIODS[this.period];
    const found = intervals(series, seconds, this.now());
    const key = JSON.stringify([found, width, this.details.open]);
    if (key === this.shown) return;
    this.shown = key;
    for (const each of this.plots) drawPlot(each, found, series.seconds, width, this.period);
    put(this.note, `Each bar counts what was reported ${LENGTHS[series.seconds]}; the last bar is not complete yet. Requests for robots.txt are not counted.`);
    put(this.caption, `History of the ${words}, the latest first`);
    if (!this.details.open) return;
    const busy = found.filter((each) => each.requests || each.pages || each.errors || each.waited).reverse();
    this.body.replaceChildren(...(busy.length ? busy : [null]).map((each) => (each
      ? h("tr", {}, h("th", { scope: "row" }, label(each.at, this.period)), ...KINDS.map((kind) => h("td", { class: "num" }, kind.id === "wait" && !each.requests ? "–" : kind.show(each[kind.id]))))
      : h("tr", {}, h("td", { colspan: "5" }, `Nothing in the ${words}.`)))));
  }
}

const label = (at, period) => (period === "hour" ? time : day).format(at * 1000);

function drawPlot(parts, found, seconds, width, period) {
  const { kind, chart, sum } = parts;
  const { words, step } = PERIODS[period];
  const most = Math.max(...found.map((each) => each[kind.id]));
  const [requests, waited] = ["requests", "waited"].map((name) => found.reduce((all, each) => all + each[name], 0));
  const all = found.reduce((before, each) => before + each[kind.id], 0);
  const said = kind.noun ? `${plural(all, kind.noun)} in the ${words}` : requests ? `${brief(waited / requests)} in the ${words}` : `none in the ${words}`;
  put(sum, said);
  mark(chart, "aria-label", `${kind.title}: ${said}${most ? `, at most ${kind.show(most)} ${LENGTHS[seconds]}` : ""}. The table below has the numbers.`);
  mark(chart, "viewBox", `0 0 ${width} ${HEIGHT}`);
  mark(chart, "width", String(width));
  const bottom = HEIGHT - BOTTOM;
  const top = most ? roundTop(most) : 1;
  const y = (value) => bottom - (value / top) * (bottom - TOP);
  const room = (width - LEFT - RIGHT) / found.length;
  const x = (place) => LEFT + place * room;
  const text = (words, place, height, anchor) => svg("text", { x: place, y: height, "text-anchor": anchor }, words);
  const ticks = !most ? [0] : kind.noun && top === 1 ? [0, 1] : [0, top / 2, top];
  const drawn = ticks.flatMap((value) => [
    svg("line", { class: value ? "grid" : "axis", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    text(value ? kind.show(value) : "0", LEFT - 6, y(value) + 4, "end"),
  ]);
  found.forEach((each, place) => {
    const clock = new Date(each.at * 1000);
    const local = clock.getHours() * 3600 + clock.getMinutes() * 60;
    if (local % step < seconds) {
      drawn.push(svg("line", { class: "axis", x1: x(place), x2: x(place), y1: bottom, y2: bottom + 4 }));
      if (x(place) > LEFT + 4 && x(place) < width - 24) drawn.push(text(time.format(clock), x(place), HEIGHT - 4, "middle"));
    }
    if (each[kind.id]) {
      const height = Math.max(1.5, bottom - y(each[kind.id]));
      const title = svg("title");
      title.textContent = `${label(each.at, period)}: ${kind.noun ? plural(each[kind.id], kind.noun) : brief(each[kind.id])} ${LENGTHS[seconds]}`;
      drawn.push(svg("rect", { class: "bar", x: (x(place) + 0.5).toFixed(1), y: (bottom - height).toFixed(1), width: Math.max(1, room - (room > 4 ? 1.5 : 0.5)).toFixed(1), height: height.toFixed(1) }, title));
    }
  });
  if (!most) drawn.push(text(`none in the ${words}`, LEFT + (width - LEFT - RIGHT) / 2, (bottom + TOP) / 2 + 4, "middle"));
  chart.replaceChildren(...drawn);
}
