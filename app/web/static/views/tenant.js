// One tenant: its shares, its users, its queue, and its weights with a preview.

import { amounts, count, devicesText, hasPath, inPools, lasting, percent, visible, withUse } from "../format.js";
import { Cell, Empty, More, RowHead, Table, Term, useAnswer } from "../components.js";
import { TenantTable, tree } from "./tenants.js";
import { address } from "../router.js";
import { html, useEffect, useRef, useState } from "../vendor/htm/preact-standalone.js";

const AGAIN = 10;
const STEP = 50;

function find(rows, name) {
  for (const row of rows) {
    const found = row.name === name ? row : find(row.children, name);
    if (found) return found;
  }
  return null;
}

/** Return the state with all users of a tenant. The stream leaves out some of many users. */
function withAllUsers(state, name, users) {
  if (!users) return state;
  const parts = users.map((user) => [user.name, { used: Number(user.share ?? 0), owed: Number(user.fairShare ?? 0) }]);
  const owed = { ...state.owed[name], users: { __proto__: null, ...Object.fromEntries(parts) } };
  const left = state.leftOut.users - users.length + (state.users[name]?.length ?? 0);
  return {
    ...state,
    // These have no prototype, as in `filled`.
    users: { __proto__: null, ...state.users, [name]: users },
    owed: state.owed[name] ? { __proto__: null, ...state.owed, [name]: owed } : state.owed,
    leftOut: { ...state.leftOut, users: Math.max(0, left) },
  };
}

/** Format guarantee and limit in one pool, with their use. */
function quotaText({ guarantee, limit }, used) {
  const text = (name, bounds) => (Object.keys(bounds).length ? `${name}: ${amounts(withUse(bounds, used, name === "guarantee"))} used` : `no ${name}`);
  return `${text("guarantee", guarantee)}; ${text("limit", limit)}`;
}

