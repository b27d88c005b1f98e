// Search for pods, jobs, users, tenants, namespaces and nodes. `/` focuses the field.

import { html, useEffect, useRef, useState } from "./vendor/htm/preact-standalone.js";
import { address, open, podAddress } from "./router.js";
import { visible } from "./format.js";

const PAUSE = 150;

/** Most objects of each kind. */
const MOST = 8;

/** The own work of `caller` has waiting and released pods; a queue has only waiting ones. */
function target(hit, caller) {
  switch (hit.kind) {
    case "pod":
      return podAddress(hit.namespace, hit.name);
    case "node":
      return address("nodes", [], { node: hit.name });
    case "user":
      return address("queues", [], { tenant: hit.tenant, user: hit.user });
    case "job":
      if (hit.user === caller) return address("me");
      return address("queues", [], { tenant: hit.tenant, user: hit.user });
    default:
      return address("tenants", [hit.tenant]);
  }
}

/** Return whether there may be more objects of a kind. */
function isCut(items) {
  const sums = new Map();
  for (const { kind } of items) sums.set(kind, (sums.get(kind) ?? 0) + 1);
  return Math.max(0, ...sums.values()) >= MOST;
}

function where(hit) {
  if (hit.kind === "pod" || hit.kind === "job") return `${hit.namespace}, ${hit.user}`;
  return hit.kind === "user" || hit.kind === "namespace" ? hit.tenant : "";
}

export function SearchBox({ ask, caller }) {
  const [text, setText] = useState("");
  const [answer, setAnswer] = useState(null);
  const [chosen, setChosen] = useState(0);
  const field = useRef(null);

  useEffect(() => {
    const focus = (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, textarea, select") || document.querySelector("[aria-modal]")) return;
      event.preventDefault();
      field.current?.focus();
    };
    document.addEventListener("keydown", focus);
    return () => document.removeEventListener("keydown", focus);
  }, []);

  useEffect(() => {
    const wanted = text.trim();
    if (!wanted) {
      setAnswer(null);
      return undefined;
    }
    const stopping = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const { items } = await ask(`/v1/search?${new URLSearchParams({ q: wanted, limit: String(MOST) })}`, { signal: stopping.signal });
        setAnswer({ wanted, items });
        setChosen(0);
      } catch (error) {
        if (!stopping.signal.aborted) setAnswer({ wanted, items: [], error: error.message });
      }
    }, PAUSE);
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [text]);

  const leave = () => {
    setText("");
    setAnswer(null);
  };
  const follow = (hit) => {
    leave();
    if (hit.kind !== "pod") field.current?.blur(); // the drawer of a pod returns the focus
    open(target(hit, caller));
  };
  const keys = (event) => {
    const items = answer?.items ?? [];
    if (event.key === "ArrowDown") setChosen(Math.min(items.length - 1, chosen + 1));
    else if (event.key === "ArrowUp") setChosen(Math.max(0, chosen - 1));
    else if (event.key === "Enter" && items[chosen] && answer.wanted === text.trim()) follow(items[chosen]);
    else if (event.key === "Escape") leave();
    else if (event.key === "/" && !text) return event.preventDefault(); // the field has the focus already
    else return;
    event.preventDefault();
  };
  const items = answer?.items ?? [];
  return html`<div class="search">
    <label class="unseen" for="search">Search</label>
    <input id="search" ref=${field} type="search" role="combobox" autocomplete="off" spellcheck=${false} placeholder="Search pods, jobs, users ( / )" value=${text} aria-expanded=${String(Boolean(answer))} aria-controls="hits" aria-activedescendant=${items.length ? `hit-${chosen}` : undefined} onInput=${(event) => setText(event.target.value)} onKeyDown=${keys} onBlur=${() => setAnswer(null)} />
    <div class="hits" hidden=${!answer}>
      <ul id="hits" role="listbox" aria-label="Found">
        ${items.map((hit, index) => html`<li key=${`${hit.kind} ${hit.namespace} ${hit.tenant} ${hit.user} ${hit.name}`} id=${`hit-${index}`} role="option" aria-selected=${String(index === chosen)} onMouseDown=${(event) => { event.preventDefault(); follow(hit); }}>
          <span class="tag">${hit.kind}</span> ${visible(hit.name)} <span class="note">${visible(where(hit))}</span>
        </li>`)}
      </ul>
      ${answer && !items.length ? html`<p class="note">${visible(answer.error ?? "No pod, job, user, tenant, namespace or node contains this text.")}</p>` : null}
      ${isCut(items) ? html`<p class="note">Of each kind, the first ${MOST} are shown. A longer text finds fewer.</p>` : null}
    </div>
  </div>`;
}
