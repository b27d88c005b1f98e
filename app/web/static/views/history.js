// Use over time by tenant, from the usage records, with the capacity of the pools as a line.

import uPlot from "/static/vendor/uplot/uPlot.esm.js";
import { csvCell, day, decimal, deviceOf, moment, number, parseCsv, visible } from "../format.js";
import { Cell, Empty, RowHead, Table } from "../components.js";
import { change } from "../router.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm/preact-standalone.js";
import { unitsOf } from "../units.js";

export const RANGES = [
  ["3600", "1 hour"],
  ["86400", "24 hours"],
  ["604800", "7 days"],
];
const STEPS = 120;
const MOST_LINES = 8;
const MOST_NAMED = 50;
const AGAIN = 60_000;
const HEIGHT = 280;
const TABLE_ROWS = 24;

/** Return the highest visible ancestor of a tenant. */
function rootOf(name, tenants) {
  const parents = new Map(tenants.map((tenant) => [tenant.name, tenant.parent]));
  const seen = new Set();
  while (parents.has(parents.get(name)) && !seen.has(name)) {
    seen.add(name);
    name = parents.get(name);
  }
  return name;
}

/** Return the devices that a row used on average, weighted as the pools weigh them. */
function devicesOf(row, pools, step) {
  const pool = pools.find((each) => each.name === row.pool);
  if (!pool) return 0;
  const device = deviceOf(pool.capacity);
  return (number(pool.weights[device] ?? "1") * Number(row.resourceSeconds[device] ?? 0)) / step;
}

/** Read usage as CSV, which has no pages, and the time since which it is complete. */
async function usage(ask, query, signal) {
  const [text, about] = await Promise.all([
    ask(`/v1/usage?${new URLSearchParams([...query, ["format", "csv"]])}`, { signal }),
    ask(`/v1/usage?${new URLSearchParams([...query.filter(([key]) => key !== "step"), ["limit", "1"]])}`, { signal }),
  ]);
  const [heading, ...lines] = parseCsv(text);
  const rows = lines.map((line) => {
    const { tenant, pool, at, ...resourceSeconds } = Object.fromEntries(heading.map((name, index) => [name, line[index]]));
    return { tenant, pool, at: Date.parse(at) / 1000, resourceSeconds };
  });
  return { rows, since: about.completeSince };
}

/** Return {times, lines: [{name, values}]}: the largest tenants, and the rest as one line. */
function linesOf(rows, times, step, state, only) {
  const unit = unitsOf(state.pools).isWeighted ? 1 : number(state.pools[0]?.weights[deviceOf(state.pools[0]?.capacity ?? {})] ?? "1") || 1;
  const index = new Map(times.map((at, place) => [at, place]));
  const found = new Map();
  for (const row of rows) {
    const name = only ? row.tenant : rootOf(row.tenant, state.tenants);
    const place = index.get(row.at);
    if (place === undefined) continue;
    if (!found.has(name)) found.set(name, times.map(() => 0));
    found.get(name)[place] += devicesOf(row, state.pools, step) / unit;
  }
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  const order = [...found].sort(([one, a], [other, b]) => sum(b) - sum(a) || (one < other ? -1 : 1));
  const lines = order.slice(0, MOST_LINES).map(([name, values]) => ({ name, values }));
  const rest = order.slice(MOST_LINES);
  if (rest.length) {
    lines.push({
      name: `${rest.length} others`,
      values: times.map((_, place) => sum(rest.map(([, values]) => values[place]))),
    });
  }
  return lines;
}

