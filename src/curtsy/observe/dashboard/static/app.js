// The page of `curtsy serve`, without a framework or build step.
//
// Data of sites is inserted as text. This file does not use innerHTML, and the content security policy forbids it.
//
// The server sorts, filters and pages the table, and sends a row again only when it has changed. Instants are epoch
// seconds; this file computes the relative times on the screen once a second.

const ROWS = 50;
const WINDOW = 300; // maximum seconds in the small charts
const NOW_AND_THEN = 5000; // milliseconds between two reads of data that seldom changes

const $ = (id) => document.getElementById(id);

// --- Words ----------------------------------------------------------------------------------------------------------

const STATES = {
  open: "Breaker open", trial: "On trial", spent: "Budget used", paused: "Paused", denied: "Denied", resting: "Resting",
  waiting: "Waiting", fetching: "Fetching", free: "Free",
};

const REASONS = {
  invalid_url: "Invalid URL", domain_denied: "On the denylist", path_denied: "Path denied by the settings",
  address_refused: "Private or unreachable address", robots_disallowed: "Disallowed by robots.txt", robots_unreachable: "robots.txt cannot be fetched",
  crawl_delay_too_long: "Crawl-delay too long", domain_budget_exceeded: "Daily limit reached", circuit_open: "Breaker open",
  paused: "Paused by a user", deadline_exceeded: "Deadline too short", not_in_cache: "Not in the cache", closed: "Client closed",
  http_status: "Answered with an error", timeout: "Timed out", dns_error: "Name not found", connection_error: "No connection",
  tls_error: "TLS failed", bad_response: "Invalid HTTP response", incomplete: "Incomplete response", too_large: "Too large",
  too_slow: "Too slow", redirected: "Redirected", too_many_redirects: "Too many redirects", bad_redirect: "Invalid redirect",
  not_written: "Could not be written",
};

const CHECKS = { yes: ["✓", "yes"], no: ["✗", "no"], wait: ["◔", "wait"], unknown: ["?", "unknown"], off: ["–", "not relevant"] };

const words = (table, name) => table[name] ?? String(name).replaceAll("_", " ");
const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (number) => (number < 100000 ? plain.format(number) : short.format(number));
const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

function span(seconds) {
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

const ago = (at) => (now() - at < 2 ? "just now" : `${span(now() - at)} ago`);
const brief = (seconds) => (seconds < 0.0005 ? "under 1 ms" : seconds < 1 ? `${Math.round(seconds * 1000)} ms` : seconds < 100 ? `${seconds.toFixed(1)} s` : span(seconds));

const clock = (at) => new Date(at * 1000).toLocaleTimeString();

function size(bytes) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (bytes < 1024) return unit === "B" || bytes >= 100 ? `${Math.round(bytes)} ${unit}` : `${bytes.toFixed(1)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(1)} TB`;
}

// --- The document ---------------------------------------------------------------------------------------------------

function h(tag, attributes = {}, ...children) {
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

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function put(element, text) {
  text = String(text);
  if (element.textContent !== text) element.textContent = text;
}

function mark(element, name, value) {
  if (element.getAttribute(name) !== value) {
    if (value === null) element.removeAttribute(name);
    else element.setAttribute(name, value);
  }
}

function meter(share = 0) {
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
function part(share) {
  const bar = h("span");
  bar.style.width = `${share * 100}%`;
  return h("div", { class: "meter" }, bar);
}

function badge(state) {
  return h("span", { class: `badge c-${state}` }, words(STATES, state));
}

function say(text) {
  put($("said"), text);
}

// --- Requests to the server ------------------------------------------------------------------------------------------

let session = null;
let skew = 0; // difference between the store's clock and ours

const now = () => Date.now() / 1000 + skew;

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", ...options });
  const found = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(response.status, found.message ?? `The server answered ${response.status}.`);
  return found;
}

async function act(action) {
  const send = () => ask("/api/actions", {
    method: "POST",
    headers: { "content-type": "application/json", "x-curtsy-csrf": session.csrf },
    body: JSON.stringify(action),
  });
  try {
    return await send();
  } catch (error) {
    if (error.status !== 403) throw error;
    session = await ask("/api/session"); // the server was restarted and has a new session
    return send();
  }
}

const stream = {
  source: null,
  path: null,
  take: null,

  open(path, take) {
    this.close();
    this.path = path;
    this.take = take;
    if (document.hidden) return; // opened when the page becomes visible
    const source = new EventSource(path);
    this.source = source;
    source.onmessage = (event) => {
      const news = JSON.parse(event.data);
      if (news.at) skew = news.at - Date.now() / 1000;
      live("live", "Live");
      trouble(news);
      take(news);
    };
    source.onerror = () => {
      live("lost", "Reconnecting");
      if (source.readyState === EventSource.CLOSED) setTimeout(() => source === this.source && start(), 3000);
    };
  },

  close() {
    this.source?.close();
    this.source = null;
  },

  again() {
    if (this.path) this.open(this.path, this.take);
  },
};

function live(state, text) {
  mark($("live"), "data-state", state);
  put($("live-words"), text);
}

function trouble(news) {
  if (!("trouble" in news)) return;
  $("trouble").hidden = !news.trouble;
  put($("trouble"), news.trouble ? `The store cannot be read: ${news.trouble}` : "");
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream.close(); // a hidden page costs nothing
    live("connecting", "Asleep");
  } else stream.again();
});

// --- Overview: figures ----------------------------------------------------------------------------------------------

