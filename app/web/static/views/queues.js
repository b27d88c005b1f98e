// Queues by wait reason, and the pods of one queue in order.

import { ago, amounts, count, devices, devicesShort, estimateText, hasPath, sentence, visible } from "../format.js";
import { Cell, Empty, More, needsAttention, NotAllowed, rightIn, RowHead, Rule, Table, Term, UnitsNote, useAnswer } from "../components.js";
import { address, change, podAddress } from "../router.js";
import { Filter } from "./overview.js";
import { unitsOf } from "../units.js";
import { html, useState } from "../vendor/htm/preact-standalone.js";

const STEP = 100;
const PAGE = 50;
const AGAIN = 5;

/** A queue with more rows than this is read less often. */
const LONG = 500;
const SELDOM = 30;

const SORTS = {
  name: () => 0,
  waiting: (queue) => -devices(queue.request),
  wait: (queue) => Date.parse(queue.since),
  distance: (queue, part) => (part ? part.used - part.owed : 0),
};

function ByRule({ queues, chosen }) {
  const sums = new Map();
  for (const queue of queues) {
    for (const [rule, pods] of Object.entries(queue.rules)) sums.set(rule, (sums.get(rule) ?? 0) + pods);
  }
  const rules = [...sums].sort(([one, a], [other, b]) => needsAttention(other) - needsAttention(one) || b - a);
  return html`<ul class="rules" aria-label="Pods by wait reason">
    ${rules.map(([rule, pods]) => html`<li key=${rule}><${Term} name=${rule} kind="reason"><button type="button" aria-pressed=${String(chosen === rule)} onClick=${() => change({ rule: chosen === rule ? "" : rule })}><${Rule} rule=${rule} pods=${pods} /></button><//></li>`)}
  </ul>`;
}

export function Queues({ state, hello, query }) {
  const wanted = (query.get("filter") ?? "").trim().toLowerCase();
  const rule = query.get("rule") ?? "";
  const sort = query.get("sort") ?? "waiting";
  const units = unitsOf(state.pools);
  const partOf = (queue) => state.owed[queue.tenant]?.users[queue.user];
  const by = (queue) => (Object.hasOwn(SORTS, sort) ? SORTS[sort] : SORTS.name)(queue, partOf(queue));
  const named = (queue) => [queue.tenant, queue.user].some((name) => name.toLowerCase().includes(wanted));
  const found = state.queues
    .filter((queue) => named(queue) && (!rule || rule in queue.rules))
    .sort((one, other) => by(one) - by(other) || (`${one.tenant} ${one.user}` < `${other.tenant} ${other.user}` ? -1 : 1));
  const columns = [
    { name: "Tenant", kind: "name", key: "name", direction: "ascending", term: "tenant" },
    { name: "User", kind: "name" },
    { name: "Used, of fair share", kind: "number", key: "distance", direction: "ascending", term: "fair share" },
    { name: "Waiting GPUs", kind: "number", key: "waiting", term: "held" },
    { name: "Pods", kind: "number" },
    { name: "Longest wait", kind: "number", key: "wait" },
    { name: "Reasons", kind: "rules", term: "wait reason" },
  ];
  return html`<section class="card" aria-labelledby="queues-title">
    <div class="card-head"><h1 id="queues-title">Queues</h1><${Filter} query=${query} label="Filter queues and reasons" placeholder="tenant or user" /></div>
    <${ByRule} queues=${state.queues.filter(named)} chosen=${rule} />
    ${found.length
      ? html`<${More} items=${found} step=${STEP} noun="queues">
          ${(shown) => html`<${Table} name="Queues" columns=${columns} sort=${sort} onSort=${(key) => change({ sort: key })} bodyId="queue-rows">
            ${shown.map((queue) => html`<${QueueRow} key=${`${queue.tenant} ${queue.user}`} queue=${queue} part=${partOf(queue)} units=${units} />`)}
          <//>`}
        <//>`
      : html`<${NoQueue} hello=${hello} filtered=${wanted || rule} />`}
    ${found.length ? html`<${UnitsNote} units=${units} />` : null}
    ${state.leftOut.queues ? html`<p class="note">${count(state.leftOut.queues, "queue")} beyond these are left out. The queue of each tenant is complete: open a tenant.</p>` : null}
  </section>`;
}

function NoQueue({ hello, filtered }) {
  if (filtered) return html`<${Empty}>No queue matches. The search at the top also finds pods and jobs.<//>`;
  if (hello.everyQueue || hello.queues.length) {
    return html`<${Empty} command="kubectl apply -f docs/examples/two-people.yaml">No pod waits. Pods wait here while GPUs are in use. Try:<//>`;
  }
  return html`<${Empty}>You may not see any queue. Ask for the right to get tenants/queue.<//>`;
}

