// The page of `curtsy serve`, without a framework or build step.
//
// The server sorts, filters and pages the table, and sends a row again only when it has changed. Instants are epoch
// seconds; this file computes the relative times on the screen once a second.

const ROWS = 50;
const NOW_AND_THEN = 5000; // milliseconds between two reads of data that seldom changes

import { brief, clock, count, h, mark, meter, part, plural, put, rate, recentRate, roughly, size, span, svg, WINDOW, words } from "./basics.js";
import { Plots, total } from "./plots.js";

const $ = (id) => document.getElementById(id);

// --- Words ----------------------------------------------------------------------------------------------------------

const STATES = {
  open: "Stopped after errors", trial: "Tested again", spent: "Daily limit reached", paused: "Paused", denied: "Not allowed",
  resting: "Backing off", waiting: "Waiting", fetching: "Fetching", free: "Ready",
};

const REASONS = {
  invalid_url: "Invalid URL", domain_denied: "On the denylist", path_denied: "Path denied by the settings",
  address_refused: "Private or unreachable address", robots_disallowed: "Disallowed by robots.txt", robots_unreachable: "robots.txt cannot be fetched",
  crawl_delay_too_long: "Crawl-delay too long", domain_budget_exceeded: "Daily limit reached", circuit_open: "Its host was stopped after errors",
  paused: "Paused by a user", deadline_exceeded: "Deadline too short", not_in_cache: "Not in the cache", closed: "Client closed",
  http_status: "Answered with an error", timeout: "Timed out", dns_error: "Name not found", connection_error: "No connection",
  tls_error: "TLS failed", bad_response: "Invalid HTTP response", incomplete: "Incomplete response", too_large: "Too large",
  too_slow: "Too slow", redirected: "Redirected", too_many_redirects: "Too many redirects", bad_redirect: "Invalid redirect",
  not_written: "Could not be written",
};

const CHECKS = { yes: ["✓", "yes"], no: ["✗", "no"], wait: ["◔", "wait"], unknown: ["?", "unknown"], off: ["–", "not relevant"] };

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
const ago = (at) => (now() - at < 2 ? "just now" : `${span(now() - at)} ago`);

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

const FIGURES = {
  requests: "Requests now", pages: "Pages now", errors: "Errors in the last hour", wait: "Wait of a started fetch",
  cache: "From the cache", hosts: "Hosts",
};

let samples = [];
let figures = {};
let history = null;
const tiles = {};

function makeFigures() {
  for (const [id, title] of Object.entries(FIGURES)) {
    const parts = { value: h("p", { class: "value" }), under: h("p", { class: "under" }) };
    parts.tile = h("article", { class: "figure", id: `figure-${id}` }, h("h3", {}, title), parts.value, parts.under);
    if (id === "hosts") {
      parts.bar = h("div", { class: "states", "aria-hidden": "true" });
      parts.tile.append(parts.bar);
    }
    if (id === "wait") parts.tile.title = "From the start of a fetch to its request. A crawl starts a fetch when its host is due: the time before is in its queue, and does not count.";
    tiles[id] = parts;
    $("figures").append(parts.tile);
  }
}

// The rate over the last minute or since `began`, by the reads of the store since this page or another one is open;
// before there are enough, by the history.
function rateOf(kind, place, began = 0) {
  const found = recentRate(samples, place, began);
  if (found !== null) return found;
  const minute = Math.floor(now() / 60) * 60;
  const at = (from) => history.hour[kind][(from - history.hour.from) / 60] ?? 0;
  const known = now() - Math.max(figures.since, history.hour.from);
  if (known < WINDOW) return (at(minute) + at(minute - 60)) / Math.max(1, known);
  return (at(minute) + at(minute - 60) * (1 - (now() - minute) / 60)) / 60;
}

function big(id, [value, unit], under) {
  const parts = tiles[id];
  const text = unit ? `${value} ${unit}` : value;
  if (parts.value.textContent !== text) parts.value.replaceChildren(value, ...(unit ? [h("small", {}, ` ${unit}`)] : []));
  put(parts.under, under);
}

