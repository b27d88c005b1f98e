// The caller's own work: shares, places, reasons and estimates. It needs no right.

import { count, decimal, inPools, percent, visible } from "../format.js";
import { Empty, More, Term, useAnswer } from "../components.js";
import { PodTable } from "./queues.js";
import { address } from "../router.js";
import { html } from "../vendor/htm/preact-standalone.js";

const AGAIN = 5;
const STEP = 100;

export function MyWork({ ask, isAlone }) {
  const { data: me, error } = useAnswer(ask, "/v1/me", AGAIN);
  if (!me && error) return html`<p class="problem" role="alert">Your work cannot be shown: ${visible(error.message)}</p>`;
  if (!me) return html`<p class="note" role="status">Loading …</p>`;
  const held = me.workloads.filter((each) => each.state === "held");
  const released = me.workloads.filter((each) => each.state === "released");
  const waiting = me.tenants.reduce((sum, each) => sum + each.pending, 0);
  const heldLeft = Math.max(0, waiting - held.reduce((sum, each) => sum + each.pods, 0));
  const releasedLeft = Math.max(0, me.leftOut - heldLeft);
  return html`
    <h1>My work</h1>
    ${me.tenants.map((each) => html`<${Share} key=${each.tenant} each=${each} isAlone=${isAlone} />`)}
    <section class="card" aria-labelledby="mine-held">
      <h2 id="mine-held">Waiting: ${count(waiting, "pod")}</h2>
      ${heldLeft ? html`<p>${count(heldLeft, "pod")} beyond these are in your queues: ${me.tenants.filter((each) => each.pending).map((each) => html`<a key=${each.tenant} href=${address("queues", [], { tenant: each.tenant, user: me.name })}>${visible(each.tenant)}</a> `)}</p>` : null}
      ${held.length ? html`<${Pods} name="My waiting pods" pods=${held} /><p class="note">A pod opens with the compared numbers, and with what would help.</p>` : html`<${Empty} command="kubectl apply -f job.yaml">None of your pods waits. A pod that requests GPUs appears here after:<//>`}
    </section>
    <section class="card" aria-labelledby="mine-released">
      <h2 id="mine-released">Released: ${count(released.length + releasedLeft, "pod")}</h2>
      ${released.length ? html`<${Pods} name="My released pods" pods=${released} areReleased=${true} />` : html`<${Empty}>None of your pods uses a GPU.<//>`}
      ${releasedLeft ? html`<p class="note">${count(releasedLeft, "pod")} beyond these are left out. The search at the top finds each pod.</p>` : null}
    </section>
  `;
}

function Pods({ name, pods, areReleased = false }) {
  return html`<${More} items=${pods} step=${STEP} noun="pods">${(shown) => html`<${PodTable} name=${name} pods=${shown} withTenant=${true} areReleased=${areReleased} />`}<//>`;
}

/** `isAlone`: the caller sees no other view, so the tenant has no link. */
function Share({ each, isAlone }) {
  return html`<section class="card" aria-label=${`My share of ${visible(each.tenant)}`}>
    <h2>${isAlone ? visible(each.tenant) : html`<a href=${address("tenants", [each.tenant])}>${visible(each.tenant)}</a>`}</h2>
    <p>You use <b>${percent(each.used)}</b> of the cluster${inPools(each.amounts) ? html` (${inPools(each.amounts)})` : null}. Your <${Term} name="fair share">fair share<//> is <b>${percent(each.fairShare)}</b> while the others that use or wait stay the same, at <${Term} name="weight">weight<//> ${decimal(Number(each.weight))}.</p>
    <p class="note">The tenant uses ${percent(each.tenantUsed)}, and its fair share is ${percent(each.tenantFairShare)}.</p>
  </section>`;
}
