// The page: signs in, listens to the stream, and shows the view of the address.

import { html, render, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/htm/preact-standalone.js";
import { ask as request, filled, listen as listenTo, LATEST, SOONEST } from "./stream.js";
import { address, current, listen as listenToAddress } from "./router.js";
import { moment, time, visible } from "./format.js";
import { Guarded, NotAllowed, rightIn, Term } from "./components.js";
import { Audit } from "./views/audit.js";
import { Glossary } from "./views/glossary.js";
import { History } from "./views/history.js";
import { MyWork } from "./views/me.js";
import { Nodes } from "./views/nodes.js";
import { Overview } from "./views/overview.js";
import { PodDrawer } from "./views/pod.js";
import { Queue, Queues } from "./views/queues.js";
import { SearchBox } from "./search_box.js";
import { Tenant } from "./views/tenant.js";

const TOKEN = "fairgate.token";
const THEME = "fairgate.theme";
const THEMES = ["system", "light", "dark"];

/** A header can contain these characters. The browser refuses others like a broken connection. */
const TOKEN_TEXT = /^[\x21-\x7e]+$/;

/** Milliseconds between two drawings of the waits in a quiet cluster. */
const REDRAW = 10_000;

/** The beginning of a warning of the API, by fault: a header has no code. */
const PAUSES = {
  RedisUnreachable: "Redis is unreachable. Releases are paused, and nothing is lost.",
  NoLeader: "No controller leads. Releases are paused, and held pods keep their order.",
};

/** Faults during which no pod is released. */
const PAUSING = new Set([...Object.keys(PAUSES), "StaleData"]);

const VIEWS = [
  ["me", "My work"],
  ["tenants", "Tenants"],
  ["queues", "Queues"],
  ["nodes", "Nodes"],
  ["history", "History"],
  ["audit", "Audit"],
];

/** The objects of each view that needs a right. */
const OBJECTS = { tenants: "the tenants", queues: "the queues", nodes: "the nodes", history: "the history", audit: "the audit entries" };

/**
 * The session: null while unknown, else {token, caller}. `token` is null behind a proxy. `caller` is null
 * if signed out, and "" while the server does not answer. Only a refusal ends a session.
 */
function useSession() {
  const [session, setSession] = useState(null);
  const [why, setWhy] = useState("");
  const attempt = useRef(0);
  const begin = useCallback(async (token) => {
    const mine = ++attempt.current;
    if (token && !TOKEN_TEXT.test(token)) return end("This text has characters that no token has; copy the token again.");
    for (let wait = SOONEST; mine === attempt.current; wait = Math.min(LATEST, 2 * wait)) {
      let caller = "";
      try {
        caller = (await request("/v1/me", token)).name ?? "";
      } catch (error) {
        if (mine !== attempt.current) return undefined;
        if (error.status === 401 || error.status === 403) return end(error.status === 401 && !token ? "" : error.message);
      }
      if (mine !== attempt.current) return undefined;
      if (token) storage("sessionStorage")?.setItem(TOKEN, token);
      setWhy("");
      setSession((old) => (old?.caller === caller && old.token === token ? old : { token, caller }));
      if (caller) return undefined;
      await new Promise((resume) => setTimeout(resume, wait));
    }
    return undefined;
  }, []);
  const end = useCallback((reason = "") => {
    attempt.current += 1;
    storage("sessionStorage")?.removeItem(TOKEN);
    setWhy(reason);
    setSession({ token: null, caller: null });
  }, []);
  useEffect(() => {
    begin(storage("sessionStorage")?.getItem(TOKEN) ?? null);
  }, []);
  return { session, why, begin, end };
}

/** Return a storage of the browser, which may be switched off: `localStorage` or `sessionStorage`. */
function storage(name) {
  try {
    return window[name];
  } catch {
    return null;
  }
}

const NO_NEWS = { state: null, hello: null, link: "connecting", why: "", unread: "" };

/**
 * The data of the stream: {state, hello, link, unread}. `link`: connecting, live, lost or denied.
 * `unread`: the name of the event that the page could not read, or "".
 */
function useStream(token, isSignedIn, end) {
  const [news, setNews] = useState(NO_NEWS);
  useEffect(() => {
    if (!isSignedIn) return undefined;
    const stop = listenTo(token, (item) => {
      if (item.kind === "live") setNews((old) => ({ ...old, link: "live", why: "", unread: "" }));
      else if (item.kind === "lost") setNews((old) => (old.link === "denied" ? old : { ...old, link: "lost", why: item.why, heard: item.heard }));
      else if (item.kind === "denied" && item.status === 401) end(`You were signed out: ${item.why}`);
      else if (item.kind === "denied") setNews({ ...NO_NEWS, link: "denied", why: item.why });
      else if (item.kind === "unexpected") setNews((old) => ({ ...old, unread: item.name }));
      else if (item.name === "hello" || item.name === "state") {
        const data = filled(item.name, item.data);
        setNews((old) => ({ ...old, [item.name]: data, unread: old.unread === item.name ? "" : old.unread }));
      }
    });
    return () => {
      stop();
      setNews(NO_NEWS); // the next caller may have other rights
    };
  }, [token, isSignedIn]);
  return news;
}


function useTheme() {
  const stored = storage("localStorage")?.getItem(THEME);
  const [theme, setTheme] = useState(THEMES.includes(stored) ? stored : "system");
  const [scheme, setScheme] = useState(0);
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  useEffect(() => {
    const repaint = () => setScheme((number) => number + 1);
    const preference = matchMedia("(prefers-color-scheme: dark)");
    preference.addEventListener("change", repaint);
    return () => preference.removeEventListener("change", repaint);
  }, []);
  const next = () => {
    const following = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    storage("localStorage")?.setItem(THEME, following);
    setTheme(following);
  };
  return { theme, paint: `${theme} ${scheme}`, next };
}

function App() {
  const { session, why, begin, end } = useSession();
  const isSignedIn = session !== null && session.caller !== null;
  const token = session?.token;
  const news = useStream(token, isSignedIn, end);
  const look = useTheme();
  const [here, setHere] = useState(current);
  useEffect(() => listenToAddress(() => setHere(current())), []);
  const [pause, setPause] = useState("");
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((number) => number + 1), REDRAW);
    return () => clearInterval(timer);
  }, []);
  const leaving = useMemo(() => new AbortController(), [token, isSignedIn]);
  useEffect(() => () => {
    leaving.abort();
    setPause("");
  }, [leaving]);
  const ask = useCallback(
    async (path, { signal, ...options } = {}) => {
      const signals = signal ? AbortSignal.any([signal, leaving.signal]) : leaving.signal;
      try {
        return await request(path, token, { ...options, signal: signals, warned: setPause });
      } catch (error) {
        if (error.status === 401 && !leaving.signal.aborted) end(`You were signed out: ${error.message}`);
        throw error;
      }
    },
    [leaving],
  );
  const title = isSignedIn ? titleOf(here, news) : "Fairgate";
  useEffect(() => {
    document.title = title;
  }, [title]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <p class="brand"><img src="/static/icon.svg" alt="" width="22" height="22" /> <span class="label">Fairgate</span></p>
      <${Status} news=${news} pause=${pause} isSignedIn=${isSignedIn} />
      ${isSignedIn ? html`<${Guarded}><${SearchBox} ask=${ask} caller=${session.caller} /><//>` : null}
      <div class="person">
        ${isSignedIn ? html`<span class="caller">${visible(session.caller)}</span>` : null}
        ${isSignedIn && session.token ? html`<button type="button" onClick=${() => end()}>Sign out</button>` : null}
      </div>
      ${isSignedIn ? html`<${Guarded}><${Navigation} here=${here} news=${news} /><//>` : null}
    </header>
    ${isSignedIn ? html`<${Banner} news=${news} pause=${pause} />` : null}
    <main id="main" tabindex="-1">
      ${session === null ? html`<p class="note" role="status">Connecting …</p>` : null}
      ${session !== null && !isSignedIn ? html`<${SignIn} begin=${begin} why=${why} />` : null}
      ${isSignedIn ? html`<${Guarded}><${View} here=${here} news=${news} ask=${ask} paint=${look.paint} /><//>` : null}
    </main>
    ${isSignedIn && here.pod ? html`<${Guarded}><${PodDrawer} key=${`${here.pod.namespace}/${here.pod.name}`} ...${here.pod} ask=${ask} isAlone=${news.link === "denied"} /><//>` : null}
    <footer class="bottom"><p>Fairgate releases held GPU pods in weighted fair order. ${isSignedIn ? html`<a href="#/glossary">Terms and figures</a> · ` : null}<a href="/openapi.json">API</a></p>${isSignedIn ? html`<p class="account">${visible(session.caller)}</p>` : null}<button type="button" onClick=${look.next}>Theme: ${look.theme}</button></footer>
  `;
}

function titleOf(here, news) {
  return readOr("Fairgate", () => `${nameOf(here, viewOf(here, news))} · Fairgate`);
}

function nameOf(here, view) {
  if (here.pod) return visible(`${here.pod.namespace}/${here.pod.name}`);
  const [name] = here.args;
  if (view === "tenants" && name) return visible(name);
  if (view === "nodes" && name) return visible(here.args[1] ?? name);
  if (view === "glossary") return "Terms and figures";
  if (view === "") return "Loading";
  return VIEWS.find(([each]) => each === view)?.[1] ?? "No such view";
}

/**
 * Return what `read` returns, or `instead` if it throws. In place of Guarded where an old text must not stay:
 * Preact leaves the elements of a part that throws.
 */
function readOr(instead, read) {
  try {
    return read();
  } catch (error) {
    console.error(error);
    return instead;
  }
}

/** Health at a glance. It is not green while no pod can be released. */
function Status({ news, pause, isSignedIn }) {
  const [kind, text] = readOr(["lost", "Fault"], () => healthOf(news, pause, isSignedIn));
  return html`<p class="status" role="status" data-kind=${kind}>${text}</p>`;
}

function healthOf(news, pause, isSignedIn) {
  const { link, state, unread } = news;
  let [kind, text] = ["off", "Signed out"];
  if (isSignedIn && link === "live" && unread) [kind, text] = ["lost", "Fault"];
  else if (isSignedIn && (link === "connecting" || (link === "live" && !state))) [kind, text] = ["waiting", "Connecting …"];
  else if (isSignedIn && link === "lost") [kind, text] = ["lost", "Connection lost"];
  else if (isSignedIn && link === "denied" && pause) [kind, text] = ["lost", "Releases paused"];
  else if (isSignedIn && link === "denied") [kind, text] = ["waiting", "My work only"];
  else if (isSignedIn && state?.problems.some((problem) => PAUSING.has(problem.code))) [kind, text] = ["lost", "Releases paused"];
  else if (isSignedIn && state?.problems.length) [kind, text] = ["lost", "Fault"];
  else if (isSignedIn && state?.mode === "Observe") [kind, text] = ["waiting", "Observing"];
  else if (isSignedIn) [kind, text] = ["live", "Live"];
  return [kind, text];
}

const UNEXPECTED = ["UnexpectedData", "The page met data that it does not expect, so what it shows may be old. Reload the page."];

/** `pause`: why no pod can be released, for callers without the right to the stream. */
function Banner({ news, pause }) {
  const rows = readOr([UNEXPECTED], () => messagesOf(news, pause));
  // One live region that stays, so that a message is announced once.
  return html`<div class="banner" role="alert">${rows.map(([code, text]) => html`<p key=${text.slice(0, 60)} class=${code === "Observe" ? "observe" : "problem"}><${Term} name=${code}>${text} <//></p>`)}</div>`;
}

/** Return the codes and texts of the faults and of mode Observe. */
function messagesOf(news, pause) {
  const { link, why, heard, state, unread } = news;
  const rows = [];
  if (link === "lost") {
    const shown = state && heard ? ` The data is from ${time(heard)}.` : "";
    rows.push(["ConnectionLost", `The connection was lost. The page tries again.${why ? ` ${visible(why)}` : ""}${shown}`]);
  } else if (link === "denied") {
    const code = Object.keys(PAUSES).find((each) => pause.startsWith(PAUSES[each]));
    if (code) rows.push([code, visible(pause)]);
  } else {
    if (unread) rows.push(UNEXPECTED);
    for (const problem of state?.problems ?? []) {
      // The text stays the same while the fault lasts, so that it is announced once.
      const since = problem.since ? ` Since ${moment(new Date(problem.since))}.` : "";
      rows.push([problem.code, `${problem.text}${since}`]);
    }
    if (state?.mode === "Observe") rows.push(["Observe", "Observe mode: Fairgate holds no new pod and evicts no pod. It counts and reports."]);
  }
  return rows;
}

/** Links to the views, without those that the caller's rights leave empty. */
function Navigation({ here, news }) {
  const refused = { nodes: news.hello?.pools === false, audit: news.hello?.audit === false };
  const views = news.link === "denied" ? VIEWS.slice(0, 1) : VIEWS.filter(([view]) => !refused[view]);
  return html`<nav aria-label="Views">
    ${views.map(([view, name]) => html`<a key=${view} href=${address(view)} aria-current=${viewOf(here, news) === view ? "page" : undefined}>${name}</a>`)}
  </nav>`;
}

function isUnknown(view) {
  return view !== "" && view !== "glossary" && !VIEWS.some(([each]) => each === view);
}

/** Return the right that the caller lacks for the view of an address, or "". */
function missingRight(here, { link, hello, why }) {
  if (link === "denied" && !(here.view === "queues" && here.query.get("tenant"))) return rightIn(why) || "get stream.fairgate.io";
  if (here.view === "nodes" && !here.args[1] && hello?.pools === false) return "list pools.fairgate.io";
  // The right on the entries of one tenant is known when they are asked.
  const isAnyTenant = here.query.get("tenant") || (hello && seesTenants(hello));
  return here.view === "audit" && hello?.audit === false && !isAnyTenant ? "get audit.fairgate.io" : "";
}

/** Return the view to show. Without an address, administrators see tenants and others their work. */
function viewOf(here, news) {
  if (isUnknown(here.view) || here.view === "glossary") return here.view;
  if (missingRight(here, news)) return "me";
  if (here.view) return here.view;
  if (!news.hello) return "";
  return seesTenants(news.hello) ? "tenants" : "me";
}

function seesTenants(hello) {
  return hello.everyTenant || hello.queues.length > 0;
}

function View({ here, news, ask, paint }) {
  const { state, hello, link } = news;
  const view = viewOf(here, news);
  const { query } = here;
  const known = { state, hello, query, ask };
  if (view === "me") {
    const right = missingRight(here, news);
    const objects = OBJECTS[here.view] ? `You may not see ${OBJECTS[here.view]}; here is your own work.` : "You see your own work only.";
    return html`${right ? html`<${NotAllowed} right=${right}>${objects}<//>` : null}<${MyWork} ask=${ask} isAlone=${link === "denied"} />`;
  }
  if (isUnknown(view)) {
    return html`<section class="card"><h1>No such view</h1><p>There is no view ${visible(view)}. <a href="#/">Open the first view</a></p></section>`;
  }
  if (view === "audit" && (hello || link === "lost")) return html`<${Audit} state=${state} mayReadAll=${hello?.audit !== false} query=${query} ask=${ask} />`;
  if (view === "glossary") return html`<${Glossary} query=${query} state=${state} />`;
  if (view === "queues" && query.get("tenant")) return html`<${Queue} tenant=${query.get("tenant")} user=${query.get("user")} ask=${ask} isAlone=${link === "denied"} />`;
  if (!state || !hello) return html`<p class="note">Loading …</p>`;
  switch (view) {
    case "tenants":
      return here.args[0] ? html`<${Tenant} key=${here.args[0]} name=${here.args[0]} ...${known} />` : html`<${Overview} ...${known} />`;
    case "queues":
      return html`<${Queues} ...${known} />`;
    case "nodes":
      return html`<${Nodes} ...${known} name=${here.args[0]} node=${here.args[1]} />`;
    default:
      return html`<${History} ...${known} theme=${paint} />`;
  }
}

function SignIn({ begin, why }) {
  const field = useRef(null);
  useEffect(() => field.current.focus(), [why]);
  const submit = (event) => {
    event.preventDefault();
    const token = field.current.value.trim();
    if (token) begin(token);
  };
  return html`<section class="card sign-in" aria-labelledby="sign-in-title">
    <h1 id="sign-in-title">Sign in</h1>
    <p>With kubectl: <code>kubectl fairgate open</code> opens this page with the credentials of your kubeconfig: certificate, corporate login or login program. It needs no token.</p>
    ${why ? html`<p class="problem" role="alert">${visible(why)}</p>` : null}
    <form onSubmit=${submit}>
      <label for="token">Token of audience <code>fairgate</code></label>
      <input id="token" ref=${field} type="password" autocomplete="off" spellcheck=${false} required aria-describedby="token-help" />
      <button type="submit" class="primary">Sign in</button>
    </form>
    <p id="token-help" class="note">A service account gets one by <code>kubectl create token NAME --audience fairgate</code>. An ID token of your corporate login works too if the administrator has configured it (<code>api.tokenAudiences</code>). The token stays in this tab until you sign out or close it. You see the objects that RBAC lets you see.</p>
  </section>`;
}

render(html`<${App} />`, document.getElementById("app"));
