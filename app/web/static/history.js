// Shares over time: from /v1/usage for a chosen range, or from the states that this page received.

import { cell, make, say, table } from "./dom.js";
import { day, number, percent, time } from "./words.js";
import uPlot from "/static/vendor/uplot/uPlot.esm.js";

const LIVE = "live";
const RANGES = [
  [LIVE, "Since you came"],
  ["3600", "1 hour"],
  ["86400", "1 day"],
  ["604800", "7 days"],
];
const FIRST = "3600";
const STEPS = 120;
const MOST_POINTS = 3600;
const MOST_LINES = 8;
const MOST_NAMED = 50;
const AGAIN = 60_000;
const HEIGHT = 240;

/** Return the dominant share of resource-seconds by pool, relative to `seconds` of all pools. */
export function shareOf(byPool, pools, seconds) {
  const taken = {};
  const whole = {};
  for (const pool of pools) {
    for (const [resource, capacity] of Object.entries(pool.capacity)) {
      const worth = number(pool.weights[resource] ?? "1");
      const used = Number(byPool[pool.name]?.[resource] ?? 0);
      taken[resource] = (taken[resource] ?? 0) + worth * used;
      whole[resource] = (whole[resource] ?? 0) + worth * number(capacity) * seconds;
    }
  }
  return Math.max(0, ...Object.keys(taken).map((key) => (whole[key] ? taken[key] / whole[key] : 0)));
}

export class History {
  /** `ask(path)` requests a path of the API as the caller. */
  constructor(place, ask) {
    this.place = place;
    this.ask = ask;
    this.forget();
  }

  forget() {
    this.chart?.destroy();
    this.chart = this.drawn = null;
    this.seen = [];
    this.asked = null;
    this.range = FIRST;
    this.chosen = false;
    this.state = this.hello = null;
    this.place.replaceChildren();
  }

  greet(hello) {
    this.hello = hello;
    if (this.place.firstChild) return;
    this.buttons = RANGES.map(([range, name]) =>
      make("button", { type: "button", "aria-pressed": "false", onclick: () => this.choose(range) }, name),
    );
    this.canvas = make("div", { class: "chart", "aria-hidden": "true" });
    this.lines = make("ul", { class: "legend lines", "aria-label": "Lines of the chart" });
    this.note = make("p", { class: "note" });
    this.numbers = make("div");
    this.details = make("details", {}, make("summary", {}, "Shares as a table"), this.numbers);
    this.details.addEventListener("toggle", () => this.tell());
    const group = { class: "ranges", role: "group", "aria-label": "Time shown" };
    this.place.append(make("div", group, ...this.buttons), this.canvas, this.lines, this.note, this.details);
    this.watching = new ResizeObserver(() => this.fit());
    this.watching.observe(this.canvas);
    this.mark();
  }

  /** Store the shares of a state for the live range. */
  add(state) {
    const shares = Object.fromEntries(
      state.tenants
        .filter((tenant) => tenant.parent === null || !state.owed[tenant.parent])
        .map((tenant) => [tenant.name, state.owed[tenant.name]?.used ?? 0]),
    );
    this.seen.push({ at: Date.now() / 1000, shares });
    if (this.seen.length > MOST_POINTS) this.seen.splice(0, this.seen.length - MOST_POINTS);
  }

  show(state) {
    this.state = state;
    if (this.range === LIVE) this.draw(this.seen, "Top-level tenants, as this page saw them.");
    else this.fetch();
  }

  choose(range) {
    this.range = range;
    this.chosen = true;
    this.asked = null;
    this.mark();
    say(this.note, "");
    if (this.state) this.show(this.state);
  }

  mark() {
    RANGES.forEach(([range], index) =>
      this.buttons[index].setAttribute("aria-pressed", String(range === this.range)),
    );
  }

  async fetch() {
    if (this.asked && Date.now() < this.asked + AGAIN) return;
    this.asked = Date.now();
    const range = this.range;
    const seconds = Number(range);
    const step = seconds / STEPS;
    const until = Math.floor(Date.now() / 1000 / step) * step;
    const moment = (at) => new Date(at * 1000).toISOString();
    const query = [
      ["by", "tenant,pool"],
      ["from", moment(until - seconds)],
      ["to", moment(until)],
      ["step", `${step}`],
    ];
    // A caller without the right on all tenants may still read the usage of some.
    const own = this.hello.everyQueue ? [] : this.hello.queues.slice(0, MOST_NAMED);
    query.push(...own.map((name) => ["tenant", name]));
    try {
      const { rows, since } = await this.usage(query);
      if (this.range !== range) return;
      const lost = since && Date.parse(since) / 1000 > until - seconds;
      const note = "Top-level tenants, measured against what the pools offer now.";
      const gap = lost ? ` Before ${new Date(since).toLocaleString()} some use was not recorded.` : "";
      this.draw(this.points(rows, until - seconds, until, step), note + gap);
    } catch (error) {
      if (this.range !== range) return;
      if (this.chosen) this.draw([], `The past cannot be shown: ${error.message}`);
      else {
        this.range = LIVE;
        this.mark();
        this.show(this.state);
      }
    }
  }

