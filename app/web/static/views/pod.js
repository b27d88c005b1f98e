// The drawer of one pod: why it waits, the compared numbers, remedies and the estimate.

import { amounts, estimateText, exactMoment, hasPath, lasting, sentence, visible } from "../format.js";
import { now } from "../clock.js";
import { Guarded, Rule, Term, useAnswer } from "../components.js";
import { address, closePod } from "../router.js";
import { html, useEffect, useRef, useState } from "../vendor/htm/preact-standalone.js";

const AGAIN = 4;
const EVENTS_AGAIN = 20;

/** The end of an event's message that names the command for details, which this panel shows. */
const HINT = /; more: kubectl fairgate why .*$/;

/** Terms that names of compared numbers contain. */
const COMPARED = ["limit", "guarantee", "gang", "pool", "score"];

/** `isAlone`: the caller sees no other view, so the tenant has no link. */
export function PodDrawer({ namespace, name, ask, isAlone }) {
  const path = hasPath(namespace, name) ? `/v1/workloads/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}` : null;
  const answer = useAnswer(ask, path, AGAIN);
  const [drawer, heading] = [useRef(null), useRef(null)];
  useEffect(() => {
    const before = document.activeElement;
    heading.current?.focus({ preventScroll: true });
    const keys = (event) => {
      if (event.key === "Escape") closePod();
      else if (event.key === "Tab") keepFocus(event, drawer.current, heading.current);
    };
    document.addEventListener("keydown", keys);
    return () => {
      document.removeEventListener("keydown", keys);
      before?.isConnected && before.focus?.({ preventScroll: true });
    };
  }, []);
  return html`<div class="drawer" role="dialog" aria-modal="true" aria-labelledby="pod-title" ref=${drawer}>
    <div class="card-head">
      <h2 id="pod-title" tabindex="-1" ref=${heading}>${visible(`${namespace}/${name}`)}</h2>
      <button type="button" onClick=${closePod}>Close</button>
    </div>
    ${path
      ? html`<${Guarded}><${Body} answer=${answer} namespace=${namespace} name=${name} isAlone=${isAlone} /><//>
          <${Guarded}><${Events} ask=${ask} path=${`${path}/events`} namespace=${namespace} /><//>`
      : html`<p class="note">There is no such pod.</p>`}
  </div>`;
}

/** Keep the focus in the drawer: Tab goes from its last control to its first, and Shift and Tab back. */
function keepFocus(event, drawer, heading) {
  const controls = drawer.querySelectorAll("a[href], button");
  const [first, last] = [controls[0], controls[controls.length - 1]];
  const here = document.activeElement;
  const isAtEnd = event.shiftKey ? here === first || here === heading : here === last;
  if (!isAtEnd && drawer.contains(here)) return;
  event.preventDefault();
  (event.shiftKey ? last : first).focus();
}

function Body({ answer, namespace, name, isAlone }) {
  const { data: pod, error, at } = answer;
  if (!pod && error?.status === 404) {
    return html`<p class="note">This pod is gone, or requests no GPU.</p>`;
  }
  if (!pod && error) return html`<p class="problem" role="alert">${visible(error.message)}</p>`;
  if (!pod) return html`<p class="note" role="status">Loading …</p>`;
  const age = (now() - at) / 1000;
  const seen = exactMoment(new Date(at));
  // A caller may lack the right to get pods, and see a pod only while Fairgate knows it: 403 can mean either.
  const isGone = error?.status === 404 || error?.status === 403;
  const told = error?.status === 403 ? "This pod is gone, or you may not see it any more." : "This pod is gone.";
  return html`
    ${isGone ? html`<p class="problem">${told} Its last state, of ${seen}:</p>` : error ? html`<p class="problem">The pod cannot be read now. Its state of ${seen}: ${error.status ? visible(error.message) : ""}</p>` : null}
    <p class="sentence">${pod.state === "held" ? html`<${Term} name=${pod.rule} kind="reason"><${Rule} rule=${pod.rule} /><//> ` : null}${sentence(pod.reason)}</p>
    <dl class="facts">
      <${Fact} name="State" term="held">${pod.state === "held" ? `held for ${lasting((at - Date.parse(pod.since)) / 1000)}` : "released"}<//>
      <${Fact} name="Place" term="place">${pod.position ? `${pod.position} of ${pod.length} of ${visible(pod.user)}` : ""}<//>
      <${Fact} name="Estimated start" term="estimate">${pod.estimate ? estimateText(pod.estimate) : pod.estimateWithheld && visible(pod.estimateWithheld)}<//>
      <${Fact} name="Requests">${amounts(pod.request)}${pod.pods > 1 ? html` by ${pod.pods} pods of <${Term} name="gang">gang<//> ${visible(pod.gang)}` : ""}<//>
      <${Fact} name="Tenant" term="tenant">${isAlone ? visible(pod.tenant) : html`<a href=${address("tenants", [pod.tenant])}>${visible(pod.tenant)}</a>`}<//>
      <${Fact} name="Pools" term="pool">${pod.pools.map(visible).join(", ")}<//>
      <${Fact} name="Priority">${pod.priority ? `${pod.priority}: it orders only the pods of ${visible(pod.user)}` : ""}<//>
    </dl>
    <${Ahead} pod=${pod} />
    <${Numbers} numbers=${pod.numbers} />
    ${pod.remedies.length && !isGone ? html`<h3>What would help</h3><ul>${pod.remedies.map((remedy) => html`<li key=${remedy}>${sentence(remedy)}</li>`)}</ul>` : null}
    <${Copy} text=${`kubectl fairgate why ${name} -n ${namespace}`} />
    ${isGone ? null : html`<p class="note">As of ${age < 0.5 ? "now" : `${lasting(age)} ago`}. It is read again every ${AGAIN} s.</p>`}
  `;
}

/** What happened to the pod, from its Kubernetes events, newest first. */
function Events({ ask, path, namespace }) {
  const { data, error } = useAnswer(ask, path, EVENTS_AGAIN);
  if (!data && !error) return null;
  return html`<h3>What happened</h3>${data ? html`<${Happened} events=${data} />` : html`<p class="note">${
    error.status === 403 ? `To see the events of this pod, you need the right to list events in namespace ${visible(namespace)}.` : visible(error.message)
  }</p>`}`;
}

function Happened({ events }) {
  if (!events.items.length) return html`<p class="note">There is no event. Kubernetes deletes events after an hour, unless it is configured otherwise.</p>`;
  return html`<ul class="happened">${events.items.map((event, place) => html`<li key=${place}>
      <time datetime=${event.at}>${exactMoment(new Date(event.at))}</time> <strong>${event.warning ? "Warning: " : ""}${visible(event.reason)}</strong>${event.count > 1 ? ` (${event.count} times)` : ""}
      ${event.source && event.source !== "fairgate" ? ` from ${visible(event.source)}` : ""}: ${sentence(event.message.replace(HINT, ""))}
    </li>`)}</ul>
    ${events.more ? html`<p class="note">Some events are left out: kubectl describe pod shows all.</p>` : null}`;
}

function Fact({ name, term, children }) {
  if (children === "" || children === null || children === undefined) return null;
  return html`<div><dt>${term ? html`<${Term} name=${term}>${name}<//>` : name}</dt><dd>${children}</dd></div>`;
}

function Ahead({ pod }) {
  if (!pod.ahead.length) return null;
  return html`<h3><${Term} name="competitor">Who goes first<//></h3>
    <ul>${pod.ahead.map((each, place) => html`<li key=${place}>${visible(each.reason)}</li>`)}</ul>
    <p class="note">Each is compared with ${visible(pod.ahead[0].own)}, by use of <${Term} name="guarantee">guarantees<//> and by <${Term} name="score">score<//>.</p>`;
}

function Numbers({ numbers }) {
  const entries = Object.entries(numbers);
  if (!entries.length) return null;
  return html`<h3>Numbers that were compared</h3>
    <dl class="facts">${entries.map(([name, value]) => html`<${Fact} key=${name} name=${sentence(name)} term=${COMPARED.find((term) => name.includes(term))}>${sentence(value)}<//>`)}</dl>`;
}

function Copy({ text }) {
  const [told, setTold] = useState("Copy as command");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setTold("Copied");
    } catch {
      setTold("The browser refuses: copy it by hand");
    }
  };
  return html`<p class="command"><code>${visible(text)}</code> <button type="button" onClick=${copy}>${told}</button></p>`;
}
