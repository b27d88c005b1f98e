// The tree of tenants: use against fair share, waiting GPUs and longest wait. Users are folded.

import { ago, count, decimal, devices, devicesShort, inPoolsShort, number, percent, visible, withUse } from "../format.js";
import { Cell, Empty, More, RowHead, Table, UnitsNote } from "../components.js";
import { BarLegend, marksOf, ShareBar, scaleEnd } from "../share_bar.js";
import { address, change } from "../router.js";
import { html } from "../vendor/htm/preact-standalone.js";
import { unitsOf } from "../units.js";

const STEP = 60;

/** Unfolds all tenants, as the value of `open` in the address. */
const ALL = "*";

const SORTS = {
  name: () => 0,
  waiting: (row) => -row.waiting,
  wait: (row) => row.since,
  distance: (row) => (row.part ? row.part.used - row.part.owed : 0),
};

/** Return the names of tenants in or below a circle of parents. Fairgate counts each at the top. */
export function inCircles(tenants) {
  const parents = new Map(tenants.map((tenant) => [tenant.name, tenant.parent]));
  const isInCircle = (name) => {
    const seen = new Set();
    for (; parents.has(name) && !seen.has(name); name = parents.get(name)) seen.add(name);
    return seen.has(name);
  };
  return new Set([...parents.keys()].filter(isInCircle));
}

/** Return the tenants of the caller that are below no other tenant of the caller. */
export function topLevel(tenants) {
  const names = new Set(tenants.map((tenant) => tenant.name));
  const circles = inCircles(tenants);
  return tenants.filter((tenant) => !names.has(tenant.parent) || circles.has(tenant.name));
}

/** Return all tenants as rows with children, in the chosen order. */
export function tree(state, sort) {
  const tops = new Set(topLevel(state.tenants));
  const circles = inCircles(state.tenants);
  const queues = new Map(state.queues.map((queue) => [`${queue.tenant} ${queue.user}`, queue]));
  const below = new Map();
  for (const tenant of state.tenants) {
    const parent = tops.has(tenant) ? null : tenant.parent;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push({ ...tenantRow(state, tenant, queues), isInCircle: circles.has(tenant.name) });
  }
  const by = Object.hasOwn(SORTS, sort) ? SORTS[sort] : SORTS.name;
  const build = (parent) =>
    (below.get(parent) ?? [])
      .sort((one, other) => by(one) - by(other) || (one.name < other.name ? -1 : 1))
      .map((row) => ({ ...row, children: build(row.name) }));
  return build(null);
}

function tenantRow(state, tenant, queues) {
  const waiting = state.waiting[tenant.name];
  return {
    key: tenant.name,
    name: tenant.name,
    of: tenant,
    part: state.owed[tenant.name],
    pending: tenant.pending,
    request: waiting?.request,
    waiting: waiting ? devices(waiting.request) : 0,
    since: waiting ? Date.parse(waiting.since) : Infinity,
    sinceText: waiting?.since,
    users: userRows(state, tenant.name, queues),
  };
}

function userRows(state, tenant, queues) {
  return (state.users[tenant] ?? []).map((user) => {
    const queue = queues.get(`${tenant} ${user.name}`);
    return {
      key: `${tenant} ${user.name}`,
      name: user.name,
      tenant,
      isUser: true,
      of: user,
      part: state.owed[tenant]?.users[user.name],
      pending: user.pending,
      request: queue?.request,
      waiting: queue ? devices(queue.request) : 0,
      since: queue ? Date.parse(queue.since) : Infinity,
      sinceText: queue?.since,
    };
  });
}

function isFoldable(row) {
  return row.users.length + row.children.length > 0;
}

function matches(row, wanted) {
  return (
    row.name.toLowerCase().includes(wanted) ||
    row.users.some((user) => user.name.toLowerCase().includes(wanted)) ||
    row.children.some((child) => matches(child, wanted))
  );
}

/** Return the visible rows. A filter unfolds the rows that contain a match. */
function flatten(rows, isOpen, wanted, depth = 0) {
  const flat = [];
  for (const row of rows) {
    if (wanted && !matches(row, wanted)) continue;
    const own = row.name.toLowerCase().includes(wanted);
    const users = wanted && !own ? row.users.filter((user) => user.name.toLowerCase().includes(wanted)) : row.users;
    const open = isOpen(row.name) || Boolean(wanted && !own);
    flat.push({ ...row, depth, open, foldable: isFoldable(row) });
    if (!open) continue;
    flat.push(...users.map((user) => ({ ...user, depth: depth + 1 })));
    flat.push(...flatten(row.children, isOpen, own ? "" : wanted, depth + 1));
  }
  return flat;
}

