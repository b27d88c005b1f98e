// Converts fractions of the cluster to GPUs. Pools may weigh a GPU differently.

import { decimal, deviceOf, number } from "./format.js";

/**
 * Return {total, isWeighted, note, say(fraction)}. If all pools weigh a device alike, a fraction is
 * a number of devices. Otherwise it is a weighted number.
 */
export function unitsOf(pools) {
  const kinds = pools
    .map((pool) => {
      const device = deviceOf(pool.capacity);
      return { name: pool.name, count: number(pool.capacity[device]), weight: number(pool.weights[device] ?? "1") };
    })
    .filter((kind) => kind.count > 0);
  const weights = new Set(kinds.map((kind) => kind.weight));
  const isWeighted = weights.size > 1;
  const unit = isWeighted ? 1 : ([...weights][0] ?? 1);
  const total = kinds.reduce((sum, kind) => sum + kind.count * kind.weight, 0) / unit;
  const note = isWeighted
    ? `Weighted GPUs: ${kinds.map((kind) => `one of ${kind.name} counts ${decimal(kind.weight)}`).join(", ")}.`
    : "";
  return {
    total,
    isWeighted,
    note,
    say: (fraction) => decimal(fraction * total),
  };
}