const FIGURES = [
  { id: "requests", title: "Requests", of: 1, unit: "a second" },
  { id: "pages", title: "Pages", of: 2, unit: "a second" },
  { id: "cache", title: "From the cache", of: 4 },
  { id: "refused", title: "Refused", of: 3, tone: "warn" },
  { id: "latency", title: "Response time" },
  { id: "hosts", title: "Hosts" },
];

let samples = [];
let figures = {};
const tiles = {};

function makeFigures() {
  for (const each of FIGURES) {
    const value = h("p", { class: "value" });
    const under = h("p", { class: "under" });
    const tile = h("article", { class: "figure", "data-tone": each.tone, id: `figure-${each.id}` }, h("h3", {}, each.title), value, under);
    const parts = { tile, value, under };
    if (each.of) {
      parts.area = svg("path", { class: "spark-area" });
      parts.line = svg("path", { class: "spark-line" });
      parts.chart = svg("svg", { viewBox: "0 0 300 46", preserveAspectRatio: "none", role: "img" }, parts.area, parts.line);
      tile.append(parts.chart);
    } else if (each.id === "hosts") {
      parts.bar = h("div", { class: "states", "aria-hidden": "true" });
      tile.append(parts.bar);
    }
    tiles[each.id] = parts;
    $("figures").append(tile);
  }
}

// The rate over the seconds before each sample: processes publish their counts only every few seconds.
function rates(of, over) {
  const found = [];
  let first = 0;
  for (let last = 1; last < samples.length; last++) {
    while (first < last - 1 && samples[last][0] - samples[first][0] > over) first++;
    const seconds = samples[last][0] - samples[first][0];
    if (seconds > 0) found.push([samples[last][0], Math.max(0, samples[last][of] - samples[first][of]) / seconds]);
  }
  return found;
}

function spark(parts, points, title) {
  const end = samples.at(-1)?.[0] ?? 0;
  const window = Math.min(WINDOW, Math.max(30, end - (points[0]?.[0] ?? end)));
  const seen = points.filter(([at]) => end - at <= window);
  const peak = Math.max(0, ...seen.map(([, value]) => value));
  const top = peak || 1;
  const dots = seen.map(([at, value]) => `${(300 - ((end - at) / window) * 300).toFixed(1)},${(44 - (value / top) * 38).toFixed(1)}`);
  mark(parts.line, "d", dots.length > 1 ? `M${dots.join("L")}` : "");
  const from = dots[0]?.split(",")[0];
  mark(parts.area, "d", dots.length > 1 ? `M${from},46L${dots.join("L")}L300,46Z` : "");
  const last = seen.at(-1)?.[1] ?? 0;
  mark(parts.chart, "aria-label", `${title} a second, over the last minutes: now ${last.toFixed(2)}, at most ${peak.toFixed(2)}`);
  return last;
}

function figure(value, unit) {
  return unit ? [document.createTextNode(value), h("small", {}, ` ${unit}`)] : [document.createTextNode(value)];
}

function big(id, value, unit, under) {
  const parts = tiles[id];
  const text = unit ? `${value} ${unit}` : value;
  if (parts.value.textContent !== text) parts.value.replaceChildren(...figure(value, unit));
  put(parts.under, under);
}

const perSecond = (rate) => (rate >= 100 ? count(Math.round(rate)) : rate >= 10 ? rate.toFixed(1) : rate.toFixed(2));

function drawFigures() {
  const requests = spark(tiles.requests, rates(1, 6), "Requests");
  const pages = spark(tiles.pages, rates(2, 6), "Pages");
  spark(tiles.cache, rates(4, 20), "Answers from the cache");
  spark(tiles.refused, rates(3, 20), "Refusals");
  const refused = Object.values(figures.refused ?? {}).reduce((sum, each) => sum + each, 0);
  const cached = (figures.cache_hits ?? 0) + (figures.revalidated ?? 0);
  // The sums of a part of the hosts would mislead.
  const charged = (number) => (figures.listed < figures.hosts ? "" : `${count(number ?? 0)} charged today, `);
  big("requests", perSecond(requests), "/s", `${charged(figures.requests_today)}${count(samples.at(-1)?.[6] ?? 0)} in flight`);
  big("pages", perSecond(pages), "/s", `${charged(figures.pages_today)}${size(figures.bytes ?? 0)} in all`);
  big("cache", count(cached), "", figures.ok ? `${Math.round((100 * cached) / figures.ok)} % of what succeeded` : "nothing yet");
  big("refused", count(refused), "", figures.fetches ? `of ${plural(figures.fetches, "fetch", "fetches")}` : "nothing yet");
  const latency = figures.latency;
  const waits = figures.waits ? `, in line for ${brief(figures.waits.median)}` : "";
  big("latency", latency ? brief(latency.median) : "–", "", latency ? `95 % within ${brief(latency.p95)}${waits}` : "nothing measured yet");
  const states = figures.states ?? {};
  const open = (states.open ?? 0) + (states.trial ?? 0);
  mark(tiles.hosts.tile, "data-tone", open ? "bad" : null);
  big("hosts", count(figures.hosts ?? 0), "", open ? `${plural(open, "breaker")} open` : "all breakers closed");
  const shown = Object.entries(states);
  const bar = tiles.hosts.bar;
  if (bar.dataset.shown !== JSON.stringify(shown)) {
    bar.dataset.shown = JSON.stringify(shown);
    bar.replaceChildren(...shown.map(([state, number]) => {
      const stretch = h("span", { class: `c-${state}`, title: `${words(STATES, state)}: ${count(number)}` });
      stretch.style.flexGrow = number;
      return stretch;
    }));
  }
}