function drawFigures() {
  const hour = (kind) => total(history.hour, kind, now());
  const [requests, errors] = [hour("requests"), hour("errors")];
  const running = crawls.filter((each) => each.state === "running" || each.state === "waiting");
  // The rate of a crawl is the same on its card: over the last minute, or since its start. So is that of its requests.
  const pages = running.length ? running.reduce((sum, each) => sum + each.rate, 0) : rateOf("pages", 2);
  const flying = samples.at(-1)?.[6] ?? 0;
  const began = Math.min(...running.map((each) => each.started_at)); // infinite without a crawl
  big("requests", rate(rateOf("requests", 1, running.length ? began : 0)), `${count(requests)} in the last hour${flying ? `, ${count(flying)} waiting for an answer` : ""}`);
  big("pages", rate(pages), `${count(hour("pages"))} in the last hour${running.length ? `; ${plural(running.length, "crawl")} now` : ""}`);
  mark(tiles.errors.tile, "data-tone", errors > 0.1 * requests ? "bad" : null);
  big("errors", [count(errors)], errors && requests ? `${((100 * errors) / requests).toFixed(errors * 10 < requests ? 1 : 0)} % of ${plural(requests, "request")}` : requests ? `${plural(requests, "request")} without an error` : "no request in the last hour");
  const answers = figures.latency ? `; then an answer takes ${brief(figures.latency.median)}` : "";
  big("wait", [requests ? brief(hour("waited") / requests) : "–"], requests ? `on average${answers}` : "no request in the last hour");
  const cached = (figures.cache_hits ?? 0) + (figures.revalidated ?? 0);
  big("cache", [figures.ok ? `${Math.round((100 * cached) / figures.ok)} %` : "–"], figures.ok ? `${count(cached)} of ${plural(figures.ok, "page")} needed no new copy` : "no page yet");
  const states = figures.states ?? {};
  const trouble = (states.open ?? 0) + (states.trial ?? 0);
  mark(tiles.hosts.tile, "data-tone", trouble ? "bad" : null);
  const wrong = [[trouble, "stopped after errors"], [states.spent ?? 0, "at the daily limit"], [states.paused ?? 0, "paused"]];
  big("hosts", [count(figures.hosts ?? 0)], wrong.filter(([number]) => number).map(([number, text]) => `${count(number)} ${text}`).join(", ") || (figures.hosts ? "all can be requested" : "none is known yet"));
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

const ALERTS = {
  breaker_open: "Hosts are stopped after errors", many_blocked: "Many requests are not sent, because their hosts are stopped",
  many_trips: "Hosts fail again and again", budget_nearly_used: "Daily limits are nearly reached",
  no_progress: "A crawl makes no progress", dead_workers: "A part of a crawl has ended without a word",
};
const BAD = ["breaker_open", "no_progress", "dead_workers"];
const OPEN_ALERTS = 2; // alerts beyond that are folded
const LONG = 140; // characters of a message; longer ones, which name many hosts, are folded

let alerts = [];

function makeAlert({ name, message }) {
  const open = figures.states?.open ?? 0;
  const title = h("b", {}, name === "breaker_open" && open ? `${plural(open, "host is", "hosts are")} stopped after errors` : words(ALERTS, name));
  const attributes = { class: `notice${BAD.includes(name) ? " bad" : ""}`, "data-alert": name };
  if (message.length <= LONG) return h("div", attributes, title, h("p", {}, message));
  return h("details", attributes, h("summary", {}, title), h("p", {}, message));
}

function drawAlerts(found) {
  const news = found.filter((each) => !alerts.some((other) => other.name === each.name));
  const open = [...$("alerts").querySelectorAll("details[open]")].map((each) => each.dataset.alert);
  alerts = found;
  $("alerts").hidden = !found.length;
  const made = found.map(makeAlert);
  const folded = made.slice(OPEN_ALERTS);
  const more = folded.length > 1 ? [h("details", { class: "folded", "data-alert": "more" }, h("summary", {}, `${plural(folded.length, "more alert")}`), ...folded)] : folded;
  $("alerts").replaceChildren(...made.slice(0, OPEN_ALERTS), ...more);
  for (const each of $("alerts").querySelectorAll("details")) each.open = open.includes(each.dataset.alert);
  if (news.length) say(`Alert: ${news.map((each) => words(ALERTS, each.name)).join(". ")}`);
}

let crawls = [];

const SHOWN_ENDED = 3; // crawls that have ended, beyond which they are folded

const isOver = (crawl) => crawl.state === "finished" || crawl.state === "stopped";

function drawCrawls() {
  $("crawls").hidden = !crawls.length;
  const ended = crawls.filter(isOver);
  const folded = ended.length > SHOWN_ENDED + 1 ? ended.slice(SHOWN_ENDED) : [];
  drawCards($("crawl-list"), crawls.filter((crawl) => !folded.includes(crawl)));
  drawCards($("ended-list"), folded);
  $("ended").hidden = !folded.length;
  put($("ended-words"), `${count(folded.length)} more crawls that have ended`);
}

function drawCards(list, shown) {
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach((crawl, place) => {
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

const WORKING = { running: "At work", waiting: "Waiting", silent: "Silent", stopped: "Stopped", finished: "Finished" };

const inWords = (states) => Object.entries(states).map(([state, number]) => `${count(number)} ${words(WORKING, state).toLowerCase()}`).join(", ");

function makeCrawl(crawl) {
  const parts = { title: h("h3"), seeds: h("span", { class: "seeds" }), left: h("span", { class: "left" }), numbers: h("p", { class: "numbers" }), bar: h("span"), body: h("tbody"), summary: h("summary"), crew: h("tbody"), crewSummary: h("summary"), more: h("p", { class: "more" }), resume: h("div", { class: "resume" }) };
  const track = h("div", { class: "track", role: "progressbar", "aria-label": `Progress of ${crawl.job}`, "aria-valuemin": "0", "aria-valuemax": "100" }, parts.bar);
  const details = h("details", {}, parts.summary, h("table", {}, h("thead", {}, h("tr", {}, ...["Host", "State", "Pages", "Still to do", "Errors"].map((name, place) => h("th", { scope: "col", class: place > 1 ? "num" : null }, name)))), parts.body));
  const crew = h("details", { class: "crew" }, parts.crewSummary, h("table", {}, h("thead", {}, h("tr", {}, ...["Process", "State", "Pages", "Pages a second", "Errors", "Last seen"].map((name, place) => h("th", { scope: "col", class: place > 1 ? "num" : null }, name)))), parts.crew), parts.more);
  const card = h("article", { class: "sheet crawl", "data-job": nameOf(crawl) }, h("div", { class: "head" }, parts.title, parts.seeds, parts.left), track, parts.numbers, parts.resume, isShared(crawl) ? crew : null, details);
  card.show = (each) => {
    mark(card, "data-state", each.state);
    put(parts.title, each.job);
    put(parts.seeds, each.seeds.join(", "));
    mark(card, "title", each.process ? `by ${each.process}` : null);
    const done = each.pages + each.cached + each.failed + each.skipped;
    const share = done / Math.max(1, done + each.queued + each.in_flight);
    const is_over = isOver(each);
    const silent = now() - each.updated_at;
    put(parts.left, is_over ? words({ finished: "Finished", stopped: "Stopped" }, each.state)
      : silent > 30 ? `Not heard of for ${span(silent)}`
      : each.seconds_left !== null ? `About ${span(Math.max(0, each.seconds_left - silent))} left`
        + (each.seconds_left_in_all === null ? "" : ` today, ${roughly(each.seconds_left_in_all)} in all`)
      : each.seconds_left_at_least !== null ? `At least ${roughly(Math.max(1, each.seconds_left_at_least - silent))} left`
      : each.waiting_for ? `Waiting: ${each.waiting_for}` : "Running");
    const percent = each.state === "finished" ? 100 : Math.round(share * 100);
    parts.bar.style.width = `${percent}%`;
    mark(track, "aria-valuenow", String(percent));
    const numbers = [[each.pages, each.pages === 1 ? "page fetched" : "pages fetched"], [each.cached, "from the cache"], [each.failed, each.failed === 1 ? "error" : "errors"], [each.skipped, "skipped"], [each.queued, "still to do"], [each.in_flight, "waiting for an answer"]];
    const is_resumed = each.pages_before !== null;
    const text = JSON.stringify([numbers, each.rate, each.bytes, is_resumed, is_over]);
    if (parts.numbers.dataset.shown !== text) {
      parts.numbers.dataset.shown = text;
      parts.numbers.replaceChildren(...(is_resumed ? [h("span", {}, "In all runs:")] : []), ...numbers.filter(([number], place) => number || !place).map(([number, noun]) => h("span", {}, h("b", {}, count(number)), ` ${noun}`)), ...[is_over ? null : h("span", {}, h("b", {}, rate(each.rate)[0]), ` pages ${rate(each.rate)[1]}`), each.bytes ? h("span", {}, h("b", {}, size(each.bytes))) : null].filter(Boolean));
    }
    drawResume(parts.resume, each, is_over, silent);
    put(parts.summary, is_resumed ? `Its hosts, in this run: ${plural(each.pages + each.cached - each.pages_before, "page")}` : "Its hosts");
    mark(crew, "data-lost", each.states.silent ? "" : null);
    put(parts.crewSummary, `Its processes: ${inWords(each.states)}`);
    drawWorkers(parts, crew, each);
    details.hidden = !each.hosts.length;
    if (details.open && parts.body.dataset.shown !== JSON.stringify(each.hosts)) {
      parts.body.dataset.shown = JSON.stringify(each.hosts);
      parts.body.replaceChildren(...each.hosts.map(([host, state, pages, queued, , errors]) => h("tr", {}, h("td", { class: "host" }, link(host)), h("td", {}, state), h("td", { class: "num" }, count(pages)), h("td", { class: "num" }, count(queued)), h("td", { class: "num" }, count(errors)))));
    }
  };
  return card;
}

const ENDS = {
  max_pages: "It reached its limit of pages. Resume it with a higher limit than in this command:",
  max_time: "It reached its limit of time. Resume it:", max_bytes: "It reached its limit of bytes. Resume it:",
  later: "The rest can be requested later. Resume it then:", not_written: "An output could not be written. Mend that, then resume it:",
};

// How to resume a crawl that ended with something left, or that was killed.
function drawResume(into, { state, ended, is_job, command, job }, is_over, silent) {
  const is_lost = !is_over && silent > 30;
  const shown = state === "stopped" || is_lost ? JSON.stringify([ended, is_job, command, is_lost]) : "";
  if (into.dataset.shown === shown) return;
  into.dataset.shown = shown;
  if (!shown) return into.replaceChildren();
  const why = is_lost ? "It has perhaps been killed. Resume it:" : words({ ...ENDS, "": "It ended by an error. Resume it:", stopped: "It was stopped. Resume it:" }, ENDS[ended] ? ended : ended ? "stopped" : "");
  if (!is_job) return into.replaceChildren(h("p", {}, "It was run without saving its state, so it cannot be resumed."));
  if (!command) return into.replaceChildren(h("p", {}, `${why.replace(/:$/, "")} by the program that started it, with job="${job}".`));
  const copied = async (event) => {
    const button = event.currentTarget;
    await navigator.clipboard.writeText(command);
    put(button, "Copied");
    say("The command is copied.");
  };
  const copy = navigator.clipboard ? h("button", { type: "button", onclick: copied, "aria-label": `Copy the command that resumes ${job}` }, "Copy") : null;
  into.replaceChildren(h("p", {}, why), h("div", { class: "command" }, h("code", {}, command), ...(copy ? [copy] : [])));
}

function drawWorkers(parts, crew, { workers, states }) {
  const shown = JSON.stringify(workers.map((each) => ({ ...each, updated_at: Math.floor(now() - each.updated_at) })));
  if (!crew.open || parts.crew.dataset.shown === shown) return;
  parts.crew.dataset.shown = shown;
  parts.crew.replaceChildren(...workers.map((each) => h("tr", { "data-state": each.state },
    h("td", { class: "host" }, h("b", {}, each.process), h("small", {}, each.worker)),
    h("td", {}, h("span", { class: `badge c-${{ running: "free", waiting: "waiting", silent: "open" }[each.state] || "denied"}` }, words(WORKING, each.state))),
    h("td", { class: "num", "data-name": "pages" }, count(each.pages)),
    h("td", { class: "num", "data-name": "a second" }, each.rate.toFixed(2)),
    h("td", { class: "num", "data-name": "errors" }, count(each.failed)),
    h("td", { class: "num seen" }, `${span(Math.max(0, now() - each.updated_at))} ago`))));
  const more = Object.values(states).reduce((sum, each) => sum + each, 0) - workers.length;
  put(parts.more, more > 0 ? `and ${plural(more, "more process", "more processes")}` : "");
}

// --- Overview: the table of hosts -----------------------------------------------------------------------------------

const COLUMNS = [
  { id: "host", title: "Host" },
  { id: "state", title: "State" },
  { id: "next", title: "Next request", num: true },
  { id: "budget", title: "Used today", first: "desc" },
  { id: "requests", title: "Requests", num: true, first: "desc" },
  { id: "pages", title: "Pages", num: true, first: "desc" },
  { id: "latency", title: "Response time", num: true, first: "desc" },
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
    $("sort-by").append(h("option", { value: column.id }, column.title));
  }
  markSort();
}

function markSort() {
  for (const column of COLUMNS) {
    const is_sorted = column.id === query.sort;
    mark(column.head, "aria-sort", is_sorted ? (query.order === "asc" ? "ascending" : "descending") : null);
    put(column.arrow, is_sorted ? (query.order === "asc" ? "▲" : "▼") : "");
  }
  $("sort-by").value = query.sort;
  put($("sort-order"), query.order === "asc" ? "Ascending ▲" : "Descending ▼");
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
  mark(element, "data-unmeasured", row.latency === null ? "" : null);
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
    say(`${row.domain}: ${words(STATES, row.state)}`);
  }
}

// Values that change with time alone.
function tickRow({ row, parts }) {
  const left = row.until === null ? null : row.until - now();
  put(parts.next, row.state === "free" || row.state === "fetching" || (left !== null && left <= 0) ? "now" : left !== null ? `in ${span(left)}` : row.state === "trial" ? "one request" : "–");
  put(parts.why, row.state === "open" && row.last_status ? `after ${row.last_status}` : row.state === "resting" ? "it asked to, or failed" : row.failures ? `${plural(row.failures, "error")} in a row` : "");
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
  $("hosts-table").hidden = !matching;
  put($("hosts-empty"), query.search || query.state ? "No host matches." : "No host is known yet. Hosts appear here after their first request, such as by: curtsy crawl https://example.org/");
  $("overview").classList.toggle("unused", !total && !figures.fetches);
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
    if (news.history) history = news.history;
    if (news.crawls) {
      crawls = news.crawls;
      drawCrawls();
    }
    if (news.figures || news.samples || news.history || news.crawls) drawFigures();
    if (news.history) plots.show(history);
    if (news.figures) {
      drawChips();
      reasons($("refused"), figures.refused, "Everything was requested.");
      reasons($("failed"), figures.failed, "There were no errors.");
    }
    if (news.alerts) drawAlerts(news.alerts);
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
  drawHistory();
  $("host-refused-part").hidden = !Object.keys(host.counts?.refused ?? {}).length;
  reasons($("host-refused"), host.counts?.refused, "");
}

const OPENED = {
  block: "it denied access", failures: "it failed several times", rest: "it asked for a long pause",
  trial: "the request that tested it failed", user: "a user stopped it",
};

function drawHistory() {
  const found = host.history ?? null;
  document.querySelector("#host-history > .sheet").hidden = document.querySelector("#host-history .periods").hidden = !found;
  $("host-history-none").hidden = Boolean(found);
  hostPlots.show(found);
}

function drawHostTimes() {
  const { view, row } = host;
  if (!view) return;
  const left = row.until === null ? null : row.until - now();
  const until = left !== null && left > 0 ? span(left) : null;
  const because = host.waiting_for ?? "";
  const [opened, status] = (view.opened_by ?? "").split(":");
  put($("host-words"), {
    open: `No requests${until ? ` for ${until}` : ""}: ${words({ ...OPENED, "": "it failed several times, or denied access" }, opened)}${status ? ` (${status.replaceAll("_", " ")})` : ""}.`,
    trial: "The next request tests whether it works again.",
    spent: `Daily limit of requests or pages reached. It resets in ${until ?? "a moment"}.`,
    paused: `Paused by a user${until ? ` for ${until}` : ", until it is resumed"}.`,
    denied: "The settings forbid requests, or its robots.txt wants a longer pause than they allow.",
    resting: `No requests for ${until ?? "a moment"}: it asked for a pause, or failed.`,
    waiting: `The next request is allowed in ${until ?? "a moment"}${because ? `, after ${because}` : ""}.`,
    fetching: "A request waits for its answer.",
    free: host.known ? "It may be requested now." : "It was never requested.",
  }[row.state]);
  const latency = host.counts?.latency;
  const shown = [
    fact("Requests used today", budget(row.requests_today, row.max_requests_per_day), `${count(row.requests)} sent in all`, row.max_requests_per_day ? row.requests_today / row.max_requests_per_day : 0),
    fact("Pages used today", budget(row.pages_today, row.max_pages_per_day), `${count(row.pages)} received in all`, row.max_pages_per_day ? row.pages_today / row.max_pages_per_day : 0),
    fact("Errors in a row", count(view.failures), `breaker ${view.breaker.replace("_", " ")}, ${view.trips ? `opened ${view.trips === 1 ? "once" : `${count(view.trips)} times`}` : "never opened"}`),
    fact("Last request", row.last_asked === null ? "never" : ago(row.last_asked), row.last_status ? `status ${row.last_status}` : ""),
    fact("Response time", view.latency === null ? "–" : brief(view.latency), latency ? `95 % within ${brief(latency.p95)}` : "smoothed"),
    fact("Waiting for an answer", plural(row.in_flight, "request"), ""),
    fact("Pause that it asks for", view.crawl_delay === null ? "none" : span(view.crawl_delay), "Crawl-delay in its robots.txt"),
    fact("Slowed to", view.adapted_delay === null ? "not slowed" : span(view.adapted_delay), view.adapted_delay === null ? "" : "after it answered 429 (too many requests)"),
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
$("sort-by").addEventListener("change", () => sortBy(COLUMNS.find((each) => each.id === $("sort-by").value)));
$("sort-order").addEventListener("click", () => sortBy(COLUMNS.find((each) => each.id === query.sort)));
$("previous").addEventListener("click", () => { query.offset = Math.max(0, query.offset - ROWS); openOverview(); });
$("next").addEventListener("click", () => { query.offset += ROWS; openOverview(); });
$("act-reset").addEventListener("click", () => intervene({ action: "reset" }, "Its errors are forgotten; it may be requested again."));
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
    plots.draw();
  } else if (!$("host").hidden && host?.view) {
    drawHostTimes();
    tickFetches();
    hostPlots.draw();
  }
}, 1000);

const plots = new Plots($("history"), now);
const hostPlots = new Plots($("host-history"), now);
makeFigures();
makeTable();
start();
