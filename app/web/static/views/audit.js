// Releases, evictions, refusals and changes of the last minutes, from the audit chain.

import { amounts, count, exactMoment, lasting, moment, percent, visible } from "../format.js";
import { Cell, Empty, More, RowHead, Table, Term } from "../components.js";
import { change, podAddress } from "../router.js";
import { html, useEffect, useState } from "../vendor/htm/preact-standalone.js";

const STEP = 25;
const AGAIN = 10_000;
const MINUTES = ["10", "60"];
const MOST = 50_000;

/** Facts that are in the column of the object, or that only the verifier needs. */
const HIDDEN_FACTS = new Set(["uid", "pod", "namespace", "tenant", "kind", "name", "digestBefore", "digestAfter", "stamp"]);

/** Facts that are not plain words. */
const FORMATS = {
  amounts: amounts,
  waited: lasting,
  compared: (levels) => levels.map((each) => (each.next === undefined ? `${each.first} (nobody else waits)` : `${each.first} (${each.score}) before ${each.next} (${each.nextScore})`)).join(", "),
  borrowed: ([theirs, ours]) => `${percent(Number(theirs))} of the cluster, against ${percent(Number(ours))}`,
  lostGpuSeconds: (seconds) => `${lasting(seconds)} of a GPU`,
  since: (at) => moment(new Date(at)),
  count: (times) => count(times, "time"),
  fields: (fields) => Object.entries(fields).map(([field, { before, after }]) => `${field} ${before ?? "unset"} → ${after ?? "unset"}`).join(", "),
};

/** Return the text of a fact. A fact of another form than expected is shown as it is. */
function factText(name, value) {
  if (typeof value === "string") return visible(value);
  try {
    return visible((FORMATS[name] ?? JSON.stringify)(value));
  } catch {
    return visible(JSON.stringify(value));
  }
}

/** Return the entries of NDJSON text. A damaged line is for the verifier. */
function parse(text) {
  const found = [];
  for (const line of text.split("\n")) {
    try {
      if (line) found.push(JSON.parse(line));
    } catch {
      continue;
    }
  }
  return found;
}

/** Return the entries, with equal refusals in a row as one entry with the sum of their counts. */
function joined(entries) {
  const found = [];
  let before = "";
  for (const entry of entries) {
    const { count: times = 1, ...facts } = entry.facts ?? {};
    const same = entry.deed === "refused" ? JSON.stringify(facts) : "";
    if (same && same === before) found[found.length - 1].facts.count += times;
    else found.push(same ? { ...entry, facts: { ...facts, count: times } } : entry);
    before = same;
  }
  return found;
}

/**
 * Read the entries of the last minutes, and then only new ones. Return {entries, error}, the newest
 * entry first.
 */
function useEntries(ask, minutes) {
  const [found, setFound] = useState({});
  useEffect(() => {
    const stopping = new AbortController();
    const begin = () => Date.now() - Number(minutes) * 60_000;
    let since = begin();
    let last = 0;
    let entries = [];
    let timer;
    const read = async () => {
      try {
        const text = await ask(`/v1/audit?since=${new Date(since).toISOString()}`, { signal: stopping.signal });
        const fresh = parse(text).filter((entry) => entry.number > last);
        if (fresh.length) {
          ({ at: since, number: last } = fresh[fresh.length - 1]);
          entries = [...fresh.reverse(), ...entries].slice(0, MOST);
        }
        const first = begin();
        entries = entries.filter((entry) => entry.at >= first);
        setFound({ minutes, entries });
      } catch (error) {
        if (stopping.signal.aborted) return;
        setFound({ minutes, entries: last ? entries : undefined, error });
      }
      timer = setTimeout(read, AGAIN);
    };
    read();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [minutes]);
  return found.minutes === minutes ? found : {};
}

export function Audit({ query, ask }) {
  const minutes = MINUTES.includes(query.get("minutes")) ? query.get("minutes") : MINUTES[0];
  const wanted = (query.get("filter") ?? "").toLowerCase();
  const { entries, error } = useEntries(ask, minutes);
  const found = joined((entries ?? []).filter((entry) => !wanted || JSON.stringify(entry).toLowerCase().includes(wanted)));
  return html`<section class="card" aria-labelledby="audit-title">
    <div class="card-head">
      <h1 id="audit-title"><${Term} name="audit chain">Audit<//></h1>
      <div class="bar-of-tools">
        <label for="minutes">Time</label>
        <select id="minutes" value=${minutes} onChange=${(event) => change({ minutes: event.target.value })}>
          <option value="10">10 minutes</option><option value="60">1 hour</option>
        </select>
        <label for="filter">Filter</label>
        <input id="filter" type="search" placeholder="any word" value=${query.get("filter") ?? ""} onInput=${(event) => change({ filter: event.target.value })} />
      </div>
    </div>
    ${error ? html`<p class="problem" role="alert">The entries cannot be shown: ${visible(error.message)}</p>` : null}
    ${entries && !found.length ? html`<${Empty} command="fairgate audit verify">${wanted ? "No entry contains this text." : "No decision or change was recorded in this time."} To check the chain:<//>` : null}
    ${found.length ? html`<${More} items=${found} step=${STEP} noun="entries">${(shown) => html`<${Entries} entries=${shown} />`}<//>` : null}
    <p class="note">${entries?.length === MOST ? `Only the newest ${count(MOST, "entry", "entries")} are shown. ` : null}For entries of other times: <code>fairgate audit export</code></p>
  </section>`;
}

function Entries({ entries }) {
  const columns = [
    { name: "Time", kind: "name" },
    { name: "Event", kind: "word" },
    { name: "Object", kind: "name" },
    { name: "Facts", kind: "reason" },
  ];
  return html`<${Table} name="Audit entries" columns=${columns}>
    ${entries.map((entry) => {
      const facts = entry.facts ?? {};
      const object = facts.pod
        ? html`<a href=${podAddress(facts.namespace ?? "", facts.pod)}>${visible(`${facts.namespace ?? ""}/${facts.pod}`)}</a>`
        : visible(`${facts.kind ?? ""} ${facts.name ?? ""}`);
      const rest = Object.entries(facts).filter(([name, value]) => value !== false && !HIDDEN_FACTS.has(name));
      return html`<tr role="row" key=${entry.number}>
        <${RowHead}>${exactMoment(new Date(entry.at))}<//>
        <${Cell} kind="word" label="Event">${visible(entry.deed)}<//>
        <${Cell} kind="name" label="Object">${object}<//>
        <${Cell} kind="reason" label="Facts">${rest.map(([name, value]) => `${name}: ${factText(name, value)}`).join(", ")}<//>
      </tr>`;
    })}
  <//>`;
}