function reasons(into, found, none) {
  const entries = Object.entries(found ?? {}).sort((one, two) => two[1] - one[1]);
  if (into.dataset.shown === JSON.stringify(entries)) return;
  into.dataset.shown = JSON.stringify(entries);
  if (!entries.length) {
    into.replaceChildren(h("p", { class: "quiet-words" }, none));
    return;
  }
  const most = entries[0][1];
  into.replaceChildren(h("dl", { class: "reasons" }, ...entries.flatMap(([name, number]) => [
    h("dt", { title: name }, words(REASONS, name)),
    h("dd", { "aria-hidden": "true" }, part(number / most)),
    h("dd", { class: "count" }, count(number)),
  ])));
}

// --- Overview: alerts and crawls ------------------------------------------------------------------------------------

let alerts = [];

function drawAlerts(found) {
  const news = found.filter((each) => !alerts.some((other) => other.name === each.name));
  alerts = found;
  $("alerts").hidden = !found.length;
  $("alerts").replaceChildren(...found.map((each) => h("p", { class: `notice ${each.name === "breaker_open" ? "bad" : ""}`, "data-alert": each.name }, each.message)));
  if (news.length) say(`Alert: ${news.map((each) => each.message).join(" ")}`);
}

let crawls = [];

function drawCrawls() {
  $("crawls").hidden = !crawls.length;
  const list = $("crawl-list");
  while (list.children.length > crawls.length) list.lastChild.remove();
  crawls.forEach((crawl, place) => {
    let card = list.children[place];
    if (!card || card.dataset.job !== nameOf(crawl)) {
      const made = makeCrawl(crawl);
      if (card) card.replaceWith(made);
      else list.append(made);
      card = made;
    }
    card.show(crawl);
  });
}

// Two crawls of one process each may use one name; the workers of a shared job are one crawl.
const isShared = (crawl) => crawl.workers.some((each) => each.worker);
const nameOf = (crawl) => (isShared(crawl) ? crawl.job : `${crawl.job} ${crawl.process}`);

const WORKING = { running: "At work", waiting: "Waits", silent: "Silent", stopped: "Stopped", finished: "Finished" };

const inWords = (states) => Object.entries(states).map(([state, number]) => `${count(number)} ${words(WORKING, state).toLowerCase()}`).join(", ");

function makeCrawl(crawl) {
  const parts = { title: h("h3"), seeds: h("span", { class: "seeds" }), left: h("span", { class: "left" }), numbers: h("p", { class: "numbers" }), bar: h("span"), body: h("tbody"), summary: h("summary"), crew: h("tbody"), crewSummary: h("summary"), more: h("p", { class: "more" }) };
  const track = h("div", { class: "track", role: "progressbar", "aria-label": `Progress of ${crawl.job}`, "aria-valuemin": "0", "aria-valuemax": "100" }, parts.bar);
  const details = h("details", {}, parts.summary, h("table", {}, h("thead", {}, h("tr", {}, ...["Host", "State", "Pages", "Queued", "Errors"].map((name, place) => h("th", { scope: "col", class: place > 1 ? "num" : null }, name)))), parts.body));
  const crew = h("details", { class: "crew" }, parts.crewSummary, h("table", {}, h("thead", {}, h("tr", {}, ...["Worker", "State", "Pages", "Pages a second", "Failed", "Last seen"].map((name, place) => h("th", { scope: "col", class: place > 1 ? "num" : null }, name)))), parts.crew), parts.more);
  const card = h("article", { class: "sheet crawl", "data-job": nameOf(crawl) }, h("div", { class: "head" }, parts.title, parts.seeds, parts.left), track, parts.numbers, isShared(crawl) ? crew : null, details);
  card.show = (each) => {
    mark(card, "data-state", each.state);
    put(parts.title, each.job);
    put(parts.seeds, each.seeds.join(", "));
    mark(card, "title", each.process ? `by ${each.process}` : null);
    const done = each.pages + each.cached + each.failed + each.skipped;
    const share = done / Math.max(1, done + each.queued + each.in_flight);
    const is_over = each.state === "finished" || each.state === "stopped";
    const silent = now() - each.updated_at;
    put(parts.left, is_over ? words({ finished: "Finished", stopped: "Stopped" }, each.state)
      : silent > 30 ? `Not heard of for ${span(silent)}`
      : each.seconds_left !== null ? `About ${span(Math.max(0, each.seconds_left - silent))} left`
      : each.waiting_for ? `Waiting: ${each.waiting_for}` : "Running");
    const percent = each.state === "finished" ? 100 : Math.round(share * 100);
    parts.bar.style.width = `${percent}%`;
    mark(track, "aria-valuenow", String(percent));
    const numbers = [[each.pages, "fetched"], [each.cached, "from the cache"], [each.failed, "failed"], [each.skipped, "skipped"], [each.queued, "queued"], [each.in_flight, "under way"]];
    const is_resumed = each.pages_before !== null;
    const text = JSON.stringify([numbers, each.rate, each.bytes, is_resumed]);
    if (parts.numbers.dataset.shown !== text) {
      parts.numbers.dataset.shown = text;
      parts.numbers.replaceChildren(...(is_resumed ? [h("span", {}, "In all runs:")] : []), ...numbers.map(([number, noun]) => h("span", {}, h("b", {}, count(number)), ` ${noun}`)), h("span", {}, h("b", {}, perSecond(each.rate)), " pages a second"), h("span", {}, h("b", {}, size(each.bytes))));
    }
    put(parts.summary, is_resumed ? `Its hosts, in this run: ${plural(each.pages + each.cached - each.pages_before, "page")}` : "Its hosts");
    mark(crew, "data-lost", each.states.silent ? "" : null);
    put(parts.crewSummary, `Its workers: ${inWords(each.states)}`);
    drawWorkers(parts, crew, each);
    details.hidden = !each.hosts.length;
    if (details.open && parts.body.dataset.shown !== JSON.stringify(each.hosts)) {
      parts.body.dataset.shown = JSON.stringify(each.hosts);
      parts.body.replaceChildren(...each.hosts.map(([host, state, pages, queued, , errors]) => h("tr", {}, h("td", { class: "host" }, link(host)), h("td", {}, state), h("td", { class: "num" }, count(pages)), h("td", { class: "num" }, count(queued)), h("td", { class: "num" }, count(errors)))));
    }
  };
  return card;
}

