// Pools, and a map of their nodes with a cell for each device. Cells of used devices are filled.

import { cell, keep, make, say, table } from "./dom.js";
import { amounts, count, number, percent, short } from "./words.js";

const MOST_NODES = 500;
const MOST_CELLS = 16;

/** Return the resource of the map: the first one named `gpu`, else the first one of the pool. */
function deviceOf(pool) {
  const there = Object.keys(pool.capacity);
  return there.find((name) => name.includes("/") && short(name) === "gpu") ?? there[0];
}

function nodeTile() {
  return make(
    "li",
    { class: "node" },
    make("span", { class: "cells", "aria-hidden": "true" }),
    make("span", { class: "node-name" }),
    make("span", { class: "unseen" }),
  );
}

function setNode(element, node, resource) {
  const capacity = number(node.capacity[resource]);
  const used = number(node.used[resource]);
  const [cells, name, words] = element.children;
  const there = Math.min(MOST_CELLS, Math.ceil(capacity));
  while (cells.children.length > there) cells.lastChild.remove();
  while (cells.children.length < there) cells.append(make("i"));
  const each = capacity > MOST_CELLS ? capacity / MOST_CELLS : 1;
  [...cells.children].forEach((one, index) => {
    const part = Math.max(0, Math.min(1, used / each - index));
    one.className = part >= 1 ? "full" : part > 0 ? "part" : "free";
  });
  const told = `${used} of ${capacity} ${short(resource ?? "")} in use`;
  element.classList.toggle("away", !node.ready);
  element.title = `${node.name}: ${told}${node.ready ? "" : ", not ready"}`;
  say(name, node.name);
  say(words, `: ${told}${node.ready ? "" : ", not ready"}`);
}

function tableOf(pool) {
  const { whole, body } = table(`Nodes of ${pool.name}`, [
    { name: "Node", kind: "name" },
    { name: "State", kind: "used" },
    { name: "In use", kind: "used" },
    { name: "Capacity", kind: "used" },
  ]);
  for (const node of pool.members.slice(0, MOST_NODES)) {
    body.append(
      make(
        "tr",
        { role: "row" },
        make("th", { scope: "row", role: "rowheader", class: "name" }, node.name),
        cell("used", "State", node.ready ? "ready" : "not ready"),
        cell("used", "In use", amounts(node.used)),
        cell("used", "Capacity", amounts(node.capacity)),
      ),
    );
  }
  return whole;
}

function card() {
  const details = make("details", {}, make("summary", {}, "Nodes as a table"), make("div"));
  return make(
    "article",
    { class: "pool" },
    make("h3"),
    make("p", { class: "pool-words" }),
    make("div", { class: "meter", "aria-hidden": "true" }, make("span")),
    make("ul", { class: "nodes" }),
    make("p", { class: "note" }),
    details,
  );
}

function update(element, pool) {
  const [title, words, meter, nodes, note, details] = element.children;
  const resource = deviceOf(pool);
  const [used, capacity] = [number(pool.used[resource]), number(pool.capacity[resource])];
  say(title, pool.name);
  const facts = [count(pool.nodes, "node")];
  if (resource) facts.push(`${used} of ${capacity} ${short(resource)} in use`);
  if (capacity) facts.push(percent(used / capacity));
  if (pool.paused) facts.push("paused: nothing is released into it");
  say(words, facts.join(" · "));
  meter.firstChild.style.width = `${capacity ? 100 * Math.min(1, used / capacity) : 0}%`;
  const shown = pool.members.slice(0, MOST_NODES);
  nodes.setAttribute("aria-label", `Nodes of ${pool.name}`);
  keep(nodes, shown, (node) => node.name, nodeTile, (tile, node) => setNode(tile, node, resource));
  const full = shown.length >= MOST_NODES ? `Of its nodes the first ${MOST_NODES} are shown.` : "";
  say(note, shown.length ? full : "It has no node.");
  details.hidden = !shown.length;
  if (details.open) details.lastChild.replaceChildren(tableOf(pool));
}

/** Show the pools in `place`. */
export function showPools(place, state, hello) {
  if (!hello.pools) {
    place.replaceChildren(make("p", { class: "note" }, "You may not see pools; ask for the right to list pools."));
    return;
  }
  if (!state.pools.length) {
    place.replaceChildren(make("p", { class: "note" }, "There is no pool yet."));
    return;
  }
  if (place.firstChild?.tagName === "P") place.replaceChildren();
  keep(
    place,
    state.pools,
    (pool) => pool.name,
    (pool) => {
      const made = card();
      made.lastChild.addEventListener("toggle", () => made.lastChild.open && update(made, made.pool));
      return made;
    },
    (element, pool) => {
      element.pool = pool;
      update(element, pool);
    },
  );
}
