// Pools and a map of their nodes. A cell is a device, coloured by the tenant that uses it.

import { ago, amounts, compareNames, count, decimal, deviceOf, hasPath, number, percent, visible } from "../format.js";
import { Cell, Details, Empty, More, RowHead, Table, Term, useAnswer } from "../components.js";
import { address, change, podAddress } from "../router.js";
import { html } from "../vendor/htm/preact-standalone.js";
import { useOf } from "../units.js";

/** Most nodes of all pools that are shown at first. */
const STEP = 500;
const POD_STEP = 100;
const AGAIN = 5;
const MOST_CELLS = 16;

/** Most cells of a node with more use than capacity: a pod that names its node can request any number. */
const MOST_BEYOND = 2 * MOST_CELLS;

/** Above this number of nodes, the names are in the tooltips and in the table only. */
const MOST_NAMED = 100;
const COLOURS = 8;
const PATTERNS = ["", " pattern", " bars"];

/**
 * Return a class for each tenant that can have pods, by name, so that use does not change it: colours
 * first, then the same colours with a pattern. Tenants beyond these look like other tenants.
 */
function colours(tenants) {
  const names = tenants.filter((tenant) => tenant.namespaces.length || !tenant.exists).map((tenant) => tenant.name);
  const shown = names.sort(compareNames).slice(0, COLOURS * PATTERNS.length);
  return new Map(shown.map((name, index) => [name, `tenant-${(index % COLOURS) + 1}${PATTERNS[Math.floor(index / COLOURS)]}`]));
}

