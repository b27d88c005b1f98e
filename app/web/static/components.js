// Parts that several views use. Text is set as text, never as markup.

import { html, useEffect, useErrorBoundary, useRef, useState } from "./vendor/htm/preact-standalone.js";
import { now } from "./clock.js";
import { visible } from "./format.js";
import { address } from "./router.js";

const LONGEST_PAGE = 500;

/** A table with a name, heads, and rows. Small screens show a row as a block. */
export function Table({ name, columns, sort, onSort, children, role = "table", bodyId, onKeyDown }) {
  return html`<table role=${role} aria-label=${name} onKeyDown=${onKeyDown}>
    <thead role="rowgroup">
      <tr role="row">
        ${columns.map((column) => html`<${Head} key=${column.name} column=${column} sort=${sort} onSort=${onSort} />`)}
      </tr>
    </thead>
    <tbody role="rowgroup" id=${bodyId}>${children}</tbody>
  </table>`;
}

function Head({ column, sort, onSort }) {
  const { name, kind, key, term } = column;
  const isSorted = key && sort === key;
  const content = key
    ? html`<button type="button" class="sort" onClick=${() => onSort(key)}>${name}${isSorted ? (column.direction ? " ▴" : " ▾") : ""}</button>`
    : name;
  return html`<th scope="col" role="columnheader" class=${kind} aria-sort=${isSorted ? column.direction ?? "descending" : undefined}>
    ${term ? html`<${Term} name=${term}>${content}<//>` : content}
  </th>`;
}

export function Cell({ kind, label, children }) {
  return html`<td role="cell" class=${kind} data-label=${label}>${children}</td>`;
}

export function RowHead({ kind = "name", children, ...rest }) {
  return html`<th scope="row" role="rowheader" class=${kind} ...${rest}>${children}</th>`;
}

/** A name that a user chose. */
export function Name({ text }) {
  return visible(text);
}

/** A wait reason. Rules that a person must act on look different from those of the fair order. */
const PATIENT = new Set(["capacity", "fair order", "reservation", "guarantee of others", "queued", "postponed"]);

export function needsAttention(rule) {
  return !PATIENT.has(rule);
}

export function Rule({ rule, pods }) {
  const attention = needsAttention(rule);
  return html`<span class=${attention ? "chip attention" : "chip"}>${attention ? html`<span aria-hidden="true">▲ </span>` : null}${rule}${
    pods === undefined ? "" : ` ${pods}`
  }</span>`;
}

/** The first `step` items, and a button that doubles their number. */
export function More({ items, step, noun, children }) {
  const [shown, setShown] = useState(step);
  const rest = items.length - shown;
  return html`${children(items.slice(0, shown))}
    ${rest > 0
      ? html`<p class="more"><button type="button" onClick=${() => setShown(2 * shown)}>${rest > shown ? `Show ${shown} more ${noun} (${rest} left)` : `Show the other ${rest} ${noun}`}</button></p>`
      : null}`;
}

/** A part that is drawn only while it is open. */
export function Details({ summary, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${summary}</summary>
    ${isOpen ? children() : null}
  </details>`;
}

/** A sentence in place of a table without rows, and a command to try. */
export function Empty({ children, command }) {
  return html`<p class="note">${children}${command ? html` <code>${command}</code>` : null}</p>`;
}

/** Draws its content, or a sentence while that throws. It tries again when its parent is drawn again. */
export function Guarded({ children }) {
  const failed = useRef(null);
  const [error] = useErrorBoundary((thrown) => {
    failed.current = children;
    console.error(thrown);
  });
  if (!error || failed.current !== children) return children;
  return html`<p class="problem">This part cannot be shown: the page met data that it does not expect.</p>`;
}

/** Return the right that a refusal of the API names: "get stream.fairgate.io". */
export function rightIn(refusal) {
  return /may not ([^;]+)/.exec(refusal)?.[1] ?? refusal;
}

/** A sentence about objects that the caller may not see, and the missing right in small print. */
export function NotAllowed({ right, children }) {
  return html`<p>${children}</p><p class="note"><small>The missing right: ${visible(right)}</small></p>`;
}

/** Return the first `most` items of a list that the API divides into pages. */
async function pages(ask, path, most, options) {
  const items = [];
  let answer;
  do {
    const query = new URLSearchParams({ limit: String(Math.min(LONGEST_PAGE, most - items.length)) });
    if (answer) query.set("continue", answer.continue);
    answer = await ask(`${path}${path.includes("?") ? "&" : "?"}${query}`, options);
    items.push(...answer.items);
  } while (answer.continue && items.length < most);
  return { ...answer, items };
}

/**
 * Ask `path` now and every `seconds`, or sooner if the server says when to try again. Return
 * {data, error, at}. The data of another path is never shown. `path` null: ask nothing. `most`: the
 * number of items of a list.
 */
export function useAnswer(ask, path, seconds, most) {
  const [found, setFound] = useState({});
  const wanted = useRef(path);
  wanted.current = path;
  useEffect(() => {
    if (path === null) return undefined;
    const stopping = new AbortController();
    let timer;
    const read = async () => {
      let next;
      try {
        next = { path, data: await (most ? pages(ask, path, most, { signal: stopping.signal }) : ask(path, { signal: stopping.signal })), at: now() };
      } catch (error) {
        if (stopping.signal.aborted) return;
        next = { path, error };
      }
      if (stopping.signal.aborted) return;
      setFound((before) => (next.error && before.path === path && before.data ? { ...before, error: next.error } : next));
      if (seconds) timer = setTimeout(read, Math.min(seconds, next.error?.retryAfter || seconds) * 1000);
    };
    read();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [path, seconds, most]);
  return found.path === path ? found : {};
}

/** A term with a link to its meaning. `kind`: `term`, or `reason` for a wait reason. */
export function Term({ children, name, kind = "term" }) {
  return html`<span class="term">${children}<a class="help" href=${address("glossary", [], { [kind]: name })} aria-label=${`What is ${name}?`}>?</a></span>`;
}

/** How amounts of several pools are added. Empty for one pool. */
export function UnitsNote({ units }) {
  if (!units.note) return null;
  return html`<p class="note">${units.isWeighted ? html`<${Term} name="weighted GPUs">${units.note}<//>` : units.note}</p>`;
}