  /** Return the rows, and the time since which they are complete. CSV is not paginated. */
  async usage(query) {
    const path = `/v1/usage?${new URLSearchParams([...query, ["format", "csv"]])}`;
    const about = new URLSearchParams([...query.filter(([key]) => key !== "step"), ["limit", "1"]]);
    const [text, { completeSince }] = await Promise.all([
      this.ask(path),
      this.ask(`/v1/usage?${about}`),
    ]);
    const [heading, ...lines] = parse(text);
    const rows = lines.map((line) => {
      const named = Object.fromEntries(heading.map((name, index) => [name, line[index]]));
      const { tenant, pool, at, ...resourceSeconds } = named;
      return { tenant, pool, at, resourceSeconds };
    });
    return { rows, since: completeSince };
  }

  /** Return the highest visible ancestor of a tenant. */
  root(name) {
    const parents = new Map(this.state.tenants.map((tenant) => [tenant.name, tenant.parent]));
    const seen = new Set();
    while (parents.has(parents.get(name)) && !seen.has(name)) {
      seen.add(name);
      name = parents.get(name);
    }
    return name;
  }

  points(rows, from, until, step) {
    const steps = new Map();
    for (const row of rows) {
      const at = Date.parse(row.at) / 1000;
      if (!steps.has(at)) steps.set(at, {});
      const pools = (steps.get(at)[this.root(row.tenant)] ??= {});
      const used = (pools[row.pool] ??= {});
      for (const [resource, spent] of Object.entries(row.resourceSeconds)) {
        used[resource] = (used[resource] ?? 0) + Number(spent);
      }
    }
    const points = [];
    for (let at = from; at < until; at += step) {
      const shares = Object.entries(steps.get(at) ?? {}).map(([tenant, byPool]) => [
        tenant,
        shareOf(byPool, this.state.pools, step),
      ]);
      points.push({ at, shares: Object.fromEntries(shares) });
    }
    return points;
  }

  draw(points, note) {
    say(this.note, points.length ? note : note || "Nothing was used in this time.");
    const names = foremost(points);
    // A line needs two points.
    if (points.length === 1) points = [{ ...points[0], at: points[0].at - 1 }, points[0]];
    const columns = [
      points.map((point) => point.at),
      ...names.map((name) => points.map((point) => point.shares[name] ?? 0)),
    ];
    this.columns = columns;
    this.names = names;
    if (this.chart && this.drawn === names.join("\n")) this.chart.setData(columns);
    else this.plot();
    this.tell();
  }

  plot() {
    this.chart?.destroy();
    this.chart = null;
    if (!this.columns) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    this.chart = new uPlot(
      {
        width: this.canvas.clientWidth || 300,
        height: HEIGHT,
        cursor: { show: false },
        legend: { show: false },
        // At least a minute, so that the first seconds do not fill the chart.
        scales: {
          x: { time: true, range: (_, first, last) => [first, Math.max(last, first + 60)] },
          y: { range: (_, low, high) => [0, Math.min(1, Math.max(0.05, high * 1.1))] },
        },
        axes: [{ ...axis, space: 70, values: (_, marks) => marks.map((at) => this.moment(at)) }, { ...axis, size: 52, values: (_, marks) => marks.map(percent) }],
        series: [
          {},
          ...this.names.map((name, index) => ({
            label: name,
            stroke: colour(`--line-${index + 1}`),
            width: 2,
            dash: index >= MOST_LINES / 2 ? [6, 4] : undefined,
            points: { show: false },
            paths: uPlot.paths.stepped({ align: 1 }),
          })),
        ],
      },
      this.columns,
      this.canvas,
    );
    this.drawn = this.names.join("\n");
    this.lines.replaceChildren(
      ...this.names.map((name, index) => make("li", {}, make("span", { class: `key line-${index + 1}` }), name)),
    );
  }

  /** Write the table, if it is open. */
  tell() {
    if (!this.details.open || !this.columns) return;
    const [times] = this.columns;
    const every = Math.max(1, Math.ceil(times.length / 20));
    const columns = [{ name: "Time", kind: "name" }, ...this.names.map((name) => ({ name, kind: "number" }))];
    const { whole, body } = table("Shares of the cluster over time", columns);
    for (let index = times.length - 1; index >= 0; index -= every) {
      const at = new Date(times[index] * 1000);
      const on = Number(this.range) > 3600 ? `${day(at)} ` : "";
      body.append(
        make(
          "tr",
          { role: "row" },
          make("th", { scope: "row", role: "rowheader", class: "name" }, on + time(at)),
          ...this.names.map((name, line) => cell("number", name, percent(this.columns[line + 1][index]))),
        ),
      );
    }
    this.numbers.replaceChildren(whole);
  }

  /** Return the axis label of a time: the time of day, or the date in the range of 7 days. */
  moment(at) {
    const date = new Date(at * 1000);
    return this.range === "604800" ? day(date) : time(date).slice(0, 5);
  }

  fit() {
    this.chart?.setSize({ width: this.canvas.clientWidth, height: HEIGHT });
  }

  repaint() {
    if (this.chart) this.plot();
  }
}

/** Return the cells of each line of a CSV text. */
export function parse(text) {
  const lines = [];
  let line = [];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    line.push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if (end === ",") continue;
    if (line.length > 1 || line[0]) lines.push(line);
    line = [];
  }
  return lines;
}

/** Return the tenants with the largest shares, ordered by name. */
function foremost(points) {
  const sums = {};
  for (const { shares } of points) {
    for (const [name, share] of Object.entries(shares)) sums[name] = (sums[name] ?? 0) + share;
  }
  return Object.keys(sums)
    .sort((one, other) => sums[other] - sums[one] || (one < other ? -1 : 1))
    .slice(0, MOST_LINES)
    .sort();
}