export function Tenant({ name, state: sent, hello, query, ask }) {
  const path = sent.leftOut.users && hasPath(name) ? `/v1/tenants/${encodeURIComponent(name)}/users` : null;
  const { data } = useAnswer(ask, path, AGAIN, Infinity);
  const state = withAllUsers(sent, name, data?.items);
  const row = find(tree(state, query.get("sort") ?? "name"), name);
  if (!row) {
    return html`<section class="card"><h1>${visible(name)}</h1><${Empty}>There is no such tenant, or you may not see it. The right is: get tenants/queue.fairgate.io ${visible(name)}.<//></section>`;
  }
  const { of } = row;
  // The users and children of the tenant are shown at once.
  const opened = new URLSearchParams(query);
  const names = new Set((query.get("open") ?? "").split(",").filter(Boolean));
  names.add(encodeURIComponent(name));
  opened.set("open", [...names].join(","));
  return html`
    <section class="card" aria-labelledby="tenant-title">
      <div class="card-head">
        <h1 id="tenant-title">${visible(name)}</h1>
        <p>${of.parent ? html`<${Parent} name=${of.parent} isSeen=${sent.tenants.some((each) => each.name === of.parent)} /> · ` : null}<a href=${address("queues", [], { tenant: name })}>Queue</a> · <a href=${address("history", [], { tenant: name })}>History</a> · <a href=${address("audit", [], { tenant: name })}>Audit</a></p>
      </div>
      <dl class="facts">
        <div><dt><${Term} name="weight">Weight<//></dt><dd>${of.weight}</dd></div>
        <div><dt>Uses</dt><dd>${inPools(of.used) || "no GPU"}</dd></div>
        <div><dt>Waiting</dt><dd>${count(of.pending, "pod")}${row.request ? `, ${devicesText(row.request)}` : ""}</dd></div>
        ${of.namespaces.length ? html`<div><dt>Namespaces</dt><dd>${of.namespaces.map(visible).join(", ")}</dd></div>` : null}
        ${of.quotas.map((quota) => html`<div key=${quota.pool}><dt><${Term} name="quota">Quota in ${visible(quota.pool)}<//></dt><dd>${quotaText(quota, of.used[quota.pool])}</dd></div>`)}
        ${of.paused ? html`<div><dt>Paused</dt><dd>none of its pods is released</dd></div>` : null}
      </dl>
      <${TenantTable} state=${state} hello=${hello} query=${opened} tops=${[row]} name=${`Users of ${visible(name)}`} />
    </section>
    <${Weights} row=${row} ask=${ask} />
  `;
}

function Parent({ name, isSeen }) {
  return isSeen ? html`<a href=${address("tenants", [name])}>Parent: ${visible(name)}</a>` : `Parent: ${visible(name)}`;
}

/** The path of the weight of a user `..` would become that of the tenant. */
function hasWeightPath(member) {
  return hasPath(member.name);
}

function weightPath(row, member) {
  return member.isUser
    ? `/v1/tenants/${encodeURIComponent(row.name)}/users/${encodeURIComponent(member.name)}/weight`
    : `/v1/tenants/${encodeURIComponent(member.name)}/weight`;
}

/**
 * Why the caller may not set the weight of a user or child, by a trial that changes nothing: "" if it
 * may, null while unknown.
 */
function useRefusal(ask, row, member) {
  const [why, setWhy] = useState(null);
  useEffect(() => {
    if (!member) return undefined;
    const stopping = new AbortController();
    const options = { method: "PUT", body: { weight: member.of.weight }, signal: stopping.signal };
    ask(`${weightPath(row, member)}?dryRun=true`, options).then(
      () => setWhy(""),
      (error) => stopping.signal.aborted || setWhy(error.status === 403 ? error.message : ""),
    );
    return () => stopping.abort();
  }, [row.name, !member]);
  return why;
}

const sum = (values) => values.reduce((all, value) => all + value, 0);

/**
 * Return rows of key, name, and share by weight now and then, the edited members first. `edits`: new
 * weights by key. `answers`: the shares that each edit alone would change. The weight per share is
 * equal for all siblings, and grows with the sum of their weights. So hidden siblings count too.
 */
function sharesOf(members, edits, answers) {
  if (!answers.some((shares) => shares.length)) return [];
  const now = new Map(members.map((member) => [member.key, Number(member.of.weight)]));
  const then = new Map([...now, ...edits]);
  const perShare = (shares, when, weights) => {
    const keyed = shares.map((each) => [each.user === null ? each.tenant : `${each.tenant} ${each.user}`, each[when]]);
    const known = keyed.filter(([key, part]) => weights.has(key) && part !== null);
    return sum(known.map(([key]) => weights.get(key))) / sum(known.map(([, part]) => Number(part)));
  };
  const before = answers.map((shares) => perShare(shares, "before", now)).find(Number.isFinite) ?? 0;
  const steps = [...edits].map(([key, weight], place) => [weight - now.get(key), perShare(answers[place], "after", new Map(now).set(key, weight)) - before]);
  const largest = [...steps].sort(([one], [other]) => Math.abs(other) - Math.abs(one));
  // An answer may have no share above 0. If all are so, no sibling counts as hidden.
  const slope = largest.map(([by, more]) => more / by).find(Number.isFinite) ?? before / (sum([...now.values()]) || 1);
  const after = before + slope * sum(steps.map(([by]) => by));
  const text = (weight, per) => percent(weight && per ? weight / per : 0);
  return [...members]
    .sort((one, other) => edits.has(other.key) - edits.has(one.key))
    .map(({ key, name }) => [key, name, text(now.get(key), before), text(then.get(key), after)]);
}

/** Changes weights of the users and children: preview, waits, then apply with the caller's rights. */
function Weights({ row, ask }) {
  // Its keys are names, and no name may find a property of the prototype.
  const [changes, setChanges] = useState({ __proto__: null });
  const [preview, setPreview] = useState(null);
  const edits = useRef(0); // a preview that was asked before the last edit is not shown
  const [isBusy, setBusy] = useState(false);
  // The right is the same for all users, and for all children.
  const ofUsers = useRefusal(ask, row, row.users.find(hasWeightPath));
  const ofChildren = useRefusal(ask, row, row.children.find(hasWeightPath));
  const members = [...row.users, ...row.children];
  if (!members.length) return null;
  const maySet = (member) => hasWeightPath(member) && (member.isUser ? ofUsers : ofChildren) === "";
  const changed = members.filter((member) => changes[member.key] && changes[member.key] !== member.of.weight);
  const isIdle = !changed.length || isBusy;
  const weightOf = (member) => changes[member.key] ?? member.of.weight;
  const isZero = (member) => weightOf(member) !== "" && Number(weightOf(member)) === 0;
  const edit = (member) => (event) => {
    edits.current += 1;
    setPreview(null);
    setChanges({ __proto__: null, ...changes, [member.key]: event.target.value });
  };
  const attempt = async (work, isWanted = () => true) => {
    setBusy(true);
    const answer = await work().catch((error) => ({ error: error.message }));
    if (isWanted()) setPreview(answer);
    setBusy(false);
  };
  const put = (member, query) =>
    ask(`${weightPath(row, member)}${query}`, { method: "PUT", body: { weight: changes[member.key] } });
  const simulate = () => {
    const before = edits.current;
    attempt(async () => {
      const answers = [];
      for (const member of changed) answers.push((await put(member, "?dryRun=true")).shares);
      const weightsThen = new Map(changed.map((member) => [member.key, Number(changes[member.key])]));
      const shares = sharesOf(members, weightsThen, answers);
      const weights = Object.fromEntries(changed.filter((m) => !m.isUser).map((m) => [m.name, changes[m.key]]));
      const users = Object.fromEntries(changed.filter((m) => m.isUser).map((m) => [m.name, changes[m.key]]));
      const body = { hours: 4, weights, users: Object.keys(users).length ? { [row.name]: users } : {} };
      let waits = null;
      let why = "";
      try {
        waits = await ask("/v1/simulations", { method: "POST", body });
      } catch (error) {
        why = error.message;
      }
      return { shares, waits, why };
    }, () => before === edits.current);
  };
  const apply = () => {
    const list = changed.map((member) => `${visible(member.name)}: ${member.of.weight} → ${changes[member.key]}`).join("\n");
    if (!confirm(`Set these weights?\n\n${list}`)) return;
    attempt(async () => {
      let done = 0;
      try {
        for (; done < changed.length; done += 1) await put(changed[done], "");
      } catch (error) {
        throw new Error(`${done ? `${count(done, "weight")} ${done === 1 ? "is" : "are"} set: ${changed.slice(0, done).map((member) => member.name).join(", ")}. The others are not. ` : ""}${error.message}`);
      }
      // Edits since then stay.
      setChanges((now) => ({ __proto__: null, ...Object.fromEntries(Object.entries(now).filter(([key, weight]) => weight !== changes[key])) }));
      return { set: changed.map((member) => [member.key, changes[member.key]]) };
    });
  };
  return html`<section class="card" aria-labelledby="weights-title">
    <h2 id="weights-title">Weights</h2>
    ${!members.some(maySet) ? null : html`<p class="note">Try weights first. A preview changes nothing.</p>`}
    ${ofUsers ? html`<p class="note">You cannot set weights of users: ${visible(ofUsers)}</p>` : null}
    ${ofChildren ? html`<p class="note">You cannot set weights of child tenants: ${visible(ofChildren)}</p>` : null}
    ${members.every(hasWeightPath) ? null : html`<p class="note">You cannot set the weight of a user named . or .., because no path can name it.</p>`}
    <form onSubmit=${(event) => { event.preventDefault(); if (!isIdle) simulate(); }}>
      <${More} items=${members} step=${STEP} noun="weights">${(shown) => html`<ul class="weights">
        ${shown.map((member) => html`<li key=${member.key}><label>${visible(member.name)}
          <input type="number" min="0" step="any" value=${weightOf(member)} disabled=${!maySet(member)} aria-describedby=${isZero(member) ? "weight-zero" : undefined} onInput=${edit(member)} /></label></li>`)}
      </ul>`}<//>
      ${members.some(isZero) ? html`<p class="note" id="weight-zero">Weight 0: only its guarantee, and what others leave.</p>` : null}
      ${members.some(maySet)
        ? html`<button type="submit" class="primary" aria-disabled=${String(isIdle)}>${isBusy ? "Working …" : "Preview"}</button>
            <button type="button" aria-disabled=${String(isIdle)} onClick=${(event) => !isIdle && event.currentTarget.form.reportValidity() && apply()}>Apply</button>`
        : null}
    </form>
    <div role="status">${preview?.set ? html`<${Done} set=${preview.set} members=${members} />` : html`<${Preview} preview=${preview} />`}</div>
  </section>`;
}

/** The number of weights that are set. `set`: pairs of key and weight. The stream brings them a moment later. */
function Done({ set, members }) {
  const isShown = set.every(([key, weight]) => members.some((member) => member.key === key && Number(member.of.weight) === Number(weight)));
  return html`<p>${count(set.length, "weight")} set.${isShown ? "" : ` The page shows ${set.length === 1 ? "it" : "them"} in a moment.`}</p>`;
}

function Preview({ preview }) {
  if (!preview) return null;
  if (preview.error) return html`<p class="problem">${visible(preview.error)}</p>`;
  return html`
    <${Compared} name="Shares by weight before and after" what="Share by weight" rows=${preview.shares} />
    ${preview.waits
      ? html`<${Compared} name="Mean waits before and after" what="Mean wait" rows=${preview.waits.tenants.filter((each) => each.now.pending).map((each) => [each.tenant, each.tenant, lasting(each.now.waitMeanSeconds), lasting(each.then.waitMeanSeconds)])} />
        <p class="note">Waits of the ${count(preview.waits.pods, "pod")} that wait now, simulated over 4 hours.</p>`
      : html`<p class="note">Waits were not simulated: ${visible(preview.why)}</p>`}
  `;
}

/** A table of values now and then. `rows`: key, name, value now, value then. */
function Compared({ name, what, rows }) {
  const columns = [
    { name: "Tenant, user", kind: "name" },
    { name: `${what} now`, kind: "number" },
    { name: `${what} then`, kind: "number" },
  ];
  return html`<${More} items=${rows} step=${STEP} noun="rows">${(shown) => html`<${Table} name=${name} columns=${columns}>
    ${shown.map(([key, who, now, then]) => html`<tr role="row" key=${key}>
      <${RowHead}>${visible(who)}<//>
      <${Cell} kind="number" label=${`${what} now`}>${now}<//>
      <${Cell} kind="number" label=${`${what} then`}>${then}<//>
    </tr>`)}
  <//>`}<//>`;
}
