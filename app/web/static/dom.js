// Creates elements. Strings are inserted as text, never as markup, because users choose names.

const SVG = "http://www.w3.org/2000/svg";

// C0 and C1 controls, bidirectional and zero-width characters: see app/core/safe_text.py.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Return a string with its hidden characters escaped; other values unchanged. */
export function visible(text) {
  if (typeof text !== "string") return text;
  return text.replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function fill(element, fields, children) {
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : visible(String(value)));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map(visible));
  return element;
}

/** Return an element with these attributes. Names that begin with `on` are listeners. */
export function make(tag, fields = {}, ...children) {
  return fill(document.createElement(tag), fields, children);
}

/** Return an SVG element, as `make` does for HTML. */
export function draw(tag, fields = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), fields, children);
}

/** Set text only if it differs, so that screen readers and selections are not disturbed. */
export function say(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/**
 * Give `parent` one child for each item, in order. Elements of known items are reused, so that
 * focus and open details survive. `create(item)` returns a new element, `update` refreshes it.
 */
export function keep(parent, items, key, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let element = known.get(name);
    if (element) known.delete(name);
    else {
      element = create(item);
      element.dataset.key = name;
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const gone of known.values()) gone.remove();
}

/** Return a table with explicit roles, because small screens display rows as blocks. */
export function table(caption, columns) {
  const head = make(
    "tr",
    { role: "row" },
    ...columns.map(({ name, kind }) =>
      make("th", { scope: "col", role: "columnheader", class: kind }, name),
    ),
  );
  const body = make("tbody", { role: "rowgroup" });
  const whole = make(
    "table",
    { role: "table" },
    make("caption", {}, caption),
    make("thead", { role: "rowgroup" }, head),
    body,
  );
  return { whole, body, head };
}

/** Return a cell. Small screens without column headers show `label` before it. */
export function cell(kind, label, ...children) {
  return make("td", { role: "cell", class: kind, "data-label": label }, ...children);
}
