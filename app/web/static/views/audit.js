// Releases, evictions, refusals and changes of the last hours, from the audit chain.

import { moment, visible } from "../format.js";
import { Cell, Empty, More, RowHead, Table, useAnswer } from "../components.js";
import { change } from "../router.js";
import { html, useMemo } from "../vendor/htm/preact-standalone.js";

const STEP = 100;
const AGAIN = 15;
const HOURS = ["1", "24", "168"];
const HIDDEN_FACTS = new Set(["uid", "pod", "namespace", "tenant"]);

function entries(text) {
  const found = [];
  for (const line of text.split("\n")) {
    try {
      if (line) found.push(JSON.parse(line));
    } catch {
      // A damaged line is for the verifier.
    }
  }
  return found.reverse();
}

export function Audit({ query, ask }) {
  const hours = HOURS.includes(query.get("hours")) ? query.get("hours") : "1";
  const wanted = (query.get("filter") ?? "").toLowerCase();
  // The time is fixed per view, so that the address of the request stays the same.
  const since = useMemo(() => new Date(Date.now() - Number(hours) * 3600_000).toISOString(), [hours]);
  const { data, error } = useAnswer(ask, `/v1/audit?since=${since}`, AGAIN);
  const all = useMemo(() => (typeof data === "string" ? entries(data) : []), [data]);
  const found = all.filter((entry) => !wanted || JSON.stringify(entry).toLowerCase().includes(wanted));
  return html`<section class="card" aria-labelledby="audit-title">
    <div class="card-head">
      <h1 id="audit-title">Audit</h1>
      <div class="bar-of-tools">
        <label for="hours">Time</label>
        <select id="hours" value=${hours} onChange=${(event) => change({ hours: event.target.value })}>
          <option value="1">1 hour</option><option value="24">24 hours</option><option value="168">7 days</option>
        </select>
        <label for="filter">Filter</label>
        <input id="filter" type="search" placeholder="any word" value=${query.get("filter") ?? ""} onInput=${(event) => change({ filter: event.target.value })} />
      </div>
    </div>
    ${error ? html`<p class="problem" role="alert">The entries cannot be shown: ${visible(error.message)}</p>` : null}
    ${data !== undefined && !found.length ? html`<${Empty} command="fairgate audit verify">${wanted ? "No entry contains this text." : "No decision or change was recorded in this time."} To check the chain:<//>` : null}
    ${found.length ? html`<${More} items=${found} step=${STEP} noun="entries">${(shown) => html`<${Entries} entries=${shown} />`}<//>` : null}
  </section>`;
}

function Entries({ entries }) {
  const columns = [
    { name: "Time", kind: "name" },
    { name: "Event", kind: "used" },
    { name: "Object", kind: "used" },
    { name: "Facts", kind: "reason" },
  ];
  return html`<${Table} name="Audit entries" columns=${columns}>
    ${entries.map((entry) => {
      const facts = entry.facts ?? {};
      const object = facts.pod ? `${facts.namespace ?? ""}/${facts.pod}` : `${facts.kind ?? ""} ${facts.name ?? ""}`;
      const rest = Object.entries(facts).filter(([name]) => !HIDDEN_FACTS.has(name));
      return html`<tr role="row" key=${entry.number}>
        <${RowHead}>${moment(new Date(entry.at))}<//>
        <${Cell} kind="used" label="Event">${visible(entry.deed)}<//>
        <${Cell} kind="used" label="Object">${visible(object)}<//>
        <${Cell} kind="reason" label="Facts">${rest.map(([name, value]) => `${name}: ${visible(typeof value === "string" ? value : JSON.stringify(value))}`).join(", ")}<//>
      </tr>`;
    })}
  <//>`;
}