export function History({ state, hello, query, ask, theme }) {
  const range = RANGES.some(([value]) => value === query.get("range")) ? query.get("range") : "3600";
  const tenant = query.get("tenant") ?? "";
  const [found, setFound] = useState({});
  const latest = useRef(state);
  latest.current = state;
  useEffect(() => {
    const stopping = new AbortController();
    const seconds = Number(range);
    const step = seconds / STEPS;
    const read = async () => {
      const until = Math.floor(Date.now() / 1000 / step) * step;
      const from = until - seconds;
      const times = Array.from({ length: STEPS }, (_, place) => from + place * step);
      const asked = [
        ["by", "tenant,pool"],
        ["from", new Date(from * 1000).toISOString()],
        ["to", new Date(until * 1000).toISOString()],
        ["step", String(step)],
        ...(tenant ? [tenant] : hello.everyQueue ? [] : hello.queues.slice(0, MOST_NAMED)).map((name) => ["tenant", name]),
      ];
      try {
        const { rows, since } = await usage(ask, asked, stopping.signal);
        setFound({ range, tenant, times, lines: linesOf(rows, times, step, latest.current, tenant), since, from });
      } catch (error) {
        if (!stopping.signal.aborted) setFound({ range, tenant, error });
      }
    };
    read();
    const timer = setInterval(read, AGAIN);
    return () => {
      stopping.abort();
      clearInterval(timer);
    };
  }, [range, tenant]);
  const shown = found.range === range && found.tenant === tenant ? found : {};
  const units = unitsOf(state.pools);
  return html`<section class="card" aria-labelledby="history-title">
    <div class="card-head">
      <h1 id="history-title">${tenant ? `History of ${visible(tenant)}` : "History"}</h1>
      <div class="ranges" role="group" aria-label="Time shown">
        ${RANGES.map(([value, name]) => html`<button type="button" key=${value} aria-pressed=${String(value === range)} onClick=${() => change({ range: value })}>${name}</button>`)}
      </div>
    </div>
    ${shown.error ? html`<p class="problem" role="alert">The past cannot be shown: ${visible(shown.error.message)}</p>` : null}
    ${shown.lines && !shown.lines.length ? html`<${Empty}>No pod used a GPU in this time.<//>` : null}
    ${shown.lines?.length ? html`<${Chart} found=${shown} units=${units} theme=${theme} />` : null}
    ${shown.since && Date.parse(shown.since) / 1000 > shown.from ? html`<p class="note">Before ${moment(new Date(shown.since))} some use was not recorded.</p>` : null}
  </section>`;
}

function Chart({ found, units, theme }) {
  const { times, lines, range } = found;
  const place = useRef(null);
  const [at, setAt] = useState(null);
  const title = units.isWeighted ? "Weighted GPUs in use" : "GPUs in use";
  const columns = useMemo(() => [times, times.map(() => units.total), ...lines.map((line) => line.values)], [found, units.total]);
  useEffect(() => {
    const probe = document.createElement("span");
    place.current.append(probe);
    const resolved = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    const axis = { stroke: resolved("--soft"), grid: { stroke: resolved("--grid"), width: 1 }, ticks: { show: false } };
    const chart = new uPlot(
      {
        width: place.current.clientWidth || 300,
        height: HEIGHT,
        legend: { show: false },
        cursor: { points: { size: 6 } },
        scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
        axes: [
          { ...axis, space: 70, values: (_, marks) => marks.map((mark) => label(mark, range)) },
          { ...axis, size: 60, label: title, values: (_, marks) => marks.map(decimal) },
        ],
        series: [
          {},
          { label: "capacity", stroke: resolved("--text"), width: 1, dash: [2, 4], points: { show: false } },
          ...lines.map((line, index) => ({
            label: line.name,
            stroke: resolved(`--line-${(index % MOST_LINES) + 1}`),
            width: 2,
            dash: [undefined, [8, 4], [3, 3], [10, 3, 2, 3]][index % 4],
            points: { show: false },
            paths: uPlot.paths.stepped({ align: 1 }),
          })),
        ],
        hooks: { setCursor: [(plot) => setAt(plot.cursor.idx ?? null)] },
      },
      columns,
      place.current,
    );
    probe.remove();
    const watching = new ResizeObserver(() => chart.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    watching.observe(place.current);
    return () => {
      watching.disconnect();
      chart.destroy();
    };
  }, [columns, theme]);
  const move = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    setAt(Math.min(times.length - 1, Math.max(0, (at ?? times.length - 1) + step)));
  };
  return html`
    <div class="chart" ref=${place} tabindex="0" role="group" aria-label=${`${title}. Left and Right read the values.`} onKeyDown=${move}></div>
    <p class="values" role="status">${at === null ? "Point at the chart, or use Left and Right, to read values." : valuesAt(found, units, at)}</p>
    <ul class="legend lines" aria-label="Lines of the chart">
      ${lines.map((line, index) => html`<li key=${line.name}><span class=${`key line-${(index % MOST_LINES) + 1}`}></span>${visible(line.name)}</li>`)}
      <li><span class="key capacity"></span>capacity now</li>
    </ul>
    <details><summary>As a table</summary><${Numbers} found=${found} /></details>
    <p><a download="fairgate-history.csv" href=${csvOf(found)}>Download as CSV</a></p>
  `;
}

function label(at, range) {
  const date = new Date(at * 1000);
  return range === "604800" ? day(date) : moment(date);
}

function valuesAt({ times, lines }, units, at) {
  const values = lines.map((line) => `${visible(line.name)} ${decimal(line.values[at])}`);
  return `${moment(new Date(times[at] * 1000))}: ${values.join(", ")}; capacity ${decimal(units.total)}`;
}

function Numbers({ found: { times, lines } }) {
  const every = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  const rows = times.map((at, place) => ({ at, place })).filter(({ place }) => place % every === 0).reverse();
  const columns = [{ name: "Time", kind: "name" }, ...lines.map((line) => ({ name: visible(line.name), kind: "number" }))];
  return html`<${Table} name="GPUs in use over time" columns=${columns}>
    ${rows.map(({ at, place }) => html`<tr role="row" key=${at}>
      <${RowHead}>${moment(new Date(at * 1000))}<//>
      ${lines.map((line) => html`<${Cell} key=${line.name} kind="number" label=${visible(line.name)}>${decimal(line.values[place])}<//>`)}
    </tr>`)}
  <//>`;
}

/** Return the data as a CSV file. */
function csvOf({ times, lines }) {
  const head = ["time", ...lines.map((line) => csvCell(line.name))].join(",");
  const rows = times.map((at, place) => [new Date(at * 1000).toISOString(), ...lines.map((line) => line.values[place])].join(","));
  return `data:text/csv;charset=utf-8,${encodeURIComponent([head, ...rows].join("\n"))}`;
}
