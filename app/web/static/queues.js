// Queues: the number of waiting pods by wait reason, and on demand the first pods of a queue.

import { cell, keep, make, say, table } from "./dom.js";
import { amounts, count, lasting } from "./words.js";

const MOST = 300;
const FIRST = 20;
const AGAIN = 5000;

export class Queues {
  /** `ask(path)` requests a path of the API as the caller. */
  constructor(place, ask) {
    this.place = place;
    this.ask = ask;
    this.open = null;
    this.asked = 0;
  }

  forget() {
    this.close();
    this.place.replaceChildren();
  }

  show(state, hello, wanted) {
    if (!this.place.firstChild) this.build();
    const hits = (queue) =>
      [queue.tenant, queue.user, ...Object.keys(queue.rules)].some((word) =>
        word.toLowerCase().includes(wanted),
      );
    const all = state.queues.filter(hits);
    const shown = all.slice(0, MOST);
    const key = (queue) => JSON.stringify([queue.tenant, queue.user]);
    keep(this.body, shown, key, (queue) => this.row(queue), (element, queue) => this.update(element, queue));
    this.whole.hidden = !shown.length;
    let note = "";
    if (!all.length && wanted) note = "No queue matches the filter.";
    else if (!all.length && (hello.everyQueue || hello.queues.length)) note = "Nothing waits.";
    else if (!all.length) note = "You may not see any queue; ask for the right to get tenants/queue.";
    else if (all.length > shown.length) note = `${count(all.length - shown.length, "more queue")}: use the filter.`;
    if (state.leftOut.queues) note += ` ${count(state.leftOut.queues, "queue")} beyond these.`;
    say(this.note, note.trim());
    if (this.open) this.refresh();
  }

  build() {
    const { whole, body } = table("How many pods wait, and for what", [
      { name: "Tenant", kind: "name" },
      { name: "User", kind: "name" },
      { name: "Pods", kind: "number" },
      { name: "They wait for", kind: "rules" },
      { name: "Details", kind: "more" },
    ]);
    body.id = "queue-rows";
    this.whole = whole;
    this.body = body;
    this.note = make("p", { class: "note" });
    this.pods = make("div", { class: "pods", hidden: true, tabindex: "-1", role: "region", "aria-label": "Pods of a queue" });
    this.place.append(whole, this.note, this.pods);
  }

  row(queue) {
    const button = make("button", { type: "button", onclick: () => this.look(queue, button) }, "Show pods");
    button.setAttribute("aria-label", `Show the pods of ${queue.tenant}, ${queue.user}`);
    button.setAttribute("aria-expanded", "false");
    return make(
      "tr",
      { role: "row" },
      make("th", { scope: "row", role: "rowheader", class: "name" }),
      cell("name", "User"),
      cell("number", "Pods"),
      cell("rules", "They wait for", make("ul", { class: "rules" })),
      cell("more", "", button),
    );
  }

  update(element, queue) {
    const [tenant, user, pods, rules] = element.children;
    say(tenant, queue.tenant);
    say(user, queue.user);
    say(pods, String(queue.pending));
    keep(
      rules.firstChild,
      Object.entries(queue.rules),
      ([rule]) => rule,
      () => make("li"),
      (item, [rule, number]) => say(item, `${rule} ${number}`),
    );
  }

  close() {
    this.open?.button.setAttribute("aria-expanded", "false");
    this.open?.stopping.abort();
    this.open = null;
    if (this.pods) {
      this.pods.hidden = true;
      this.pods.replaceChildren();
    }
  }

  async look(queue, button) {
    const same = this.open?.button === button;
    this.close();
    if (same) return;
    button.setAttribute("aria-expanded", "true");
    this.open = { ...queue, button, stopping: new AbortController() };
    this.asked = 0;
    this.pods.hidden = false;
    this.pods.append(make("p", { class: "note" }, "Asking …"));
    await this.refresh();
    this.pods.focus();
  }

  async refresh() {
    if (Date.now() < this.asked + AGAIN) return;
    this.asked = Date.now();
    const { tenant, user, stopping } = this.open;
    const query = new URLSearchParams({ user, limit: String(FIRST) });
    const path = `/v1/tenants/${encodeURIComponent(tenant)}/queue?${query}`;
    let shown;
    try {
      shown = list(await this.ask(path, stopping.signal), tenant, user);
    } catch (error) {
      shown = make("p", { class: "problem" }, `The pods cannot be shown: ${error.message}`);
    }
    if (!stopping.signal.aborted) this.pods.replaceChildren(shown);
  }
}

function estimateOf(estimate) {
  if (!estimate) return "no estimate";
  const since = (Date.now() - Date.parse(estimate.at)) / 1000;
  const [soon, late] = [estimate.p50, estimate.p90].map((each) => Math.max(0, each - since));
  return `${lasting(soon)} to ${lasting(late)}`;
}

function list(queue, tenant, user) {
  if (!queue.items.length) return make("p", { class: "note" }, `Nothing of ${tenant}, ${user} waits any more.`);
  const { whole, body } = table(`The first pods of ${tenant}, ${user}`, [
    { name: "Place", kind: "number" },
    { name: "Pod", kind: "name" },
    { name: "Asks for", kind: "used" },
    { name: "Waits since", kind: "used" },
    { name: "Reason", kind: "reason" },
    { name: "Likely start in", kind: "used" },
  ]);
  for (const pod of queue.items) {
    const name = pod.pods > 1 ? `${pod.name} and ${pod.pods - 1} more of gang ${pod.gang}` : pod.name;
    const waited = pod.since ? `${lasting((Date.now() - Date.parse(pod.since)) / 1000)} ago` : "";
    body.append(
      make(
        "tr",
        { role: "row" },
        cell("number", "Place", pod.position ? String(pod.position) : "none"),
        make("th", { scope: "row", role: "rowheader", class: "name" }, `${pod.namespace}/${name}`),
        cell("used", "Asks for", amounts(pod.request ?? {})),
        cell("used", "Waits since", waited),
        cell("reason", "Reason", make("span", { class: "chip" }, pod.rule), ` ${pod.reason}`),
        cell("used", "Likely start in", estimateOf(pod.estimate)),
      ),
    );
  }
  return whole;
}