function drawWorkers(parts, crew, { workers, states }) {
  const shown = JSON.stringify(workers.map((each) => ({ ...each, updated_at: Math.floor(now() - each.updated_at) })));
  if (!crew.open || parts.crew.dataset.shown === shown) return;
  parts.crew.dataset.shown = shown;
  parts.crew.replaceChildren(...workers.map((each) => h("tr", { "data-state": each.state },
    h("td", { class: "host" }, h("b", {}, each.process), h("small", {}, each.worker)),
    h("td", {}, h("span", { class: `badge c-${{ running: "free", waiting: "waiting", silent: "open" }[each.state] || "denied"}` }, words(WORKING, each.state))),
    h("td", { class: "num", "data-name": "pages" }, count(each.pages)),
    h("td", { class: "num", "data-name": "a second" }, perSecond(each.rate)),
    h("td", { class: "num", "data-name": "failed" }, count(each.failed)),
    h("td", { class: "num seen" }, `${span(Math.max(0, now() - each.updated_at))} ago`))));
  const more = Object.values(states).reduce((sum, each) => sum + each, 0) - workers.length;
  put(parts.more, more > 0 ? `and ${plural(more, "more worker")}` : "");
}

// --- Overview: the table of hosts -----------------------------------------------------------------------------------

const COLUMNS = [
  { id: "host", title: "Host" },
  { id: "state", title: "State" },
  { id: "next", title: "Next", num: true },
  { id: "budget", title: "Budget today", first: "desc" },
  { id: "requests", title: "Requests", num: true, first: "desc" },
  { id: "pages", title: "Pages", num: true, first: "desc" },
  { id: "latency", title: "Answers in", num: true, first: "desc" },
  { id: "asked", title: "Last request", num: true, first: "desc" },
];

const query = { sort: "state", order: "asc", search: "", state: "", offset: 0 };
const rows = new Map();
let order = [];
let matching = 0;

const link = (domain) => h("a", { href: `#/host/${encodeURIComponent(domain)}` }, domain);

function makeTable() {
  for (const column of COLUMNS) {
    const arrow = h("span", { class: "arrow", "aria-hidden": "true" });
    const head = h("th", { role: "columnheader", scope: "col", class: `col-${column.id}${column.num ? " num" : ""}` }, h("button", { type: "button", id: `sort-${column.id}`, onclick: () => sortBy(column) }, column.title, arrow));
    column.head = head;
    column.arrow = arrow;
    $("hosts-head").append(head);
  }
  markSort();
}

function markSort() {
  for (const column of COLUMNS) {
    const is_sorted = column.id === query.sort;
    mark(column.head, "aria-sort", is_sorted ? (query.order === "asc" ? "ascending" : "descending") : null);
    put(column.arrow, is_sorted ? (query.order === "asc" ? "▲" : "▼") : "");
  }
}

function sortBy(column) {
  if (query.sort === column.id) query.order = query.order === "asc" ? "desc" : "asc";
  else Object.assign(query, { sort: column.id, order: column.first ?? "asc" });
  query.offset = 0;
  markSort();
  openOverview();
  say(`Sorted by ${column.title}, ${query.order === "asc" ? "ascending" : "descending"}.`);
}

// Charges of a budget: only processes with a limit charge their requests.
const budget = (charged, limit) => (limit ? `${count(charged)} of ${count(limit)}` : charged ? `${count(charged)}, no limit` : "no limit");

function makeRow(domain) {
  const parts = { state: h("span"), why: h("span", { class: "why" }), next: h("span"), bar: meter(), spent: h("span"), requests: h("span"), pages: h("span"), latency: h("span"), asked: h("span"), mark: h("span", { class: "mark" }) };
  const cell = (id, num, ...children) => h("td", { role: "cell", class: `col-${id}${num ? " num" : ""}` }, ...children);
  const host = h("td", { role: "cell", class: "host col-host" }, link(domain), parts.mark);
  const element = h("tr", { role: "row", "data-domain": domain }, host,
    cell("state", false, parts.state, parts.why), cell("next", true, parts.next), cell("budget", false, h("div", { class: "budget" }, parts.bar, parts.spent)),
    cell("requests", true, parts.requests), cell("pages", true, parts.pages), cell("latency", true, parts.latency), cell("asked", true, parts.asked));
  return { element, parts, row: null };
}

function showRow(entry, row) {
  const { element, parts } = entry;
  const before = entry.row;
  entry.row = row;
  mark(element, "data-state", row.state);
  put(parts.state, words(STATES, row.state));
  mark(parts.state, "class", `badge c-${row.state}`);
  put(parts.mark, row.changed ? "limit changed" : "");
  const limit = row.max_requests_per_day || row.max_pages_per_day;
  const by_pages = row.max_pages_per_day && (!row.max_requests_per_day || row.pages_today / row.max_pages_per_day > row.requests_today / row.max_requests_per_day);
  parts.bar.show(by_pages ? row.pages_today / row.max_pages_per_day : limit ? row.requests_today / row.max_requests_per_day : 0);
  put(parts.spent, by_pages ? `${count(row.pages_today)} of ${count(row.max_pages_per_day)} pages` : budget(row.requests_today, row.max_requests_per_day));
  put(parts.requests, count(row.requests));
  put(parts.pages, count(row.pages));
  put(parts.latency, row.latency === null ? "–" : brief(row.latency));
  tickRow(entry);
  if (before && before.state !== row.state && (row.state === "open" || before.state === "open")) {
    say(`${row.domain}: ${row.state === "open" ? "breaker open" : words(STATES, row.state)}`);
  }
}

