// The terms of the page, the wait reasons, and the faults with what to do.

import { html, useEffect, useRef } from "../vendor/htm/preact-standalone.js";

const TERMS = [
  ["fair share", "The part of the cluster that a tenant or user gets if the others that use or wait stay the same. It follows from weights, guarantees and limits."],
  ["guarantee", "The amount that a tenant gets before its siblings. It counts outside the parent only if each tenant above has a guarantee that covers it. Others may borrow it while it is unused."],
  ["limit", "The most that a tenant may use."],
  ["borrowed", "Use beyond the guarantee. It may be reclaimed for the guarantee of another tenant."],
  ["weight", "How much a tenant or user gets in proportion to its siblings."],
  ["weighted GPUs", "GPUs of all pools, added with the weight of their pool. So an H100 can count as four T4."],
  ["score", "Use beyond the guarantee, divided by the weight. A sibling within its guarantee goes first, and then the one with the lowest score."],
  ["pool", "Nodes of one kind. Capacity is counted per pool."],
  ["gang", "Pods that are released together."],
  ["held", "Fairgate holds a pod by a scheduling gate until it is the pod's turn. Then it releases the pod to the scheduler."],
  ["reservation", "Capacity that is kept free until a large workload fits."],
  ["place", "The position of a pod among the waiting pods of its user in one tenant. The fair order decides between users and tenants."],
  ["estimate", "A forecast from the run times of earlier pods. Half of such pods start by the first time, and nine in ten by the second."],
  ["tenant", "A team with its namespaces. Tenants form a tree, and a tenant divides its share among its users and child tenants."],
  ["quota", "Guarantee and limit of a tenant in one pool."],
  ["released", "Fairgate removed the scheduling gate of the pod, so the scheduler starts it. The pod counts as use until it ends."],
  ["wait reason", "The rule that keeps a pod waiting now. All of them are under \"Why a pod waits\" below."],
  ["competitor", "A tenant or user that goes first. At each level of the tree, it is compared with the branch of the pod: a tenant above the pod, or its user."],
  ["half, nine in ten", "Of the released pods, half waited at most the first time, and nine in ten at most the second: the 50th and 90th percentile."],
  ["cordoned", "An administrator closed the node to new pods (kubectl cordon). Its pods go on."],
  ["not ready", "The kubelet of the node does not report, or reports a fault. The node takes no pod."],
  ["audit chain", "The signed list of all decisions and changes. Nobody can change an entry unnoticed."],
  ["epoch", "A number that grows with each new leader. It keeps an old leader from making decisions."],
  ["drift", "The measured difference between siblings after a release, as a part of the bound that the fair order guarantees. It never exceeds 100 %."],
  ["Jain's index", "A measure of equality among the top tenants that wait: 1 if their shares by weight are equal. Guarantees, limits and requests of different sizes lower it, so a low value is no fault. The drift measures the fair order."],
];

/** Wait reason, meaning, what helps. */
const REASONS = [
  ["capacity", "Not enough is free, or free nodes refused pods and are left out for a while.", "Wait, ask for less, or allow another pool."],
  ["fair order", "Others, or earlier or more urgent work of the same user, go first when capacity is free.", "Wait. The end of running pods. For work of one user, a higher priority. A higher weight. The admin of your tenant sets that of a user. An admin of the parent tenant or a cluster admin sets that of your tenant."],
  ["limit", "Your tenant, or one above it, is at its limit.", "The end of pods of your tenant. A higher limit, which an admin of its parent or a cluster admin sets."],
  ["guarantee of others", "A tenant within its guarantee comes first.", "Wait. A guarantee for your tenant, which an admin of its parent or a cluster admin sets."],
  ["reservation", "Capacity is reserved for a large workload that has waited long.", "Wait. The annotation fairgate.io/max-runtime, if your pod ends before."],
  ["gang incomplete", "Some pods of the gang do not exist yet, or its size is unknown.", "Create them, or the Job or PodGroup that gives the size."],
  ["gang begins anew", "A pod of the gang was lost before all ran.", "See the log and the events of the lost pod."],
  ["no pool", "No pool can serve the node selector, tenant and size of the pod.", "Change the node selector, the affinity or fairgate.io/pools of the pod."],
  ["not preemptible", "The pod must not be evicted, so it starts only within a guarantee.", "Leave out that annotation. Allow at least one disruption in its budget."],
  ["resource claim", "A claim that the pod names does not exist yet, is being deleted, or cannot be joined now.", "Create the claim, or wait for it."],
  ["too large", "One of the lists of the pod is longer than Fairgate accepts.", "Create the pod again with fewer entries."],
  ["another gate", "The pod has another scheduling gate, too.", "Ask the owner of that gate."],
  ["no tenant", "The namespace just lost its tenant, or a tenant above it is not valid.", "After a lost tenant, wait half a minute, or ask an admin to list the namespace. Otherwise ask a cluster admin to correct the parent that the text names."],
  ["tenant paused", "Your tenant, or one above it, is paused.", "Ask an admin of the parent of that tenant, or a cluster admin."],
  ["found no node", "An identical pod was released and found no node.", "Check its other requirements on nodes: volumes, host ports, affinity to pods."],
  ["release refused", "The API server refused the release of the pod.", "Ask a cluster admin about other admission webhooks and policies."],
  ["binding stalled", "The scheduler has not handled pods that were released earlier.", "Wait. If it lasts, ask a cluster admin to check the scheduler."],
  ["unowned pods", "Too many of your pods without a controller were released and found no node.", "Delete them, or use a Job in place of bare pods."],
  ["postponed", "Fairgate took too long to find a place for the pod. It tries again later.", "Shorter lists in affinity, tolerations and claims."],
  ["queued", "The page does not know the reason yet. It looks for the reasons of all queues a few at a time.", "Wait a few seconds, or open the pod."],
];

