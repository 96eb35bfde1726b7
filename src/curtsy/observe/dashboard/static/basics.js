// Words of numbers and times, and elements of the document, for all parts of the page.
//
// Data of sites is inserted as text. No file of the page uses innerHTML, and the content security policy forbids it.

export const words = (table, name) => table[name] ?? String(name).replaceAll("_", " ");
export const plain = new Intl.NumberFormat("en");
export const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const count = (number) => (number < 100000 ? plain.format(number) : short.format(number));
export const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

export function span(seconds) {
  if (seconds < 1) return `${Math.max(0, seconds).toFixed(1)} s`;
  const total = Math.round(seconds);
  if (total < 60) return `${total} s`;
  const minutes = Math.floor(total / 60);
  if (minutes < 60) return `${minutes} min${total % 60 && minutes < 10 ? ` ${total % 60} s` : ""}`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  const days = Math.floor(hours / 24);
  return `${days} day${days > 1 ? "s" : ""}${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

// An estimate: in whole minutes from two minutes on, in whole days from two days on.
export function roughly(seconds) {
  const unit = [86400, 3600, 60].find((each) => seconds >= 2 * each);
  return span(unit ? Math.round(seconds / unit) * unit : seconds);
}

export const brief = (seconds) => (seconds < 0.0005 ? "under 1 ms" : seconds < 1 ? `${Math.round(seconds * 1000)} ms` : seconds < 100 ? `${seconds.toFixed(1)} s` : span(seconds));

export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en", { hourCycle: "h23" });

export function size(bytes) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (bytes < 1024) return unit === "B" || bytes >= 100 ? `${Math.round(bytes)} ${unit}` : `${bytes.toFixed(1)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(1)} TB`;
}

// --- The document ---------------------------------------------------------------------------------------------------

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function put(element, text) {
  text = String(text);
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (element.getAttribute(name) !== value) {
    if (value === null) element.removeAttribute(name);
    else element.setAttribute(name, value);
  }
}

export function meter(share = 0) {
  const bar = h("span");
  const element = h("div", { class: "meter", "aria-hidden": "true" }, bar);
  element.show = (part) => {
    bar.style.width = `${Math.min(100, part * 100)}%`;
    mark(element, "data-tone", part >= 1 ? "bad" : part >= 0.8 ? "warn" : null);
  };
  element.show(share);
  return element;
}

// A bar for comparison, in neutral colours.
export function part(share) {
  const bar = h("span");
  bar.style.width = `${share * 100}%`;
  return h("div", { class: "meter" }, bar);
}

// A rate as a number and its unit: in a minute if it is less than one in a second.
export function rate(perSecond) {
  const [number, unit] = perSecond >= 1 || !perSecond ? [perSecond, "a second"] : [perSecond * 60, "a minute"];
  return [number >= 100 ? count(Math.round(number)) : number >= 10 || !number ? number.toFixed(number && number < 99.95 ? 1 : 0) : number.toFixed(1), unit];
}

export const WINDOW = 60; // seconds of the present rate

// The rate of a growing number over the last minute, or since the epoch second `began` if that is later; null if too few
// samples are known. Each sample begins with its epoch second; `place` is that of the number.
export function recentRate(samples, place, began) {
  const last = samples.at(-1);
  if (!last) return null;
  const isYoung = began > last[0] - WINDOW;
  const first = (isYoung && samples.findLast(([at]) => at <= began)) || samples.find(([at]) => last[0] - at <= WINDOW);
  const seconds = last[0] - (isYoung ? Math.max(first[0], began) : first[0]);
  return seconds >= (isYoung ? 3 : 10) ? Math.max(0, last[place] - first[place]) / seconds : null;
}