// Values that change with time alone.
function tickRow({ row, parts }) {
  const left = row.until === null ? null : row.until - now();
  put(parts.next, row.state === "free" || row.state === "fetching" || (left !== null && left <= 0) ? "now" : left !== null ? `in ${span(left)}` : row.state === "trial" ? "one request" : "–");
  put(parts.why, row.state === "open" && row.last_status ? `after ${row.last_status}` : row.state === "resting" ? "Retry-After, or a failure" : row.failures ? plural(row.failures, "failure") : "");
  put(parts.asked, row.last_asked === null ? "never" : ago(row.last_asked));
}

function drawTable(news) {
  if (news.order) order = news.order;
  if ("matching" in news) matching = news.matching;
  if ("offset" in news) query.offset = news.offset;
  for (const row of news.rows ?? []) {
    if (!rows.has(row.domain)) rows.set(row.domain, makeRow(row.domain));
    showRow(rows.get(row.domain), row);
  }
  if (news.order) {
    const body = $("hosts-body");
    const wanted = new Set(order);
    for (const [domain, entry] of rows) {
      if (!wanted.has(domain)) {
        entry.element.remove();
        rows.delete(domain);
      }
    }
    let place = body.firstElementChild;
    for (const domain of order) { // rows in the right place are not touched, to keep the focus
      const element = rows.get(domain)?.element;
      if (!element) continue;
      if (element === place) place = place.nextElementSibling;
      else body.insertBefore(element, place);
    }
  }
  drawPager();
}

function drawPager() {
  const total = figures.hosts ?? 0;
  const last = Math.min(query.offset + ROWS, matching);
  const listed = figures.listed ?? total;
  const found = query.search || query.state ? `${count(matching)} of ${plural(total, "host")}` : listed < total ? `${plural(listed, "listed host")}, used last or in trouble; search finds every host of ${count(total)}` : plural(total, "host");
  put($("hosts-note"), matching ? `${count(query.offset + 1)}–${count(last)} of ${found}` : found);
  $("previous").disabled = query.offset === 0;
  $("next").disabled = last >= matching;
  document.querySelector("#overview .pager div").hidden = matching <= ROWS && query.offset === 0;
  $("hosts-empty").hidden = matching > 0;
  put($("hosts-empty"), query.search || query.state ? "No host matches." : "No host is known yet. Hosts appear here after their first request.");
}

function drawChips() {
  const states = figures.states ?? {};
  const shown = JSON.stringify([states, query.state]);
  if ($("chips").dataset.shown === shown) return;
  const focused = document.activeElement?.dataset?.chip;
  $("chips").dataset.shown = shown;
  const wanted = Object.keys(STATES).filter((state) => states[state] || query.state === state);
  $("chips").replaceChildren(...wanted.map((state) => h("button", { type: "button", class: `chip c-${state}`, "data-chip": state, "aria-pressed": String(query.state === state), onclick: () => only(state) }, `${words(STATES, state)} ${count(states[state] ?? 0)}`)));
  if (focused) document.querySelector(`[data-chip="${focused}"]`)?.focus();
}

function only(state) {
  query.state = query.state === state ? "" : state;
  query.offset = 0;
  drawChips();
  openOverview();
}

function openOverview() {
  const { sort, order: direction, search, state, offset } = query;
  const parameters = new URLSearchParams({ sort, order: direction, search, state, offset, limit: ROWS });
  let is_first = true;
  stream.open(`/api/stream?${parameters}`, (news) => {
    if (is_first) samples = [];
    is_first = false;
    if (news.samples) samples = [...samples, ...news.samples].slice(-600);
    if (news.figures) figures = news.figures;
    if (news.figures || news.samples) drawFigures();
    if (news.figures) {
      drawChips();
      reasons($("refused"), figures.refused, "No fetch was refused.");
      reasons($("failed"), figures.failed, "No fetch has failed.");
    }
    if (news.alerts) drawAlerts(news.alerts);
    if (news.crawls) {
      crawls = news.crawls;
      drawCrawls();
    }
    drawTable(news);
  });
}

// --- One host -------------------------------------------------------------------------------------------------------

let host = null; // data of the displayed host
let known_at = 0; // last read of the data that seldom changes

async function openHost(domain) {
  stream.close();
  stream.path = null;
  host = { domain };
  $("host-title").textContent = domain;
  $("host-state").replaceChildren();
  for (const id of ["host-words", "act-said"]) put($(id), "");
  for (const id of ["facts", "fetches", "robots", "policy", "timeline"]) $(id).replaceChildren();
  $("limit-form").hidden = true;
  mark($("limit-open"), "aria-expanded", "false");
  if ((await readHost(domain)) && host?.domain === domain) {
    stream.open(`/api/stream?${new URLSearchParams({ host: domain })}`, (news) => {
      const is_new = news.fetches && JSON.stringify(news.fetches) !== JSON.stringify(host.fetches);
      Object.assign(host, news);
      drawHost();
      if (is_new && Date.now() - known_at > NOW_AND_THEN) readHost(domain);
    });
  }
}

