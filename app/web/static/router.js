// Addresses of the views: `#/tenants/NAME?sort=wait`. A pod opens over the view before it.

const FIRST = "#/";

let listener = () => {};
let page = FIRST;
let isClosing = false;

history.scrollRestoration = "manual";

/** Return view, arguments and query of an address. */
export function parse(address) {
  const [path, query] = address.replace(/^#\/?/, "").split("?");
  const [view, ...args] = path.split("/").map(decoded);
  return { view, args, query: new URLSearchParams(query ?? "") };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Return the address of a view. Empty values of the query are left out. */
export function address(view, args = [], query = {}) {
  const path = [view, ...args].map(encodeURIComponent).join("/");
  const entries = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  return `#/${path}${entries.length ? `?${new URLSearchParams(entries)}` : ""}`;
}

export const podAddress = (namespace, name) => address("pods", [namespace, name]);

/** Return the view, and the pod that is open over it, if any. */
export function current() {
  const here = parse(location.hash);
  if (here.view !== "pods") {
    page = location.hash || FIRST;
    return { ...parse(page), pod: null };
  }
  page = history.state?.page ?? page;
  const [namespace, name] = here.args;
  return { ...parse(page), pod: { namespace, name: name ?? "" } };
}

/** Open an address. The old one stays in the history of the browser with its scroll position. */
export function open(target) {
  history.replaceState({ ...history.state, scroll: scrollY }, "");
  const isPod = parse(target).view === "pods";
  history.pushState({ page: isPod ? page : undefined, isOpened: true }, "", target);
  listener();
  if (!isPod) scrollTo(0, 0);
}

/** Change the query of the view in place. It does not add an entry to the history. */
export function change(query) {
  const here = parse(page);
  page = address(here.view, here.args, { ...Object.fromEntries(here.query), ...query });
  if (parse(location.hash).view === "pods") history.replaceState({ ...history.state, page }, "");
  else history.replaceState(history.state, "", page);
  listener();
}

/** Close the pod. The view below did not move. */
export function closePod() {
  if (isClosing) return; // a second click would leave the view below
  if (history.state?.isOpened) {
    isClosing = true;
    history.back();
  } else {
    history.replaceState(null, "", page);
    listener();
  }
}

/** Call `told` after each change of the address. Return a function that stops this. */
export function listen(told) {
  listener = told;
  const follow = (event) => {
    const link = event.target.closest?.('a[href^="#/"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(link.getAttribute("href"));
  };
  const back = () => {
    isClosing = false;
    told();
    const { scroll } = history.state ?? {};
    if (scroll !== undefined) requestAnimationFrame(() => scrollTo(0, scroll));
  };
  document.addEventListener("click", follow);
  addEventListener("popstate", back);
  return () => {
    listener = () => {};
    document.removeEventListener("click", follow);
    removeEventListener("popstate", back);
  };
}
