// Releases and waits of the past, from the audit chain.

import { Cell, Empty, More, RowHead, Table, Term } from "../components.js";
import { Chart, withGap } from "../chart.js";
import { count, dated, decimal, devicesShort, devicesText, lasting, visible } from "../format.js";
import { address } from "../router.js";
import { html, useMemo } from "../vendor/htm/preact-standalone.js";

const MOST_NAMED = 50;
const STEP = 50;

/** Return the tenants of a request: `tenant`, an empty list for all, or the visible tenants. */
export function namesOf(hello, tenant) {
  if (tenant) return [tenant];
  return hello.everyQueue ? [] : hello.queues.slice(0, MOST_NAMED);
}

/** Return a sentence if some visible tenants are not in the sums, else "". */
export function unnamedText(hello, tenant) {
  if (tenant || hello.everyQueue || hello.queues.length <= MOST_NAMED) return "";
  return `The first ${MOST_NAMED} of your ${hello.queues.length} tenants are counted. The view of a tenant has a link to its own history.`;
}

export function releasesPath(query) {
  return `/v1/releases?${new URLSearchParams(query)}`;
}

/** Return the values of the steps at `times`. `absent` is the value of a step without releases. */
function valuesOf(steps, times, value, absent) {
  const known = new Map(steps.map((step) => [Date.parse(step.at) / 1000, value(step)]));
  return times.map((at) => known.get(at) ?? absent);
}

export function Releases({ found, times, theme, onSelect }) {
  const { total, tenants, pools, steps, completeSince } = found;
  const waits = useMemo(
    () => [
      { name: "half waited at most", values: valuesOf(steps, times, (step) => step.waitP50, null) },
      { name: "nine in ten waited at most", values: valuesOf(steps, times, (step) => step.waitP90, null) },
    ],
    [found],
  );
  const pods = useMemo(() => [{ name: "released pods", values: withGap(valuesOf(steps, times, (step) => step.pods, 0), times, completeSince) }], [found]);
  const isPartial = completeSince === null || Date.parse(completeSince) / 1000 > times[0];
  return html`<section class="card" aria-labelledby="releases-title">
    <h2 id="releases-title"><${Term} name="released">Releases<//> and <${Term} name="half, nine in ten">waits<//></h2>
    ${total.pods
      ? html`
          <p class="releases-total">${count(total.pods, "pod")} released, with ${devicesText(total.request)}.${total.waitP50 === null ? "" : ` Half waited at most ${lasting(total.waitP50)}, nine in ten at most ${lasting(total.waitP90)}.`}</p>
          <${Chart} title="Wait of released pods" name="Waits over time" file="fairgate-waits.csv" times=${times} lines=${waits} say=${lasting} theme=${theme} onSelect=${onSelect} />
          <${Chart} title="Released pods" name="Releases over time" file="fairgate-releases.csv" times=${times} lines=${pods} theme=${theme} onSelect=${onSelect} />
          <h3>By <${Term} name="tenant">tenant<//></h3>
          <${Sums} items=${tenants} what="tenant" head="Tenant" link=${(name) => address("tenants", [name])} />
          <h3>By <${Term} name="pool">pool<//></h3>
          <${Sums} items=${pools} what="pool" head="Pool" />`
      : html`<${Empty}>No pod was released in this time.<//>`}
    ${isPartial ? html`<p class="note">${completeSince === null ? "There are no audit entries yet." : `Before ${dated(new Date(completeSince))} some releases were not recorded.`}</p>` : null}
  </section>`;
}

/** A table of sums. `what`: the field with the name; `link`: the address of a name, if it has one. */
function Sums({ items, what, head, link }) {
  const columns = [
    { name: head, kind: "name" },
    { name: "Pods", kind: "number" },
    { name: "GPUs", kind: "number" },
    { name: "Half waited at most", kind: "number" },
    { name: "Nine in ten at most", kind: "number" },
  ];
  const wait = (seconds) => (seconds === null ? "unknown" : lasting(seconds));
  const named = (name) => (link ? html`<a href=${link(name)}>${visible(name)}</a>` : visible(name || "not recorded"));
  return html`<${More} items=${items} step=${STEP} noun=${`${what}s`}>
    ${(shown) => html`<${Table} name=${`Releases by ${what}`} columns=${columns}>
    ${shown.map((each) => html`<tr role="row" key=${each[what]}>
      <${RowHead}>${named(each[what])}<//>
      <${Cell} kind="number" label="Pods">${decimal(each.pods)}<//>
      <${Cell} kind="number" label="GPUs">${devicesShort(each.request)}<//>
      <${Cell} kind="number" label="Half waited at most">${wait(each.waitP50)}<//>
      <${Cell} kind="number" label="Nine in ten at most">${wait(each.waitP90)}<//>
    </tr>`)}
    <//>`}
  <//>`;
}