export function Nodes({ state, hello, query, name, node, ask }) {
  if (node) return html`<${NodePods} key=${node} pool=${name} node=${node} state=${state} hello=${hello} ask=${ask} />`;
  if (!state.pools.length) {
    return html`<section class="card"><h1>Nodes</h1><${Empty} command="kubectl get nodes -L nvidia.com/gpu.product">There is no pool, because no node offers a GPU. See which nodes there are:<//></section>`;
  }
  const kinds = colours(state.tenants);
  const pools = name ? state.pools.filter((pool) => pool.name === name) : state.pools;
  const wanted = (query.get("node") ?? "").trim().toLowerCase();
  const isDense = pools.reduce((sum, pool) => sum + pool.members.length, 0) > MOST_NAMED;
  const used = new Set(pools.flatMap((pool) => pool.members.flatMap((member) => Object.keys(member.tenants))));
  const shownTenants = [...kinds].filter(([tenant]) => used.has(tenant));
  return html`
    <h1>Nodes</h1>
    <div class="bar-of-tools"><label for="node">Node</label><input id="node" type="search" placeholder="part of a name" value=${query.get("node") ?? ""} onInput=${(event) => change({ node: event.target.value })} /></div>
    <ul class="legend" aria-label="Colours of tenants">
      ${shownTenants.map(([tenant, kind]) => html`<li key=${tenant}><i class=${`device ${kind}`}></i>${visible(tenant)}</li>`)}
      <li><i class="device others"></i>other tenants</li>
      <li><i class="device free"></i>free</li>
      <li><i class="device reserved"></i><${Term} name="reservation">free, but reserved<//></li>
      <li><span class="away-key" aria-hidden="true">✕</span><${Term} name="not ready">not ready<//></li>
      <li><span class="away-key" aria-hidden="true">⊘</span><${Term} name="cordoned">cordoned<//></li>
    </ul>
    ${name && !pools.length ? html`<${Empty}>There is no pool ${visible(name)}.<//>` : null}
    ${pools.map((pool) => html`<${Pool} key=${pool.name} pool=${pool} kinds=${kinds} wanted=${wanted} isDense=${isDense} step=${Math.ceil(STEP / pools.length)} />`)}
    ${state.leftOut.nodes ? html`<p class="note">${count(state.leftOut.nodes, "node")} beyond these are left out. To see all: <code>kubectl get nodes</code></p>` : null}
  `;
}

function Pool({ pool, kinds, wanted, isDense, step }) {
  const device = deviceOf(pool.capacity);
  const { used, total, beyond } = useOf(pool);
  const facts = [count(pool.nodes, "ready node")];
  if (total) facts.push(`${decimal(used)} of ${amounts({ [device]: pool.capacity[device] })} used${beyond}`, percent(used / total));
  if (pool.paused) facts.push("paused: no pod is released into it");
  const nodes = pool.members.filter((node) => node.name.toLowerCase().includes(wanted)).sort((one, other) => compareNames(one.name, other.name));
  return html`<section class="card" aria-label=${`Pool ${visible(pool.name)}`}>
    <h2>${visible(pool.name)}</h2>
    <p class="pool-words">${facts.join(" · ")}</p>
    ${nodes.length
      ? html`<${More} items=${nodes} step=${step} noun="nodes">
          ${(shown) => html`
            ${byDomain(shown).map(([domain, members]) => html`${domain ? html`<h3 key=${`of ${domain}`}>${visible(domain)}</h3>` : null}
              <ul key=${domain} class=${isDense ? "nodes dense" : "nodes"} aria-label=${`Nodes of ${visible(`${pool.name} ${domain}`.trim())}`}>${members.map((node) => html`<${Node} key=${node.name} node=${node} device=${device} kinds=${kinds} pool=${pool.name} />`)}</ul>`)}
            <${Details} summary="Nodes as a table">${() => html`<${NodeTable} pool=${pool} nodes=${shown} />`}<//>`}
        <//>`
      : html`<${Empty}>${wanted ? `No node of this pool contains "${visible(wanted)}".` : "The pool has no node yet."}<//>`}
  </section>`;
}

/** Return the nodes by rack or zone, as pairs of its name and its nodes. */
function byDomain(nodes) {
  const found = new Map();
  for (const node of nodes) found.set(node.domain ?? "", [...(found.get(node.domain ?? "") ?? []), node]);
  return [...found].sort(([one], [other]) => compareNames(one, other));
}

/** Return the sign and the word of a node that takes no pod. They differ without colour. */
function stateOf(node) {
  if (node.cordoned) return ["⊘", "cordoned"];
  return node.ready ? ["", ""] : ["✕", "not ready"];
}

/** Return the class of each device of a node. Devices of hidden tenants are `others`. */
function cellsOf(node, device, kinds) {
  const capacity = Math.ceil(number(node.capacity[device]));
  const used = number(node.used[device]);
  const each = Math.max(1, capacity / MOST_CELLS);
  const cells = [];
  for (const [tenant, taken] of Object.entries(node.tenants)) {
    for (let left = number(taken[device]); left > 0 && cells.length < MOST_BEYOND; left -= each) cells.push(kinds.get(tenant) ?? "others");
  }
  const whole = Math.min(MOST_BEYOND, Math.ceil(used / each));
  while (cells.length < whole) cells.push("others");
  const room = Math.min(MOST_CELLS, capacity);
  const kept = Math.min(room, cells.length + Math.ceil(number(node.reserved?.[device]) / each));
  while (cells.length < kept) cells.push("reserved");
  while (cells.length < room) cells.push("free");
  return cells.slice(0, Math.max(room, whole));
}

function Node({ node, device, kinds, pool }) {
  const [used, capacity] = [number(node.used[device]), number(node.capacity[device])];
  const tenants = Object.entries(node.tenants).map(([tenant, taken]) => `${visible(tenant)} ${amounts(taken)}`);
  const [sign, state] = stateOf(node);
  const kept = number(node.reserved?.[device]);
  const words = `${decimal(used)} of ${decimal(capacity)} used${kept ? `, ${decimal(kept)} reserved` : ""}${state ? `, ${state}` : ""}${tenants.length ? `; ${tenants.join("; ")}` : ""}`;
  return html`<li class=${node.ready ? "node" : "node away"} title=${`${visible(node.name)}: ${words}`}>
    <a href=${address("nodes", [pool, node.name])}>
      <span class="cells" aria-hidden="true">${cellsOf(node, device, kinds).map((kind, index) => html`<i key=${index} class=${`device ${kind}`}></i>`)}</span>
      <span class="node-name">${sign ? html`<span class="away-key" aria-hidden="true">${sign} </span>` : null}${visible(node.name)}</span>
    </a>
    <span class="unseen">: ${words}</span>
  </li>`;
}

function NodeTable({ pool, nodes }) {
  const columns = [
    { name: "Node", kind: "name" },
    { name: "State", kind: "used" },
    { name: "Used", kind: "used" },
    { name: "Capacity", kind: "used" },
    { name: "Tenants", kind: "used", term: "tenant" },
  ];
  return html`<${Table} name=${`Nodes of ${visible(pool.name)}`} columns=${columns}>
    ${nodes.map((node) => html`<tr role="row" key=${node.name}>
      <${RowHead}><a href=${address("nodes", [pool.name, node.name])}>${visible(node.name)}</a><//>
      <${Cell} kind="used" label="State">${stateOf(node)[1] || "ready"}<//>
      <${Cell} kind="used" label="Used">${amounts(node.used)}<//>
      <${Cell} kind="used" label="Capacity">${amounts(node.capacity)}<//>
      <${Cell} kind="used" label="Tenants">${Object.keys(node.tenants).map(visible).join(", ")}<//>
    </tr>`)}
  <//>`;
}

