// Releases, evictions, refusals and changes of the last minutes, from the audit chain.

import { amounts, compareNames, count, exactMoment, lasting, moment, visible } from "../format.js";
import { now } from "../clock.js";
import { Cell, Empty, More, NotAllowed, rightIn, RowHead, Table, Term } from "../components.js";
import { address, change, open, podAddress } from "../router.js";
import { html, useEffect, useMemo, useState } from "../vendor/htm/preact-standalone.js";

const STEP = 25;
const AGAIN = 10_000;
const PERIODS = { 10: "10 minutes", 60: "1 hour" };
const MOST = 50_000;

/** Reports of other processes are written later than their time: see SKEW of audit_reader.py. */
const LATE = 600_000;

/** Facts that are in the column of the object, or that only the verifier needs. */
const HIDDEN_FACTS = new Set(["uid", "pod", "namespace", "tenant", "kind", "name", "digestBefore", "digestAfter", "stamp"]);

/** A name that a Tenant or a namespace can have. An address can have any text as the tenant. */
const TENANT_NAME = /^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/;

/** A weighted share with two digits that count. With a small weight it can be more than 1. */
const shareText = (share) => String(Number(Number(share).toPrecision(2)));

/** A level of `compared`. Above the tenant, a caller with the right on it alone sees no `next`. */
function levelText({ first, score, next, nextScore }) {
  return nextScore === undefined ? `${first} (nobody else waits)` : `${first} (${score}) before ${next ?? "another"} (${nextScore})`;
}

/** Facts that are not plain words. */
const FORMATS = {
  amounts: amounts,
  waited: lasting,
  compared: (levels) => levels.map(levelText).join(", "),
  borrowed: ([theirs, ours]) => `weighted share ${shareText(theirs)}, against ${shareText(ours)}`,
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

/** Return the entries that contain a text, which is in lower case. */
function containing(entries, text) {
  return text ? entries.filter((entry) => JSON.stringify(entry).toLowerCase().includes(text)) : entries;
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
 * Read the entries of the last minutes, and then those that may be new. Return {entries, error}, the
 * newest entry first. `tenant`: "" for all entries. null: ask nothing.
 */
function useEntries(ask, minutes, tenant) {
  const [found, setFound] = useState({});
  const wanted = `${minutes} ${tenant}`;
  useEffect(() => {
    if (tenant === null) return undefined;
    const stopping = new AbortController();
    const begin = () => now() - Number(minutes) * 60_000;
    let newest = 0;
    let last = 0;
    let entries = [];
    let timer;
    const read = async () => {
      try {
        const since = new Date(Math.max(begin(), newest - LATE)).toISOString();
        const query = new URLSearchParams({ since, ...(tenant ? { tenant } : {}) });
        const text = await ask(`/v1/audit?${query}`, { signal: stopping.signal });
        const fresh = parse(text).filter((entry) => entry.number > last);
        if (fresh.length) {
          ({ at: newest, number: last } = fresh[fresh.length - 1]);
          entries = [...fresh.reverse(), ...entries].slice(0, MOST);
        }
        const first = begin();
        entries = entries.filter((entry) => entry.at >= first);
        setFound({ wanted, entries });
      } catch (error) {
        if (stopping.signal.aborted) return;
        setFound({ wanted, entries: last ? entries : undefined, error });
      }
      timer = setTimeout(read, AGAIN);
    };
    read();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [wanted]);
  return found.wanted === wanted ? found : {};
}

/** `mayReadAll`: the caller has the right on all entries, not only on those of single tenants. */
export function Audit({ state, mayReadAll, query, ask }) {
  const minutes = Object.hasOwn(PERIODS, query.get("minutes")) ? query.get("minutes") : "10";
  const tenant = query.get("tenant") ?? "";
  const text = query.get("filter") ?? "";
  const { entries, error } = useEntries(ask, minutes, tenant || mayReadAll ? tenant : null);
  const found = useMemo(() => joined(containing(entries ?? [], text.toLowerCase())), [entries, text]);
  const names = new Set([...(state?.tenants ?? []).map((each) => each.name), ...(tenant ? [tenant] : [])]);
  // People copy the command to a shell, so it has no text of an address that is not a name.
  const command = !tenant ? "fairgate audit export" : TENANT_NAME.test(tenant) ? `kubectl fairgate audit --tenant ${tenant}` : "";
  return html`<section class="card" aria-labelledby="audit-title">
    <div class="card-head">
      <h1 id="audit-title"><${Term} name="audit chain">Audit<//></h1>
      <div class="bar-of-tools">
        <span class="labelled"><label for="tenant">Tenant</label>
          <select id="tenant" value=${tenant} onChange=${(event) => open(address("audit", [], { ...Object.fromEntries(query), tenant: event.target.value }))}>
            <option value="">${mayReadAll ? "all" : "choose one"}</option>
            ${[...names].sort(compareNames).map((name) => html`<option key=${name} value=${name}>${visible(name)}</option>`)}
          </select></span>
        <span class="labelled"><label for="minutes">Time</label>
          <select id="minutes" value=${minutes} onChange=${(event) => change({ minutes: event.target.value })}>
            ${Object.entries(PERIODS).map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}
          </select></span>
        <span class="labelled"><label for="filter">Filter</label>
          <input id="filter" type="search" placeholder="any word" value=${text} onInput=${(event) => change({ filter: event.target.value })} /></span>
      </div>
    </div>
    ${tenant || mayReadAll ? null : html`<${NotAllowed} right="get audit.fairgate.io">You may not see the audit entries of all tenants. If you have the right on a tenant, choose it above.<//>`}
    ${error?.status === 403
      ? html`<${NotAllowed} right=${rightIn(error.message)}>You may not see the audit entries${tenant ? ` of tenant ${visible(tenant)}` : ""}.<//>`
      : error
        ? html`<p class="problem" role="alert">The entries cannot be shown: ${visible(error.message)}</p>`
        : null}
    ${entries && !found.length ? html`<${NoEntry} tenant=${tenant} text=${text} minutes=${minutes} />` : null}
    ${found.length ? html`<${More} items=${found} step=${STEP} noun="entries">${(shown) => html`<${Entries} entries=${shown} />`}<//>` : null}
    ${entries && tenant ? html`<p class="note">Only entries about this tenant itself: those of its child tenants are not shown, nor refusals, which name no tenant.</p>` : null}
    ${entries && (command || entries.length === MOST) ? html`<p class="note">${entries.length === MOST ? `Only the newest ${count(MOST, "entry", "entries")} are shown. ` : null}${command ? html`For entries of other times: <code>${command}</code>` : null}</p>` : null}
  </section>`;
}

function NoEntry({ tenant, text, minutes }) {
  if (!tenant && !text) return html`<${Empty} command="fairgate audit verify">No decision or change was recorded in this time. To check the chain:<//>`;
  const filters = `${tenant ? ` about tenant ${visible(tenant)}` : ""}${text ? ` with the text "${visible(text)}"` : ""}`;
  return html`<p class="note">No entry${filters} was recorded in the last ${minutes} minutes.</p>
    <p class="more"><button type="button" onClick=${() => open(address("audit", [], { minutes }))}>Clear the filters</button></p>`;
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
        <${Cell} kind="reason" label="Facts">${rest.map(([name, value]) => `${visible(name)}: ${factText(name, value)}`).join(", ")}<//>
      </tr>`;
    })}
  <//>`;
}
