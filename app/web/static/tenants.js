// Tenants and their users: entitled shares and used shares.

import { cell, draw, keep, make, say, table } from "./dom.js";
import { count, inPools, percent } from "./words.js";

const MOST = 300;

/** Return a flat list of the tenant tree with depths, children after their parents. */
function ordered(tenants) {
  const names = new Set(tenants.map((tenant) => tenant.name));
  const below = new Map();
  for (const tenant of tenants) {
    const parent = names.has(tenant.parent) ? tenant.parent : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(tenant);
  }
  const flat = [];
  const walk = (parent, depth) => {
    for (const tenant of below.get(parent) ?? []) {
      flat.push({ tenant, depth });
      walk(tenant.name, depth + 1);
    }
  };
  walk(null, 0);
  return flat;
}

function rows(state, hello, wanted) {
  const found = [];
  for (const { tenant, depth } of ordered(state.tenants)) {
    const users = state.users[tenant.name] ?? [];
    const hit = (name) => name.toLowerCase().includes(wanted);
    const own = hit(tenant.name);
    const some = own ? users : users.filter((user) => hit(user.name));
    if (!own && !some.length) continue;
    const part = state.owed[tenant.name];
    found.push({ key: `t ${tenant.name}`, depth, name: tenant.name, of: tenant, part });
    for (const user of some) {
      found.push({
        key: `u ${tenant.name} ${user.name}`,
        depth: depth + 1,
        user: true,
        name: user.name,
        of: user,
        part: part?.users[user.name],
      });
    }
  }
  return found;
}

/** Return the end of the scale: the smallest round number that is not below any value. */
function scaleOf(shown) {
  const most = Math.max(
    0.01,
    ...shown.flatMap(({ part }) => (part ? [part.used, part.owed, part.guarantee ?? 0] : [])),
  );
  return [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1].find((end) => most <= end) ?? most;
}

function describe(part) {
  const words = [`uses ${percent(part.used)}, is owed ${percent(part.owed)}`];
  if (part.guarantee) words.push(`guarantee ${percent(part.guarantee)}`);
  if (part.limit !== null && part.limit !== undefined) words.push(`limit ${percent(part.limit)}`);
  return words.join(", ");
}

function bar() {
  const shapes = ["used", "over", "owed", "guarantee", "limit"].map((kind) =>
    draw("rect", { class: kind, y: kind === "used" || kind === "over" ? 4 : 0, height: kind === "used" || kind === "over" ? 10 : 18 }),
  );
  return draw(
    "svg",
    { class: "bar", viewBox: "0 0 400 18", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "ground", x: 0, y: 4, width: 400, height: 10 }),
    ...shapes,
  );
}

function setBar(svg, part, end) {
  const at = (value) => 400 * Math.min(1, value / end);
  const place = (kind, from, to) => {
    const shape = svg.querySelector(`.${kind}`);
    shape.setAttribute("x", String(from));
    shape.setAttribute("width", String(Math.max(0, to - from)));
  };
  const mark = (kind, value) => {
    const x = value === null || value === undefined || value > end ? -10 : at(value);
    place(kind, Math.min(x, 397), Math.min(x, 397) + (value ? 3 : 0));
  };
  place("used", 0, at(Math.min(part.used, part.owed)));
  place("over", at(Math.min(part.used, part.owed)), at(part.used));
  mark("owed", part.owed);
  mark("guarantee", part.guarantee || null);
  mark("limit", part.limit);
}

function row(item) {
  const name = make("th", { scope: "row", role: "rowheader", class: "name" });
  name.append(make("span", { class: "label" }), make("span", { class: "tag" }));
  return make(
    "tr",
    { role: "row", class: item.user ? "user" : "tenant" },
    name,
    cell("number", "Weight"),
    cell("share", "Share", bar(), make("span", { class: "words" })),
    cell("used", "Uses"),
    cell("number", "Waiting"),
  );
}

function update(element, { name, depth, of, part, user }, end) {
  element.dataset.depth = String(Math.min(depth, 4));
  say(element.querySelector(".label"), name);
  const tag = user ? "" : of.paused ? "paused" : of.exists ? "" : "no Tenant resource";
  say(element.querySelector(".tag"), tag);
  const [weight, share, used, pending] = element.querySelectorAll("td");
  say(weight, of.weight);
  share.firstChild.classList.toggle("empty", !part);
  if (part) setBar(share.firstChild, part, end);
  say(share.lastChild, part ? describe(part) : "nothing now");
  say(used, inPools(of.used));
  say(pending, String(of.pending));
}

/** Show the tenants in `place`. */
export function showTenants(place, state, hello, wanted) {
  if (!place.firstChild) {
    const { whole, body } = table("What tenants and users are owed and use", [
      { name: "Tenant, user", kind: "name" },
      { name: "Weight", kind: "number" },
      { name: "Share of the cluster", kind: "share" },
      { name: "Uses", kind: "used" },
      { name: "Waiting", kind: "number" },
    ]);
    body.id = "tenant-rows";
    place.append(whole, make("p", { class: "note" }));
  }
  const [whole, note] = place.children;
  const all = rows(state, hello, wanted);
  const shown = all.slice(0, MOST);
  const end = scaleOf(shown);
  keep(whole.tBodies[0], shown, (item) => item.key, row, (element, item) => update(element, item, end));
  whole.hidden = !shown.length;
  say(whole.tHead.querySelector(".share"), `Share of the cluster, 0 to ${percent(end)}`);
  const notes = [];
  if (!all.length && wanted) notes.push("No tenant or user matches the filter.");
  else if (!all.length && hello.everyTenant) notes.push("There are no tenants, and nobody waits.");
  else if (!all.length) {
    notes.push("You may not see any tenant; ask for the right to get tenants/queue of yours.");
  }
  if (all.length > shown.length) {
    notes.push(`${count(all.length - shown.length, "more row")}: use the filter.`);
  }
  if (state.leftOut.users) notes.push(`${count(state.leftOut.users, "more user")} hold and wait less.`);
  if (all.length && !hello.everyTenant) notes.push("Other tenants are not shown: you may not see them.");
  say(note, notes.join(" "));
}
