// The past: use by tenant from the usage records, and releases and waits from the audit chain.

import { Chart, MOST_LINES, withGap } from "../chart.js";
import { now } from "../clock.js";
import { dated, deviceOf, devices, number, parseCsv, visible } from "../format.js";
import { Empty, NotAllowed, rightIn, Term, UnitsNote } from "../components.js";
import { MyWork } from "./me.js";
import { namesOf, Releases, releasesPath, unnamedText } from "./releases.js";
import { change } from "../router.js";
import { html, useEffect, useRef, useState } from "../vendor/htm/preact-standalone.js";
import { unitsOf } from "../units.js";

export const RANGES = [
  ["3600", "1 hour"],
  ["86400", "24 hours"],
  ["604800", "7 days"],
];
const STEPS = 120;

/** Shortest period in seconds. */
const LEAST = 60;
const AGAIN = 60_000;

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
function devicesOf(row, pools, seconds) {
  const pool = pools.find((each) => each.name === row.pool);
  if (!pool) return pools.length ? 0 : devices(row.resourceSeconds) / seconds; // no right to see pools
  const device = deviceOf(pool.capacity);
  return (number(pool.weights[device] ?? "1") * Number(row.resourceSeconds[device] ?? 0)) / seconds;
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

/**
 * Return lines of the largest tenants, and the rest as one line. Zeros before `since` are unknown.
 */
function linesOf({ rows, since }, { times, step, until }, state, only) {
  const unit = unitsOf(state.pools).isWeighted ? 1 : number(state.pools[0]?.weights[deviceOf(state.pools[0]?.capacity ?? {})] ?? "1") || 1;
  const index = new Map(times.map((at, place) => [at, place]));
  const found = new Map();
  for (const row of rows) {
    const name = only ? row.tenant : rootOf(row.tenant, state.tenants);
    const place = index.get(row.at);
    if (place === undefined) continue;
    if (!found.has(name)) found.set(name, times.map(() => 0));
    found.get(name)[place] += devicesOf(row, state.pools, Math.min(step, until - row.at)) / unit;
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
  return lines.map(({ name, values }) => ({ name, values: withGap(values, times, since) }));
}

/** Return the constant lines: the capacity, and the fair share of one tenant. */
function levelsOf(state, tenant, units) {
  if (!units.total) return [];
  const part = state.owed[tenant];
  const capacity = { name: "capacity", note: "capacity now", value: units.total };
  return part ? [capacity, { name: "fair share", note: "fair share now", value: part.owed * units.total }] : [capacity];
}

/**
 * Return the time of an address in seconds: {from, to}, or {seconds} until now. `isWrong`: `from` and
 * `to` are no period, or one of the future.
 */
function periodOf(query) {
  if (query.get("from") || query.get("to")) {
    const [from, to] = [query.get("from"), query.get("to")].map((time) => Date.parse(time) / 1000);
    return { from, to, isWrong: !(to - from >= LEAST && stepsOf({ from, to }).times.length) };
  }
  const isKnown = RANGES.some(([value]) => value === query.get("range"));
  return { seconds: Number(isKnown ? query.get("range") : RANGES[0][0]) };
}

/**
 * Return times, step and end of the lines, in seconds. Times are multiples of the step. The last step
 * may be shorter, so that a long step does not hide the last hour.
 */
function stepsOf({ from, to, seconds }) {
  const step = Math.max(1, Math.ceil((seconds ?? to - from) / STEPS));
  const whole = Math.min(step, 60);
  const until = Math.floor(Math.min(to ?? Infinity, now() / 1000) / whole) * whole;
  const begin = Math.floor((from ?? until - seconds) / step) * step;
  const times = Array.from({ length: Math.ceil((until - begin) / step) }, (_, place) => begin + place * step);
  return { times, step, until };
}

/** Put a period into the address. */
function show(from, to) {
  const [begin, end] = [from, Math.max(to, from + LEAST)].map((time) => new Date(Math.round(time) * 1000).toISOString());
  change({ from: begin.replace(".000", ""), to: end.replace(".000", ""), range: "" });
}

/** Return a time for an input of kind `datetime-local`, "" if it is invalid. */
function localTime(seconds) {
  const date = new Date(seconds * 1000);
  const local = new Date(date - date.getTimezoneOffset() * 60_000);
  return Number.isFinite(Number(local)) ? local.toISOString().slice(0, 16) : "";
}

/** Buttons for times until now, and two fields for any other time. */
function Period({ period, shown }) {
  const ends = period.seconds ? [shown.from, shown.until] : [period.from, period.to];
  const enter = (index) => (event) => {
    const next = [...ends];
    next[index] = Date.parse(event.target.value) / 1000;
    if (next.every(Number.isFinite)) change({ from: new Date(next[0] * 1000).toISOString(), to: new Date(next[1] * 1000).toISOString(), range: "" });
  };
  return html`<div class="period">
    <div class="ranges" role="group" aria-label="Time shown">
      ${RANGES.map(([value, name]) => html`<button type="button" key=${value} aria-pressed=${String(Number(value) === period.seconds)} onClick=${() => change({ range: value, from: "", to: "" })}>${name}</button>`)}
    </div>
    ${["From", "To"].map((name, index) => html`<label key=${name}>${name} <input type="datetime-local" value=${localTime(ends[index])} onChange=${enter(index)} /></label>`)}
  </div>`;
}

export function History({ state, hello, query, ask, theme }) {
  const period = periodOf(query);
  const tenant = query.get("tenant") ?? "";
  const names = namesOf(hello, tenant);
  // A change of the rights changes the names.
  const range = [period.from, period.to, period.seconds, ...names].join(" ");
  const [found, setFound] = useState({});
  const latest = useRef(state);
  latest.current = state;
  useEffect(() => {
    if (period.isWrong) return undefined;
    const stopping = new AbortController();
    const read = async () => {
      try {
        const isOver = period.to * 1000 < now() - AGAIN; // the last records may be late
        const steps = stepsOf(period);
        const { times: [from], until, step } = steps;
        const asked = [
          ["from", new Date(from * 1000).toISOString()],
          ["to", new Date(until * 1000).toISOString()],
          ["step", String(step)],
          ...names.map((name) => ["tenant", name]),
        ];
        const [used, releases] = await Promise.all([
          usage(ask, [["by", "tenant,pool"], ...asked], stopping.signal),
          ask(releasesPath(asked), { signal: stopping.signal }),
        ]);
        setFound({ range, tenant, times: steps.times, lines: linesOf(used, steps, latest.current, tenant), since: used.since, from, until, releases });
        if (isOver) clearInterval(timer);
      } catch (error) {
        if (!stopping.signal.aborted) setFound({ range, tenant, error });
      }
    };
    const timer = setInterval(read, AGAIN);
    read();
    return () => {
      stopping.abort();
      clearInterval(timer);
    };
  }, [range, tenant, period.isWrong]);
  const shown = found.range === range && found.tenant === tenant ? found : {};
  const units = unitsOf(state.pools);
  const isKnown = !tenant || state.tenants.some((each) => each.name === tenant);
  if (shown.error?.status === 403) {
    const sentence = !isKnown ? `There is no tenant ${visible(tenant)}, or you may not see it` : tenant ? `You may not see the history of ${visible(tenant)}` : "You may not see the history";
    return html`<${NotAllowed} right=${rightIn(shown.error.message)}>${sentence}; here is your own work.<//><${MyWork} ask=${ask} />`;
  }
  const title = units.isWeighted ? "Weighted GPUs in use" : "GPUs in use";
  return html`<section class="card" aria-labelledby="history-title">
    <div class="card-head">
      <h1 id="history-title">${tenant ? `History of ${visible(tenant)}` : "History"}</h1>
      <${Period} period=${period} shown=${shown} />
    </div>
    ${period.isWrong ? html`<p class="problem" role="alert">The time is not valid: it must begin in the past, and at least a minute before its end.</p>` : null}
    ${shown.error ? html`<p class="problem" role="alert">The past cannot be shown: ${visible(shown.error.message)}</p>` : null}
    ${period.isWrong || shown.error || shown.lines ? null : html`<p class="note" role="status">Loading …</p>`}
    ${shown.lines && !shown.lines.length ? html`<${Empty}>${isKnown ? "No pod used a GPU in this time." : `There is no tenant ${visible(tenant)}${hello.everyTenant ? "" : ", or you may not see it"}.`}<//>` : null}
    ${shown.lines?.length
      ? html`<${Chart} title=${title} name="GPUs in use over time" file="fairgate-history.csv" times=${shown.times} lines=${shown.lines} levels=${levelsOf(state, tenant, units)} theme=${theme} onSelect=${show} />`
      : null}
    ${shown.since && Date.parse(shown.since) / 1000 > shown.from ? html`<p class="note">Before ${dated(new Date(shown.since))} some use was not recorded.</p>` : null}
    ${shown.lines?.length ? html`<${UnitsNote} units=${units} />` : null}
    ${shown.lines?.length && tenant ? html`<p class="note">Times before now are compared with the <${Term} name="fair share">fair share<//> of now.</p>` : null}
    ${unnamedText(hello, tenant) ? html`<p class="note">${unnamedText(hello, tenant)}</p>` : null}
  </section>
  ${shown.releases && (isKnown || shown.releases.total.pods) ? html`<${Releases} found=${shown.releases} times=${shown.times} theme=${theme} onSelect=${show} />` : null}`;
}