async function readHost(domain) {
  known_at = Date.now();
  try {
    const found = await ask(`/api/host?${new URLSearchParams({ domain })}`);
    if (host?.domain !== domain) return false;
    skew = found.at - Date.now() / 1000;
    Object.assign(host, found);
    drawHost();
    drawRobots();
    drawPolicy();
    return true;
  } catch (error) {
    failed(error, $("host-words"));
    return false;
  }
}

function fact(title, value, under, share) {
  return h("div", { class: "fact" }, h("h3", {}, title), h("p", {}, value), under ? h("small", {}, under) : null, share === undefined ? null : meter(share));
}

function drawHost() {
  const { view, row } = host;
  if (!view) return;
  put($("host-title"), host.domain);
  const state = $("host-state");
  if (state.dataset.state !== row.state) {
    state.dataset.state = row.state;
    state.replaceChildren(badge(row.state));
  }
  drawHostTimes();
  $("act-reset").disabled = view.breaker === "closed" && row.state !== "resting" && !view.adapted_delay && !view.failures;
  $("act-resume").hidden = !view.paused;
  $("pause-group").hidden = view.paused;
  const names = $("limit-name");
  if (!names.children.length) names.append(...host.overridable.map((name) => h("option", { value: name }, name)));
  $("limit-back").hidden = !Object.keys(view.changed_limits).length;
  drawFetches();
  $("host-refused-part").hidden = !Object.keys(host.counts?.refused ?? {}).length;
  reasons($("host-refused"), host.counts?.refused, "");
}

function drawHostTimes() {
  const { view, row } = host;
  if (!view) return;
  const left = row.until === null ? null : row.until - now();
  const until = left !== null && left > 0 ? span(left) : null;
  const because = host.waiting_for ?? "";
  put($("host-words"), {
    open: `No requests${until ? ` for ${until}` : ""}: it failed, or denied access.`,
    trial: "The next request tests whether it works again.",
    spent: `Daily limit of requests or pages reached. It resets in ${until ?? "a moment"}.`,
    paused: `Paused by a user${until ? ` for ${until}` : ", until it is resumed"}.`,
    denied: "The settings or its Crawl-delay forbid requests.",
    resting: `No requests for ${until ?? "a moment"}: it sent a Retry-After, or failed.`,
    waiting: `The next request is allowed in ${until ?? "a moment"}${because ? `, after ${because}` : ""}.`,
    fetching: "A request is in flight.",
    free: host.known ? "It may be requested now." : "It was never requested.",
  }[row.state]);
  const latency = host.counts?.latency;
  const shown = [
    fact("Budget of requests", budget(row.requests_today, row.max_requests_per_day), `charged today; ${count(row.requests)} sent in total`, row.max_requests_per_day ? row.requests_today / row.max_requests_per_day : 0),
    fact("Budget of pages", budget(row.pages_today, row.max_pages_per_day), `charged today; ${count(row.pages)} received in total`, row.max_pages_per_day ? row.pages_today / row.max_pages_per_day : 0),
    fact("Breaker", view.breaker.replace("_", " "), `${plural(view.failures, "failure")} in a row, ${view.trips ? `opened ${view.trips === 1 ? "once" : `${count(view.trips)} times`}` : "never opened"}`),
    fact("Last request", row.last_asked === null ? "never" : ago(row.last_asked), row.last_status ? `status ${row.last_status}` : ""),
    fact("Response time", view.latency === null ? "–" : brief(view.latency), latency ? `95 % within ${brief(latency.p95)}` : "smoothed"),
    fact("In flight", count(row.in_flight), ""),
    fact("Crawl-delay", view.crawl_delay === null ? "none" : span(view.crawl_delay), "from its robots.txt"),
    fact("Slowed to", view.adapted_delay === null ? "not slowed" : span(view.adapted_delay), view.adapted_delay === null ? "" : "after a 429"),
  ];
  $("facts").replaceChildren(...shown);
}

function outcome(fetch) {
  if (fetch.reason) {
    const refused = ["domain_denied", "path_denied", "address_refused", "robots_disallowed", "robots_unreachable", "crawl_delay_too_long", "domain_budget_exceeded", "circuit_open", "paused", "deadline_exceeded", "not_in_cache", "closed", "invalid_url"];
    return [refused.includes(fetch.reason) ? "refused" : "failed", fetch.reason === "http_status" && fetch.status ? `Answered ${fetch.status}` : words(REASONS, fetch.reason)];
  }
  if (fetch.cache) return ["cache", words({ hit: "From the cache", revalidated: "Unchanged, from the cache", stale: "Old copy, from the cache" }, fetch.cache)];
  return ["ok", `${fetch.status ?? ""} fetched`.trim()];
}

function target(url) {
  const rest = url.slice(url.indexOf("://") + 3);
  const slash = rest.indexOf("/");
  return slash < 0 ? url : rest.slice(slash);
}

function drawFetches() {
  const fetches = host.fetches ?? [];
  $("fetches-empty").hidden = fetches.length > 0;
  $("fetches-table").hidden = $("timeline").hidden = !fetches.length;
  const shown = JSON.stringify(fetches);
  if ($("fetches").dataset.shown === shown && $("fetches").children.length) return;
  $("fetches").dataset.shown = shown;
  $("fetches").replaceChildren(...fetches.map((fetch) => {
    const [tone, text] = outcome(fetch);
    return h("tr", { role: "row" },
      h("td", { role: "cell", "data-at": fetch.at }, ""),
      h("td", { role: "cell", class: "page-cell" }, h("a", { class: "url", href: `#/why?url=${encodeURIComponent(fetch.url)}`, title: fetch.url }, target(fetch.url))),
      h("td", { role: "cell" }, h("span", { class: `t-${tone}` }, text)),
      h("td", { role: "cell", class: "num waited" }, brief(fetch.waited)),
      h("td", { role: "cell", class: "num" }, brief(fetch.took - fetch.waited)),
      h("td", { role: "cell", class: "num size" }, fetch.bytes ? size(fetch.bytes) : "–"));
  }));
  tickFetches();
  drawTimeline(fetches);
}

