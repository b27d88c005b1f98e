// The dashboard: signs in, listens to the stream, and passes each state to the views.

import { make, keep, say } from "./dom.js";
import { History } from "./history.js";
import { showPools } from "./pools.js";
import { Queues } from "./queues.js";
import { ask, listen } from "./stream.js";
import { showTenants } from "./tenants.js";
import { number, percent, short, time } from "./words.js";

const TOKEN = "fairgate.token";
const THEME = "fairgate.theme";
const THEMES = ["system", "light", "dark"];

const the = (id) => document.getElementById(id);

let stop = null;
let state = null;
let hello = null;

const asks = (path, signal) => ask(path, sessionStorage.getItem(TOKEN), signal);
const history = new History(the("history"), asks);
const queues = new Queues(the("queues"), asks);

function status(kind, text) {
  the("status").dataset.kind = kind;
  say(the("status"), text);
}

function complain(text) {
  the("problem").hidden = !text;
  say(the("problem"), text);
}

function begin(token) {
  sessionStorage.setItem(TOKEN, token);
  complain("");
  status("waiting", "Connecting …");
  stop?.();
  stop = listen(token, hear);
}

function end(why = "") {
  stop?.();
  stop = state = hello = null;
  sessionStorage.removeItem(TOKEN);
  history.forget();
  queues.forget();
  for (const id of ["tiles", "tenants", "pools"]) the(id).replaceChildren();
  the("board").hidden = the("sign-out").hidden = the("caller").hidden = true;
  the("sign-in").hidden = false;
  status("off", "Signed out");
  complain(why);
  the("token").value = "";
  the("token").focus();
}

function hear(news) {
  if (news.kind === "live") {
    status("live", "Live");
    complain("");
  } else if (news.kind === "lost") {
    const shown = state ? ` What you see is of ${time(news.heard)}.` : "";
    status("lost", "Connection lost, retrying");
    complain(`The connection was lost and is tried again.${news.why ? ` ${news.why}` : ""}${shown}`);
  } else if (news.kind === "denied") {
    const lead = news.status === 401 ? "You were signed out" : "You may not look at this";
    end(`${lead}: ${news.why}`);
  } else if (news.name === "hello") {
    hello = news.data;
    greet();
  } else if (news.name === "state") {
    state = news.data;
    history.add(state);
    show();
  }
}

function greet() {
  say(the("caller"), hello.caller);
  the("caller").hidden = the("sign-out").hidden = false;
  the("sign-in").hidden = true;
  if (the("board").hidden) {
    the("board").hidden = false;
    the("main").focus();
  }
  history.greet(hello);
}

function show() {
  if (!state || !hello) return;
  const wanted = the("filter").value.trim().toLowerCase();
  showTiles();
  showTenants(the("tenants"), state, hello, wanted);
  queues.show(state, hello, wanted);
  showPools(the("pools"), state, hello);
  history.show(state);
}

function tiles() {
  const pending = state.tenants
    .filter((tenant) => !state.tenants.some((other) => other.name === tenant.parent))
    .reduce((sum, tenant) => sum + tenant.pending, 0);
  const found = [
    {
      name: "Drift against its bound",
      value: state.drift === null ? "unknown" : percent(state.drift),
      meter: state.drift,
      note: state.drift === null ? "no leader tells" : "of what is promised; never above 100 %",
    },
    {
      name: "Equality",
      value: state.jain === null ? "unknown" : state.jain.toFixed(2),
      note: "Jain's index of those who wait; 1 is equal",
    },
    {
      name: "Waiting",
      value: String(pending),
      note: hello.everyTenant ? "pods, in all queues" : "pods, of the tenants you may see",
    },
  ];
  for (const resource of new Set(state.pools.flatMap((pool) => Object.keys(pool.capacity)))) {
    const sum = (key) =>
      state.pools.reduce((all, pool) => all + number(pool[key][resource] ?? "0"), 0);
    const [used, capacity] = [sum("used"), sum("capacity")];
    if (!capacity || found.length > 5) continue;
    found.push({
      name: `${short(resource)} in use`,
      value: `${used} of ${capacity}`,
      meter: used / capacity,
      note: percent(used / capacity),
    });
  }
  if (state.epoch !== null) found.push({ name: "Leader's epoch", value: String(state.epoch), note: "" });
  return found;
}

function showTiles() {
  keep(
    the("tiles"),
    tiles(),
    (tile) => tile.name,
    (tile) =>
      make(
        "div",
        { class: "tile" },
        make("dt", {}, tile.name),
        make("dd", { class: "value" }),
        tile.meter === undefined ? null : make("dd", { class: "meter", "aria-hidden": "true" }, make("span")),
        make("dd", { class: "note" }),
      ),
    (element, tile) => {
      say(element.querySelector(".value"), tile.value);
      say(element.querySelector(".note"), tile.note);
      const meter = element.querySelector(".meter span");
      if (meter) meter.style.width = `${100 * Math.min(1, tile.meter ?? 0)}%`;
    },
  );
}

function paint(theme) {
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  say(the("theme"), `Theme: ${theme}`);
  history.repaint();
}

the("theme").addEventListener("click", () => {
  const now = THEMES.indexOf(localStorage.getItem(THEME) ?? "system");
  const next = THEMES[(now + 1) % THEMES.length];
  localStorage.setItem(THEME, next);
  paint(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => history.repaint());
the("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = the("token").value.trim();
  if (token) begin(token);
});
the("sign-out").addEventListener("click", () => end());
the("filter").addEventListener("input", show);

paint(THEMES.includes(localStorage.getItem(THEME)) ? localStorage.getItem(THEME) : "system");
const kept = sessionStorage.getItem(TOKEN);
if (kept) begin(kept);
else the("token").focus();