/** Fault, meaning, what an operator does. The codes are those of the stream. */
const FAULTS = [
  ["NoLeader", "No controller leads, so no pod is released. Held pods keep their order.", "kubectl -n fairgate-system get lease fairgate-controller -o yaml; kubectl -n fairgate-system get pods"],
  ["RedisUnreachable", "Redis does not answer. Releases are paused until it does, and then continue.", "kubectl -n fairgate-system get events; check the address and the pod of Redis"],
  ["StaleData", "The API server sends no changes to this replica, so the page may be old.", "kubectl get --raw /readyz; kubectl -n fairgate-system logs deployment/fairgate-api"],
  ["WebhookSilent", "No webhook replica reports. Pods that request GPUs may not be created.", "kubectl -n fairgate-system get pods; kubectl -n fairgate-system logs deployment/fairgate-webhook"],
  ["EnforcementFails", "A probe found that a pod is not held or not refused as it must be.", "fairgate doctor; kubectl -n fairgate-system logs deployment/fairgate-webhook"],
  ["ConnectionLost", "Your browser does not reach the API of Fairgate. The data on the page is old.", "kubectl -n fairgate-system get pods; with kubectl fairgate open: start it again"],
  ["UnexpectedData", "The API sent data that the page does not expect, such as that of another version.", "reload the page; kubectl -n fairgate-system logs deployment/fairgate-api"],
  ["Observe", "Fairgate counts and reports, but holds no pod.", "helm upgrade fairgate charts/fairgate -n fairgate-system --reset-then-reuse-values --set mode=Enforce; if the Policy sets the mode: kubectl patch policies.fairgate.io default --type merge -p '{\"spec\": {\"mode\": \"Enforce\"}}'"],
];

function Entry({ name, chosen, children }) {
  const place = useRef(null);
  const isChosen = name === chosen;
  useEffect(() => {
    if (isChosen) place.current.scrollIntoView({ block: "center" });
  }, [isChosen]);
  return html`<div ref=${place} class=${isChosen ? "chosen" : ""} aria-current=${isChosen ? "true" : undefined}><dt>${name}</dt><dd>${children}</dd></div>`;
}

export function Glossary({ query, state }) {
  const [chosen, reason] = [query.get("term"), query.get("reason")];
  return html`<section class="card" aria-labelledby="terms-title">
    <h1 id="terms-title">Terms and figures</h1>
    <dl class="facts terms">
      ${TERMS.map(([term, text]) => html`<${Entry} key=${term} name=${term} chosen=${chosen}>${text}<//>`)}
    </dl>
    <h2>Why a pod waits</h2>
    <dl class="facts terms">
      ${REASONS.map(([rule, text, help]) => html`<${Entry} key=${rule} name=${rule} chosen=${reason}>${text} <b>What helps:</b> ${help}<//>`)}
    </dl>
    <h2>Faults</h2>
    <p class="note">The commands are for Fairgate's namespace, which is fairgate-system by default.</p>
    <dl class="facts terms">
      ${FAULTS.map(([code, text, command]) => html`<${Entry} key=${code} name=${code} chosen=${chosen}>${text} <code>${command}</code><//>`)}
    </dl>
    <h2>Fairness now</h2>
    <dl class="facts">
      <div><dt>Drift</dt><dd>${typeof state?.drift === "number" ? `${Math.round(100 * state.drift)} % of its bound` : "unknown without a leader"}</dd></div>
      <div><dt>Jain's index</dt><dd>${typeof state?.jain === "number" ? state.jain.toFixed(2) : "unknown"}</dd></div>
      <div><dt>Leader's epoch</dt><dd>${state?.epoch ?? "none"}</dd></div>
    </dl>
  </section>`;
}