function tickFetches() {
  for (const cell of document.querySelectorAll("#fetches [data-at]")) put(cell, ago(cell.dataset.at));
}

// One stem per fetch: its position is the end of the fetch, its height the square root of the duration.
function drawTimeline(fetches) {
  if (!fetches.length) return;
  const first = fetches.at(-1).at;
  const last = fetches[0].at;
  const range = Math.max(1, last - first);
  const longest = Math.max(0.05, ...fetches.map((fetch) => fetch.took - fetch.waited));
  const marks = fetches.flatMap((fetch) => {
    const [tone, text] = outcome(fetch);
    const x = 10 + ((fetch.at - first) / range) * 980;
    const y = 82 - Math.sqrt(Math.max(0, fetch.took - fetch.waited) / longest) * 64 - 4;
    const title = svg("title");
    title.textContent = `${target(fetch.url)}: ${text}`;
    const top = svg("line", { class: `tl-dot t-${tone}`, x1: x, x2: x, y1: y, y2: y, "stroke-width": 9, "stroke-linecap": "round", "vector-effect": "non-scaling-stroke" }, title);
    return [svg("line", { class: `tl-stem t-${tone}`, x1: x, x2: x, y1: 84, y2: y }), top];
  });
  const label = `Timeline of the last ${plural(fetches.length, "fetch", "fetches")} over ${span(range)}; the table below says the same`;
  $("timeline").replaceChildren(
    svg("svg", { viewBox: "0 0 1000 96", preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("line", { class: "tl-axis", x1: 0, x2: 1000, y1: 84, y2: 84 }), ...marks),
    h("div", { class: "legend", "aria-hidden": "true" }, h("span", {}, clock(first)), h("span", {}, `the tallest took ${brief(longest)}`), h("span", {}, clock(last))));
}

function drawRobots() {
  const found = host.robots ?? [];
  const shown = JSON.stringify(found.map((each) => [each.origin, each.asked_at, each.note, each.lines.map((line) => line.decided)]));
  if ($("robots").dataset.shown === shown && $("robots").children.length) return;
  $("robots").dataset.shown = shown;
  if (!found.length) {
    $("robots").replaceChildren(h("div", { class: "sheet" }, h("p", { class: "empty" }, "It is unknown. It is requested before the first page.")));
    return;
  }
  $("robots").replaceChildren(...found.map((each) => h("article", { class: "sheet robots" },
    h("header", {}, h("b", {}, `${each.origin}/robots.txt`), h("span", {}, each.note), each.lines.length ? h("span", {}, `Stronger lines are for ${each.agent}; marked ones decided about a recent fetch.`) : null),
    each.lines.length ? h("ol", { tabindex: "0", "aria-label": `Lines of ${each.origin}/robots.txt` }, ...each.lines.map((line) => h("li", { class: `${line.ours ? "ours" : ""}${line.decided.length ? " decided" : ""}` || null, "data-line": line.line },
      h("i", {}, String(line.line)), h("span", {}, line.text || " "), line.decided.length ? h("em", {}, `decided ${line.decided.join(", ")}`) : null))) : null,
    each.left_out ? h("p", { class: "empty" }, `${plural(each.left_out, "more line")}, not shown.`) : null)));
}

function drawPolicy() {
  const all = $("policy-all").checked;
  const changed = host.view?.changed_limits ?? {};
  const value = (each) => (each === null ? "none" : Array.isArray(each) ? each.join(", ") || "none" : each === true ? "yes" : each === false ? "no" : String(each));
  const shown = (host.policy ?? []).filter((each) => all || each.origin !== "built-in" || each.name in changed);
  $("policy-empty").hidden = shown.length > 0;
  $("policy-table").hidden = !shown.length;
  $("policy").replaceChildren(...shown.map((each) => {
    const by_hand = each.name in changed;
    return h("tr", { role: "row", class: by_hand ? "by-hand" : null }, h("td", { role: "cell" }, each.name), h("td", { role: "cell" }, by_hand ? value(changed[each.name]) : value(each.value)),
      h("td", { role: "cell" }, by_hand ? `changed by a user; else ${value(each.value)} by ${each.origin}` : each.origin));
  }));
}

let is_busy = false;

async function intervene(action, said) {
  if (is_busy) return;
  is_busy = true;
  try {
    Object.assign(host, await act({ ...action, domain: host.domain }));
    mark($("act-said"), "data-tone", null);
    put($("act-said"), said);
    drawHost();
    drawPolicy();
    const focused = document.activeElement; // the action may have removed the button
    if (focused === document.body || focused.disabled || focused.offsetParent === null) $("host-title").focus();
  } catch (error) {
    failed(error, $("act-said"));
  }
  is_busy = false;
}

function failed(error, where) {
  if (error.status === 401) return show("login");
  mark(where, "data-tone", "bad");
  put(where, error.message);
}

// --- Why ------------------------------------------------------------------------------------------------------------

async function openWhy(url) {
  stream.close();
  stream.path = null;
  live("live", "Ready");
  $("why-url").value = url;
  $("why-answer").replaceChildren();
  if (!url) return;
  try {
    const found = await ask(`/api/why?${new URLSearchParams({ url })}`);
    const kind = found.verdict === "allowed" && found.allowed_in ? "later" : found.verdict;
    const titles = { allowed: "Yes, now", later: "Yes, but not yet", cached: "Yes, from the cache", refused: "No", unknown: "Not known yet" };
    const message = found.message.startsWith("http") ? found.message : found.message.charAt(0).toUpperCase() + found.message.slice(1);
    $("why-answer").replaceChildren(
      h("div", { class: `verdict v-${kind}` }, h("h2", {}, titles[kind]), h("p", {}, message), h("p", { class: "mono" }, found.url), h("p", { class: "quiet-words" }, `as ${found.user_agent}. `, link(found.domain))),
      h("ul", { class: "checks sheet" }, ...found.checks.map((check) => h("li", { "data-state": check.state, "data-check": check.name },
        h("span", { class: "sign", role: "img", "aria-label": CHECKS[check.state][1] }, CHECKS[check.state][0]), h("b", {}, check.name), h("span", { class: "says" }, check.says),
        check.origin && check.origin !== "built-in" ? h("span", { class: "from" }, check.origin) : null))));
  } catch (error) {
    if (error.status === 401) return show("login");
    $("why-answer").replaceChildren(h("div", { class: "verdict v-refused" }, h("h2", {}, "Invalid URL"), h("p", {}, error.message)));
  }
}

// --- Navigation ----------------------------------------------------------------------------------------------------

function show(page, title) {
  for (const each of ["overview", "host", "why", "login"]) $(each).hidden = each !== page;
  for (const each of document.querySelectorAll(".top nav a")) mark(each, "aria-current", each.dataset.page === page ? "page" : null);
  document.title = title ? `${title} · curtsy` : "curtsy";
  document.querySelector(".top nav").hidden = page === "login";
  if (page === "login") {
    stream.close();
    stream.path = null;
    live("connecting", "Not logged in");
  }
}

let is_moved = false;

function route() {
  if (session === null) return;
  const [path, parameters] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean);
  if (parts[0] === "host" && parts[1]) {
    let domain = parts[1];
    try { domain = decodeURIComponent(parts[1]); } catch { /* as it is, then */ }
    show("host", domain);
    openHost(domain);
  } else if (parts[0] === "why") {
    const url = new URLSearchParams(parameters ?? "").get("url") ?? "";
    show("why", "Why?");
    openWhy(url);
  } else {
    host = null;
    show("overview");
    openOverview();
  }
  if (is_moved) {
    window.scrollTo(0, 0);
    document.querySelector(".page:not([hidden]) h1")?.focus();
  }
  is_moved = true;
}

