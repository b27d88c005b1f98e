// Formats values for display.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** Format a fraction from 0 to 1 in per cent. */
export function percent(part) {
  const value = part * 100;
  return `${value >= 10 || Number.isInteger(value) ? whole.format(value) : fine.format(value)} %`;
}

export function count(number, one, many = `${one}s`) {
  return `${whole.format(number)} ${number === 1 ? one : many}`;
}

/** Format a duration of seconds, rounded. */
export function lasting(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${fine.format(seconds / 3600)} h`;
  return `${fine.format(seconds / 86400)} days`;
}

export function day(date) {
  return days.format(date);
}

export function time(date) {
  return clock.format(date);
}

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

/** Return the short name of a resource: "gpu" for nvidia.com/gpu. */
export function short(resource) {
  return resource.slice(resource.indexOf("/") + 1);
}

/** Format quantities by resource: "8 gpu, 4 gpumem". */
export function amounts(quantities) {
  const parts = Object.entries(quantities).map(([name, value]) => `${value} ${short(name)}`);
  return parts.join(", ") || "nothing";
}

/** Format quantities by pool: "h100: 8 gpu". */
export function inPools(byPool) {
  const pools = Object.entries(byPool).filter(([, used]) => Object.keys(used).length);
  return pools.map(([pool, used]) => `${pool}: ${amounts(used)}`).join("; ") || "nothing";
}
