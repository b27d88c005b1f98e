// Converts fractions of the cluster to GPUs. Pools may weigh a GPU differently.

import { decimal, deviceOf, number, percent } from "./format.js";

/**
 * Return {name, total, isWeighted, note, pools, say(fraction)}. If all pools weigh a device alike, a
 * fraction is a number of devices. Otherwise it is a weighted number. If the caller may not see pools,
 * it is a percentage, and `total` is 0. `note` says how `pools` are added, if there are several.
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
    : kinds.length > 1
      ? `GPUs of all pools are added: ${kinds.map((kind) => kind.name).join(", ")}.`
      : "";
  const name = !total ? "Part of the cluster" : isWeighted ? "Weighted GPUs" : "GPUs";
  return {
    name,
    total,
    isWeighted,
    note,
    pools: kinds.map((kind) => kind.name),
    say: (fraction) => (total ? decimal(fraction * total) : percent(fraction)),
  };
}

/**
 * Return {used, total, beyond} of a pool in devices. Use never exceeds the ready capacity: `beyond` says
 * where more is used.
 */
export function useOf(pool) {
  const device = deviceOf(pool.capacity);
  const [all, total] = [number(pool.used[device]), number(pool.capacity[device])];
  if (all <= total) return { used: all, total, beyond: "" };
  const sum = (nodes) => nodes.reduce((devices, node) => devices + number(node.used[device]), 0);
  const away = sum(pool.members.filter((node) => !node.ready));
  const unplaced = all - sum(pool.members);
  const areAllShown = pool.members.filter((node) => node.ready).length === pool.nodes;
  if (!areAllShown || (unplaced <= 0 && away <= 0)) return { used: total, total, beyond: `, and ${decimal(all - total)} beyond the ready capacity` };
  const parts = [];
  if (unplaced > 0) parts.push(`, and ${decimal(unplaced)} of released pods without a node yet`);
  if (away > 0) parts.push(`, and ${decimal(away)} on nodes that are not ready`);
  return { used: Math.min(total, all - away - Math.max(0, unplaced)), total, beyond: parts.join("") };
}