/** Return the numbers of a row: used and fair share. An absent one is "". */
function amountsOf(row, units) {
  if (!row.part) return ["", ""];
  const { used, owed } = row.part;
  return [units.total ? `${units.say(used)} (${percent(used)})` : units.say(used), !row.isUser || row.pending || used ? units.say(owed) : ""];
}

/** Format the guarantees or limits of a tenant by pool, each with its use: "h100: 21 of 24". */
function quotasText({ quotas = [], used }, kind) {
  const bounds = quotas.map((quota) => [quota.pool, withUse(quota[kind], used[quota.pool], kind === "guarantee")]);
  return inPoolsShort(Object.fromEntries(bounds)).replaceAll(" of ", "\u00a0of\u00a0").replaceAll(": ", ":\u00a0").replaceAll(" ·", "\u00a0·");
}

/** Return the pools in which a tenant uses as much as its limit, or more. */
function poolsAtLimit({ quotas = [], used }) {
  const isReached = ([name, most], there) => number(there?.[name]) > 0 && number(there[name]) >= number(most);
  return quotas.filter((quota) => Object.entries(quota.limit).some((limit) => isReached(limit, used[quota.pool]))).map((quota) => quota.pool);
}

/** Return the part of a row for its bar. A bar adds pools, so it has only quotas that all of them have. */
function drawnPart({ part, of }, { pools }) {
  const hasAll = (kind) => pools.length && pools.every((pool) => of.quotas?.some((quota) => quota.pool === pool && Object.keys(quota[kind]).length));
  return { ...part, guarantee: hasAll("guarantee") ? part.guarantee : 0, limit: hasAll("limit") ? part.limit : null };
}

export function TenantTable({ state, hello, query, tops, name }) {
  const units = unitsOf(state.pools);
  const sort = query.get("sort") ?? "name";
  const wanted = (query.get("filter") ?? "").trim().toLowerCase();
  const opened = new Set((query.get("open") ?? "").split(",").filter(Boolean)); // names as in an address
  const rows = tops ?? tree(state, sort);
  const flat = flatten(rows, (tenant) => opened.has(ALL) || opened.has(encodeURIComponent(tenant)), wanted);
  // The scale depends on all rows, so that a filter does not change the length of a bar.
  const parts = state.tenants.filter((tenant) => state.owed[tenant.name]).map((of) => drawnPart({ part: state.owed[of.name], of }, units));
  const end = scaleEnd(parts);
  const marks = new Set(flat.filter((row) => row.part).flatMap((row) => marksOf(drawnPart(row, units), end)));
  const fold = (tenant, open) => {
    const next = new Set(opened.has(ALL) ? state.tenants.map((each) => encodeURIComponent(each.name)) : opened);
    if (open) next.add(encodeURIComponent(tenant));
    else next.delete(encodeURIComponent(tenant));
    change({ open: [...next].join(",") });
  };
  const columns = [
    { name: "Tenant, user", kind: "name", key: "name", direction: "ascending", term: "tenant" },
    { name: `${units.name}, 0 to ${units.say(end)}`, kind: "share", key: "distance", direction: "ascending" },
    { name: "Used", kind: "number" },
    { name: "Fair share", kind: "number" },
    { name: "Guarantee", kind: "quota", term: "guarantee" },
    { name: "Limit", kind: "quota", term: "limit" },
    { name: "By pool", kind: "used", term: "pool" },
    { name: "Waiting GPUs", kind: "number", key: "waiting", term: "held" },
    { name: "Pods", kind: "number" },
    { name: "Longest wait", kind: "number", key: "wait" },
  ];
  return html`
    <div class="card-head"><${BarLegend} marks=${marks} />${(tops ? tops.flatMap((row) => row.children) : rows).some(isFoldable) ? html`<${FoldAll} />` : null}</div>
    ${flat.length
      ? html`<${More} items=${flat} step=${STEP} noun="rows">
          ${(shown) => html`<${Table} name=${name} columns=${columns} sort=${sort} onSort=${(key) => change({ sort: key })} role="treegrid" bodyId="tenant-rows" onKeyDown=${(event) => arrow(event, fold)}>
            ${shown.map((row) => html`<${Row} key=${row.key} row=${row} end=${end} units=${units} fold=${fold} />`)}
          <//>`}
        <//>`
      : html`<${NoTenants} hello=${hello} wanted=${wanted} />`}
    <${UnitsNote} units=${units} />
    ${flat.length && !hello.everyTenant ? html`<p class="note">Other tenants are not shown: you may not see them.</p>` : null}
    ${state.leftOut.users ? html`<p class="note">${count(state.leftOut.users, "user")} with less use and fewer pods are left out. Open a tenant to see all of its users.</p>` : null}
  `;
}

function FoldAll() {
  return html`<p class="fold-all">
    <button type="button" onClick=${() => change({ open: ALL })}>Unfold all</button>
    <button type="button" onClick=${() => change({ open: "" })}>Fold all</button>
  </p>`;
}

function NoTenants({ hello, wanted }) {
  if (wanted) return html`<${Empty}>No tenant or user contains "${visible(wanted)}". The search at the top also finds pods, jobs and nodes.<//>`;
  if (hello.everyTenant) {
    return html`<${Empty} command="kubectl apply -f docs/examples/two-teams.yaml">There are no tenants, and no pod waits. A Tenant gives a team a weight and namespaces. Try:<//>`;
  }
  return html`<${Empty}>You may not see any tenant. Ask for the right to get tenants/queue of yours.<//>`;
}

