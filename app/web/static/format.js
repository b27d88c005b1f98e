// Formats values for display, in the language of the browser.

import { now } from "./clock.js";

const language = navigator.language;
const whole = new Intl.NumberFormat(language, { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortClock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit" });
const days = new Intl.DateTimeFormat(language, { day: "numeric", month: "short" });

const collator = new Intl.Collator(language, { numeric: true });

/** Compare two names: node-5 comes before node-45. */
export function compareNames(one, other) {
  return collator.compare(one, other) || (one < other ? -1 : 1);
}

// Controls, and characters without a shape: see app/core/safe_text.py.
const HIDDEN = /[\p{Cc}\p{Cs}\p{Default_Ignorable_Code_Point}\u2028\u2029\ufff9-\ufffb]/gu;

/** Escape hidden characters. Users choose names, and some characters change the look of others. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.codePointAt(0).toString(16);
    return code.length > 4 ? "\\U" + code.padStart(8, "0") : "\\u" + code.padStart(4, "0");
  });
}

/** Return whether names can be segments of a path. Browsers remove `.`, and `..` with the segment before it. */
export function hasPath(...names) {
  return names.every((name) => !/^\.{0,2}$/.test(name ?? ""));
}

const FORMULA = /^[\s'\ufeff]*[=+\-@|%\uff1d\uff0b\uff0d\uff20]/;

/** Return a quoted CSV cell that no spreadsheet takes for a formula: see app/core/safe_text.py. */
export function csvCell(text) {
  const isFormula = FORMULA.test(text) || /^[\t\r\n]/.test(text);
  return `"${(isFormula ? `'${visible(text)}` : visible(text)).replaceAll('"', '""')}"`;
}

/** Format a number with at most one decimal. */
export function decimal(value) {
  return fine.format(value);
}

/** Format a fraction from 0 to 1 in per cent. */
export function percent(part) {
  const value = part * 100;
  return `${value >= 10 || Number.isInteger(value) ? whole.format(value) : fine.format(value)}\u00a0%`;
}

export function count(number, one, many = `${one}s`) {
  return `${whole.format(number)} ${number === 1 ? one : many}`;
}

/** Format a duration of seconds, rounded. */
export function lasting(seconds) {
  if (Number.isNaN(seconds)) return "unknown";
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${fine.format(seconds / 3600)} h`;
  return `${fine.format(seconds / 86400)} days`;
}

/** Format the time from an RFC 3339 time until now. */
export function ago(time) {
  return lasting((now() - Date.parse(time)) / 1000);
}

/** Return a function that formats a date, and an invalid one as "unknown": Intl would throw. */
function safe(format) {
  return (date) => (Number.isFinite(Number(date)) ? format(date) : "unknown");
}

export const day = safe((date) => days.format(date));

export const time = safe((date) => clock.format(date));

/** Format a time of day without seconds. */
export const clockTime = safe((date) => shortClock.format(date));

/** Format a date and a time of day. */
export const dated = safe((date) => `${days.format(date)}, ${shortClock.format(date)}`);

function isToday(date) {
  return new Date(now()).toDateString() === date.toDateString();
}

/** Format a time of day. The date comes first if it is not today. */
export const moment = safe((date) => (isToday(date) ? shortClock.format(date) : dated(date)));

/** Format a time like `moment`, with seconds. */
export const exactMoment = safe((date) => (isToday(date) ? clock.format(date) : `${days.format(date)}, ${clock.format(date)}`));

/** Parse a Kubernetes quantity: "8", "500m", "40Gi". Return 0 if it is invalid. */
export function number(quantity) {
  const found = /^([0-9.]+)([a-zA-Z]*)$/.exec(quantity ?? "");
  if (!found) return 0;
  const powers = { n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
  const binary = { Ki: 1, Mi: 2, Gi: 3, Ti: 4, Pi: 5, Ei: 6 };
  const unit = found[2];
  const times = unit in binary ? 1024 ** binary[unit] : (powers[unit] ?? 1);
  return Number(found[1]) * times;
}

/**
 * Return a sentence of the API for the page: times of the reader, "GPUs", and no place in the queue.
 * It may quote text of users, so a time in it may be invalid.
 */
export function sentence(text) {
  return visible(text)
    .replace(/^queued: \d+ of \d+ in [^;]+; /, "")
    .replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, (time) => (Number.isNaN(Date.parse(time)) ? time : moment(new Date(time))))
    .replace(/\b1 [\w-]+\.[\w.-]+\/gpu(?![.-]?\w)/g, "1 GPU")
    .replace(/(?<![\w.-])[\w-]+\.[\w.-]+\/gpu(?![.-]?\w)/g, "GPUs");
}

/** Return the short name of a resource: "gpu" for nvidia.com/gpu. */
export function short(resource) {
  return resource.slice(resource.indexOf("/") + 1);
}

const isGpu = (resource) => short(resource) === "gpu";

/** Format quantities by resource, GPUs first: "8 GPUs, 4 gpumem". */
export function amounts(quantities) {
  const parts = Object.entries(quantities)
    .sort((one, other) => isGpu(other[0]) - isGpu(one[0]))
    .map(([name, value]) => (isGpu(name) ? `${value} ${/(^| )1$/.test(value) ? "GPU" : "GPUs"}` : `${value} ${short(name)}`));
  return parts.join(", ") || "0";
}

/** Return quantities with their use, for `amounts`: "21 of 24". Use beyond a guarantee is left out. */
export function withUse(bounds, used = {}, isGuarantee = false) {
  return Object.fromEntries(
    Object.entries(bounds).map(([name, bound]) => {
      const amount = used[name] ?? "0";
      return [name, `${isGuarantee && number(amount) > number(bound) ? bound : amount} of ${bound}`];
    }),
  );
}

/** Format quantities by pool: "h100: 8 GPUs". */
export function inPools(byPool) {
  const pools = Object.entries(byPool).filter(([, used]) => Object.keys(used).length);
  return pools.map(([pool, used]) => `${pool}: ${amounts(used)}`).join("; ");
}

/** Format quantities by pool in short, without the word GPUs: "h100: 8, t4: 2". */
export function inPoolsShort(byPool) {
  return inPools(byPool).replace(/ GPUs?(?=[,;]|$)/g, "").replaceAll("; ", " · ");
}

/** Return the device that stands for a pool: its resource named `gpu`, else its first resource. */
export function deviceOf(capacity) {
  const names = Object.keys(capacity);
  return names.find(isGpu) ?? names[0] ?? "";
}

/** Return the number of GPUs in quantities, of all vendors. */
function gpusOf(quantities) {
  return Object.keys(quantities).filter(isGpu).reduce((sum, name) => sum + number(quantities[name]), 0);
}

/** Return the number of GPUs in quantities, or of the first resource if there is no GPU. */
export function devices(quantities) {
  return gpusOf(quantities) || number(Object.values(quantities)[0]);
}

/** Format the sum of quantities: "8 GPUs", or with other devices "8 GPUs, 4 mig-1g.5gb". */
export function devicesText(...list) {
  const sums = {};
  for (const [name, value] of list.flatMap(Object.entries)) sums[name] = (sums[name] ?? 0) + number(value);
  const others = Object.fromEntries(Object.entries(sums).filter(([name, value]) => value && !isGpu(name)).map(([name, value]) => [name, decimal(value)]));
  const gpus = gpusOf(sums);
  return [gpus && count(gpus, "GPU"), Object.keys(others).length && amounts(others)].filter(Boolean).join(", ") || "0 GPUs";
}

/** Format devices for a column of GPUs: "8" if there are no others. */
export function devicesShort(quantities) {
  return devicesText(quantities).replace(/^([^ ]+) GPUs?$/, "$1");
}

/** Format an estimate: half of such pods start by one time, nine in ten by another. */
export function estimateText(estimate) {
  const from = Date.parse(estimate.at);
  const [half, most] = [estimate.p50, estimate.p90].map((each) => new Date(from + each * 1000));
  const left = Math.max(0, (half - now()) / 1000);
  return `${left ? `about ${lasting(left)}` : "any moment"}: half of such pods start by ${moment(half)}, nine in ten by ${moment(most)}`;
}

/** Parse CSV text into rows of cells. */
export function parseCsv(text) {
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