/** A small screen shows the rest of a row after a tap. A large one shows all cells, and no button. */
function QueueRow({ queue, part, units }) {
  const [isOpen, setOpen] = useState(false);
  const target = address("queues", [], { tenant: queue.tenant, user: queue.user });
  return html`<tr role="row" class=${isOpen ? "open" : undefined}>
    <${RowHead}><a href=${address("tenants", [queue.tenant])}>${visible(queue.tenant)}</a>
      <button type="button" class="fold" aria-expanded=${String(isOpen)} aria-label=${`Details of ${visible(queue.tenant)}, ${visible(queue.user)}`} onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"}</button><//>
    <${Cell} kind="name" label="User"><a href=${target}>${visible(queue.user)}</a><//>
    <${Cell} kind="number detail" label="Used, of fair share">${part ? `${units.say(part.used)} of ${units.say(part.owed)}` : ""}<//>
    <${Cell} kind="number" label="GPUs">${devicesShort(queue.request)}<//>
    <${Cell} kind="number" label="Pods">${queue.pending}<//>
    <${Cell} kind="number" label="Waits">${ago(queue.since)}<//>
    <${Cell} kind="rules detail" label="Reasons">
      <ul class="rules">${Object.entries(queue.rules).map(([rule, pods]) => html`<li key=${rule}><${Rule} rule=${rule} pods=${pods} /></li>`)}</ul>
    <//>
  </tr>`;
}

/** The pods of one queue, a page at a time. */
/** `isAlone`: the caller sees no other view. */
export function Queue({ tenant, user, ask, isAlone }) {
  const [most, setMost] = useState(PAGE);
  const path = hasPath(tenant) ? `/v1/tenants/${encodeURIComponent(tenant)}/queue${user ? `?${new URLSearchParams({ user })}` : ""}` : null;
  const { data, error } = useAnswer(ask, path, most > LONG ? SELDOM : AGAIN, most);
  const title = user ? `${tenant}, ${user}` : tenant;
  return html`<section class="card" aria-labelledby="queue-title">
    <div class="card-head">
      <h1 id="queue-title">Queue of ${visible(title)}</h1>
      ${isAlone ? null : html`<p><a href=${address("queues")}>All queues</a></p>`}
    </div>
    ${error?.status === 403 ? html`<${NotAllowed} right=${rightIn(error.message)}>You may not see this queue.<//>` : error ? html`<p class="problem" role="alert">The pods cannot be shown: ${visible(error.message)}</p>` : null}
    ${path ? null : html`<${Empty}>There is no tenant ${visible(tenant)}.<//>`}
    ${data && !data.items.length ? html`<${Empty}>No pod of ${visible(title)} waits.<//>` : null}
    ${data?.items.length ? html`<${PodTable} name=${`Waiting pods of ${visible(title)}`} pods=${data.items} withUser=${!user} />` : null}
    ${data?.continue
      ? html`<p class="more"><button type="button" disabled=${data.items.length < most} onClick=${() => setMost(2 * most)}>${data.items.length < most ? "Loading …" : `Show up to ${most} more of the queue`}</button></p>`
      : null}
  </section>`;
}

/** Waiting or released pods. Released ones have no place, no rule and no estimate. */
export function PodTable({ name, pods, withUser, withTenant, areReleased }) {
  const waiting = (column) => (areReleased ? [] : [column]);
  const columns = [
    ...waiting({ name: "Place", kind: "number", term: "place" }),
    { name: "Pod", kind: "name", term: pods.some((pod) => pod.pods > 1) ? "gang" : undefined },
    ...(withUser ? [{ name: "User", kind: "name" }] : []),
    ...(withTenant ? [{ name: "Tenant", kind: "name", term: "tenant" }] : []),
    { name: "Requests", kind: "used" },
    ...waiting({ name: "Waits", kind: "number" }),
    { name: areReleased ? "State" : "Reason", kind: "reason", term: areReleased ? "released" : "wait reason" },
    ...waiting({ name: "Estimated start", kind: "used", term: "estimate" }),
  ];
  const withheld = areReleased ? [] : [...new Set(pods.map((pod) => pod.estimateWithheld).filter(Boolean))];
  return html`<${Table} name=${name} columns=${columns} bodyId="pod-rows">
    ${pods.map((pod) => {
      const more = pod.pods > 1 ? ` and ${pod.pods - 1} more of gang ${visible(pod.gang)}` : "";
      return html`<tr role="row" key=${pod.uid}>
        ${areReleased ? null : html`<${Cell} kind="number" label="Place">${pod.position ? `${pod.position} of ${pod.length}` : ""}<//>`}
        <${RowHead}><a href=${podAddress(pod.namespace, pod.name)}>${visible(`${pod.namespace}/${pod.name}`)}</a>${more}<//>
        ${withUser ? html`<${Cell} kind="name" label="User">${visible(pod.user)}<//>` : null}
        ${withTenant ? html`<${Cell} kind="name" label="Tenant">${visible(pod.tenant)}<//>` : null}
        <${Cell} kind="used" label="Requests">${amounts(pod.request ?? {})}<//>
        ${areReleased ? null : html`<${Cell} kind="number" label="Waits">${ago(pod.since)}<//>`}
        ${areReleased
          ? html`<${Cell} kind="reason" label="State">${sentence(pod.reason)}<//>`
          : html`<${Cell} kind="reason" label="Reason">${pod.rule ? html`<${Rule} rule=${pod.rule} />` : "not seen yet"} ${sentence(pod.reason ?? "")}<//>
            <${Cell} kind="used" label="Estimated start">${pod.estimate ? estimateText(pod.estimate) : pod.estimateWithheld ? "not known yet" : ""}<//>`}
      </tr>`;
    })}
  <//>
  ${withheld.map((why) => html`<p class="note" key=${why}>Estimated start not known yet: ${visible(why)}</p>`)}`;
}