function Row({ row, end, units, fold }) {
  const { of, part } = row;
  const [used, fair] = amountsOf(row, units);
  const full = poolsAtLimit(of).map(visible).join(", ");
  const tag = row.isUser ? "" : of.paused ? "paused" : of.exists ? "" : "no Tenant resource";
  const target = row.isUser ? address("queues", [], { tenant: row.tenant, user: row.name }) : address("tenants", [row.name]);
  return html`<tr role="row" class=${row.isUser ? "user" : "tenant"} data-depth=${Math.min(row.depth, 4)} data-name=${row.isUser ? undefined : row.name} aria-level=${row.depth + 1} aria-expanded=${row.foldable ? String(row.open) : undefined} tabindex=${row.isUser ? undefined : "0"}>
    <${RowHead}><span class="row-name">
      ${row.foldable
        ? html`<button type="button" class="fold" tabindex="-1" aria-label=${`${row.open ? "Fold" : "Unfold"} ${visible(row.name)}`} onClick=${() => fold(row.name, !row.open)}>${row.open ? "▾" : "▸"}</button>`
        : html`<span class="fold"></span>`}
      <a class="label" href=${target}>${visible(row.name)}</a>
      ${of.weight !== "1" ? html`<span class="tag">weight ${of.weight}</span>` : null}
      ${tag ? html`<span class="tag">${tag}</span>` : null}
      ${row.isInCircle ? html`<span class="tag attention">its parents form a circle</span>` : null}
      ${full ? html`<span class="tag attention">at its limit in ${full}</span>` : null}
    </span><//>
    <${Cell} kind="share" label="Share">
      ${part ? html`<${ShareBar} part=${drawnPart(row, units)} end=${end} />` : null}
    <//>
    <${Cell} kind="number" label="Used">${used}<//>
    <${Cell} kind="number" label="Fair share">${fair}<//>
    <${Cell} kind="quota" label="Guarantee">${quotasText(of, "guarantee")}<//>
    <${Cell} kind="quota" label="Limit">${quotasText(of, "limit")}<//>
    <${Cell} kind="used" label="By pool">${inPoolsShort(of.used)}<//>
    <${Cell} kind="number" label="Waiting GPUs">${row.request ? devicesShort(row.request) : ""}<//>
    <${Cell} kind="number" label="Pods">${row.pending ? decimal(row.pending) : ""}<//>
    <${Cell} kind="number" label="Longest wait">${row.sinceText ? ago(row.sinceText) : ""}<//>
  </tr>`;
}

/** Keys of a tree grid: Right unfolds, Left folds, Up and Down move. */
function arrow(event, fold) {
  const row = event.target.closest?.("tr[aria-level]");
  if (!row) return;
  const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (step) {
    let next = row[step];
    while (next && !next.hasAttribute("tabindex")) next = next[step];
    next?.focus();
  } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    if (row.hasAttribute("aria-expanded")) fold(row.dataset.name, event.key === "ArrowRight");
  } else if (event.key === "Enter" && event.target === row) row.querySelector("a")?.click();
  else return;
  event.preventDefault();
}
