// The terms of the page.

import { html } from "../vendor/htm/preact-standalone.js";

const TERMS = [
  ["fair share", "The part of the cluster that a tenant or user gets if the others that use or wait stay the same. It follows from weights, guarantees and limits."],
  ["guarantee", "The amount that a tenant can always get. Others may borrow it while it is unused."],
  ["limit", "The most that a tenant may use."],
  ["borrowed", "Use beyond the guarantee. It may be reclaimed for the guarantee of another tenant."],
  ["weight", "How much a tenant or user gets in proportion to its siblings."],
  ["score", "Use beyond the guarantee, divided by the weight. The sibling with the lowest score goes first."],
  ["pool", "Nodes of one kind. Capacity is counted per pool."],
  ["gang", "Pods that are released together or not at all."],
  ["reservation", "Capacity that is kept free until a large workload fits."],
  ["drift", "The measured difference between siblings after a release, as a part of the bound that the fair order guarantees. It never exceeds 100 %."],
  ["Jain's index", "A measure of equality among tenants that wait: 1 is equal."],
  ["estimate", "A forecast from the run times of earlier pods. Half of such pods start by the first time, and nine in ten by the second."],
];

export function Glossary({ query, state }) {
  const chosen = query.get("term");
  return html`<section class="card" aria-labelledby="terms-title">
    <h1 id="terms-title">Terms and figures</h1>
    <dl class="facts terms">
      ${TERMS.map(([term, text]) => html`<div key=${term} class=${term === chosen ? "chosen" : ""}><dt>${term}</dt><dd>${text}</dd></div>`)}
    </dl>
    <h2>Fairness now</h2>
    <dl class="facts">
      <div><dt>Drift</dt><dd>${state?.drift === null || state === null ? "unknown without a leader" : `${Math.round(100 * state.drift)} % of its bound`}</dd></div>
      <div><dt>Jain's index</dt><dd>${state?.jain === null || state === null ? "unknown" : state.jain.toFixed(2)}</dd></div>
      <div><dt>Leader's epoch</dt><dd>${state?.epoch ?? "none"}</dd></div>
    </dl>
  </section>`;
}
