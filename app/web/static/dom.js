// Makes elements. Text is only ever set as text: names come from people, and people are inventive.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, fields, children) {
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return an element with these attributes; `onclick` and the like are listeners. */
export function make(tag, fields = {}, ...children) {
  return fill(document.createElement(tag), fields, children);
}

/** The same for SVG. */
export function draw(tag, fields = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), fields, children);
}

/** Set text only if it differs, so that nothing is announced or selected anew. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Make the children of `parent` stand for `items`, in order. Those that stay are the same elements
 * as before, so focus and open details survive. `create(item)` returns an element, `update`
 * brings it up to date.
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

/** Return a table with explicit roles, which survive when small screens lay rows out as blocks. */
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

/** Return a cell; `label` stands before it where there is no head of columns. */
export function cell(kind, label, ...children) {
  return make("td", { role: "cell", class: kind, "data-label": label }, ...children);
}