async function start() {
  try {
    session = await ask("/api/session");
    put($("foot"), `curtsy ${session.version}, watching ${session.store}, as ${session.user_agent}`);
    route();
  } catch (error) {
    if (error.status === 401) {
      show("login", "Log in");
      $("login-token").focus();
    } else {
      live("lost", "Reconnecting");
      setTimeout(start, 3000);
    }
  }
}

// --- Actions ----------------------------------------------------------------------------------------------------------

let typing = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    query.search = $("search").value.trim();
    query.offset = 0;
    openOverview();
  }, 150);
});
$("previous").addEventListener("click", () => { query.offset = Math.max(0, query.offset - ROWS); openOverview(); });
$("next").addEventListener("click", () => { query.offset += ROWS; openOverview(); });
$("act-reset").addEventListener("click", () => intervene({ action: "reset" }, "The breaker is closed."));
$("act-resume").addEventListener("click", () => intervene({ action: "resume" }, "It is resumed."));
$("act-pause").addEventListener("click", () => {
  const seconds = $("pause-for").value;
  intervene({ action: "pause", seconds: seconds ? Number(seconds) : null }, "It is paused.");
});
$("limit-open").addEventListener("click", () => {
  $("limit-form").hidden = !$("limit-form").hidden;
  mark($("limit-open"), "aria-expanded", String(!$("limit-form").hidden));
  if (!$("limit-form").hidden) $("limit-name").focus();
});
$("limit-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("limit-value").value.trim().replace(",", ".");
  const value = text.toLowerCase() === "none" ? "none" : Number(text);
  if (text === "" || Number.isNaN(value)) return failed(new Error("Give a number, or none."), $("act-said"));
  return intervene({ action: "limit", limits: { [$("limit-name").value]: value } }, "The limit is changed for now.");
});
$("limit-back").addEventListener("click", () => {
  const limits = Object.fromEntries(Object.keys(host.view.changed_limits).map((name) => [name, null]));
  intervene({ action: "limit", limits }, "The settings hold again.");
});
$("policy-all").addEventListener("change", drawPolicy);
$("why-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = `#/why?url=${encodeURIComponent($("why-url").value.trim())}`;
  if (location.hash === wanted) openWhy($("why-url").value.trim());
  else {
    is_moved = false; // the focus stays in the field
    location.hash = wanted;
  }
});
$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("/api/login", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ token: $("login-token").value }) });
    $("login-token").value = "";
    put($("login-said"), "");
    start();
  } catch (error) {
    put($("login-said"), error.message);
    $("login-token").select();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName) && !$("overview").hidden) {
    event.preventDefault();
    $("search").focus();
  }
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
window.addEventListener("hashchange", route);
setInterval(() => {
  if (document.hidden) return;
  if (!$("overview").hidden) {
    for (const entry of rows.values()) tickRow(entry);
    drawCrawls();
  } else if (!$("host").hidden && host?.view) {
    drawHostTimes();
    tickFetches();
  }
}, 1000);

makeFigures();
makeTable();
start();
