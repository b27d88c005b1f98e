// The first view of an administrator: use, waiting and releases at a glance, then the tenants.

import { ago, count, decimal, devicesText, lasting, percent } from "../format.js";
import { namesOf, releasesPath } from "./releases.js";
import { address, change } from "../router.js";
import { Term, useAnswer } from "../components.js";
import { TenantTable, topLevel } from "./tenants.js";
import { html } from "../vendor/htm/preact-standalone.js";
import { useOf } from "../units.js";

const MOST_TILES = 4;
const AGAIN = 30;

function Tile({ name, value, note, meter, href, term }) {
  const title = href ? html`<a href=${href}>${name}</a>` : name;
  return html`<div class="tile">
    <dt>${term ? html`<${Term} name=${term}>${title}<//>` : title}</dt>
    <dd class="value">${value}</dd>
    ${meter === undefined ? null : html`<dd class="meter" aria-hidden="true"><span style=${{ width: `${100 * Math.min(1, meter)}%` }}></span></dd>`}
    <dd class="note">${note}</dd>
  </div>`;
}

function poolTiles(state) {
  return state.pools.map((pool) => {
    const { used, total, beyond } = useOf(pool);
    return html`<${Tile} key=${pool.name} name=${pool.name} href=${address("nodes", [pool.name])} value=${`${decimal(used)} of ${decimal(total)}`} meter=${total ? used / total : 0} note=${total ? `GPUs used, ${decimal(total - used)} free, ${percent(used / total)}${beyond}` : "no GPU is ready"} />`;
  });
}

export function Tiles({ state, hello, releases }) {
  const tops = topLevel(state.tenants);
  const pods = tops.reduce((sum, tenant) => sum + tenant.pending, 0);
  const waiting = tops.map((tenant) => state.waiting[tenant.name]).filter(Boolean);
  const oldest = waiting.map((each) => each.since).sort()[0];
  const pools = poolTiles(state);
  const where = pools.length > 1 ? ", all pools" : "";
  return html`<dl class="tiles" aria-label="At a glance">
    ${pools.slice(0, MOST_TILES)}
    ${pools.length > MOST_TILES ? html`<${Tile} name="More pools" href=${address("nodes")} value=${pools.length - MOST_TILES} note="see Nodes" />` : null}
    <${Tile} name="Waiting" href=${address("queues")} value=${devicesText(...waiting.map((each) => each.request))} note=${`${count(pods, "pod")}${where}${hello.everyTenant ? "" : " of the tenants that you may see"}`} />
    <${Tile} name="Longest wait" value=${oldest ? ago(oldest) : "none"} note=${oldest ? "the oldest pending pod" : "no pod waits"} />
    ${releases ? html`<${Tile} name="Released in the last hour" term="released" href=${address("history")} value=${devicesText(releases.request)} note=${releasedText(releases, pools.length > 1 ? " in all pools" : "")} />` : null}
  </dl>`;
}

function releasedText({ pods, waitP50 }, where) {
  return `${count(pods, "pod")}${where}${waitP50 === null ? "" : `, half waited at most ${lasting(waitP50)}`}`;
}

/** A text field that filters what `label` names. Its value is part of the address. */
export function Filter({ query, label, placeholder }) {
  return html`<div class="bar-of-tools">
    <label for="filter">${label}</label>
    <input id="filter" type="search" placeholder=${placeholder} autocomplete="off" spellcheck=${false} value=${query.get("filter") ?? ""} onInput=${(event) => change({ filter: event.target.value })} />
  </div>`;
}

export function Overview({ state, hello, query, ask }) {
  // The default period of the route is the last hour. The tile is absent if the right is missing.
  const path = releasesPath(namesOf(hello, "").map((name) => ["tenant", name]));
  const { data } = useAnswer(ask, path, AGAIN);
  return html`
    <h1 class="unseen">Overview</h1>
    <${Tiles} state=${state} hello=${hello} releases=${data?.total} />
    <section class="card" aria-labelledby="tenants-title">
      <div class="card-head">
        <h2 id="tenants-title">Tenants</h2>
        <${Filter} query=${query} label="Filter this table" placeholder="tenant or user" />
      </div>
      <${TenantTable} state=${state} hello=${hello} query=${query} name="Tenants and users" />
    </section>
  `;
}