/** The released pods of one node. */
function NodePods({ pool, node, state, hello, ask }) {
  const path = hasPath(node) ? `/v1/nodes/${encodeURIComponent(node)}/pods` : null;
  const { data, error } = useAnswer(ask, path, AGAIN);
  const isUnknown = !path || (hello.pools && !state.leftOut.nodes && !state.pools.some((each) => each.name === pool && each.members.some((member) => member.name === node)));
  const columns = [
    { name: "Pod", kind: "name" },
    { name: "Tenant", kind: "name", term: "tenant" },
    { name: "User", kind: "name" },
    { name: "Requests", kind: "used" },
    { name: "Released", kind: "number", term: "released" },
  ];
  return html`<section class="card" aria-labelledby="node-title">
    <div class="card-head">
      <h1 id="node-title">Node ${visible(node)}</h1>
      <p><a href=${address("nodes", [pool])}>Pool ${visible(pool)}</a> · <a href=${address("nodes")}>All nodes</a></p>
    </div>
    ${error ? html`<p class="problem" role="alert">The pods cannot be shown: ${visible(error.message)}</p>` : null}
    ${path && !data && !error ? html`<p class="note" role="status">Loading …</p>` : null}
    ${isUnknown ? html`<${Empty}>Pool ${visible(pool)} has no node ${visible(node)}.<//>` : null}
    ${hello.pools ? null : html`<p class="note">You see your pods, and those of tenants whose queue you may see. You may not see the node itself. The right is: list pools.fairgate.io.</p>`}
    ${data && !isUnknown && !data.items.length && !data.hidden ? html`<${Empty}>No pod that requests a GPU runs on this node.<//>` : null}
    ${data?.items.length
      ? html`<${More} items=${data.items} step=${POD_STEP} noun="pods">
          ${(shown) => html`<${Table} name=${`Pods of ${visible(node)}`} columns=${columns} bodyId="node-pods">
            ${shown.map((pod) => html`<tr role="row" key=${pod.uid}>
              <${RowHead}><a href=${podAddress(pod.namespace, pod.name)}>${visible(`${pod.namespace}/${pod.name}`)}</a><//>
              <${Cell} kind="name" label="Tenant"><a href=${address("tenants", [pod.tenant])}>${visible(pod.tenant)}</a><//>
              <${Cell} kind="name" label="User">${visible(pod.user)}<//>
              <${Cell} kind="used" label="Requests">${amounts(pod.request)}<//>
              <${Cell} kind="number" label="Released">${pod.since ? `${ago(pod.since)} ago` : ""}<//>
            </tr>`)}
          <//>`}
        <//>`
      : null}
    ${data?.hidden ? html`<p class="note">${count(data.hidden, "pod")} of other tenants ${data.hidden === 1 ? "is" : "are"} not shown: you may not see ${data.hidden === 1 ? "it" : "them"}.</p>` : null}
  </section>`;
}
