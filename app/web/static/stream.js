// Receives the server-sent events of /v1/stream. It uses fetch, because EventSource cannot send a
// token. It reconnects until the session has ended.

import { learn, now } from "./clock.js";

/** The shortest and the longest pause before the next attempt, in milliseconds. */
export const SOONEST = 1000;
export const LATEST = 30000;

/** The pause after status 403: an administrator may give the right later. In milliseconds. */
const SELDOM = 60000;
const SILENT = 45000;
const LONGEST_REASON = 500;
/** A connection that ends sooner is reported. */
const LASTED = 10000;

/** Status 401, after which a retry would not help, or 403. */
export class Denied extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Return the reason in an error of the API, of the Kubernetes API server or of a proxy. */
async function problemOf(answer) {
  const text = await answer.text().catch(() => "");
  try {
    const { detail, message } = JSON.parse(text);
    if (detail ?? message) return detail ?? message;
  } catch {
    if (text && answer.headers.get("content-type")?.startsWith("text/plain")) return text.slice(0, LONGEST_REASON);
  }
  return `${answer.status} ${answer.statusText}`;
}

/** An error status of the API. `retryAfter`: in how many seconds to try again, 0 if not stated. */
export class Failed extends Error {
  constructor(status, detail, retryAfter = 0) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Return the headers of a request. Behind an authenticating proxy there is no token. */
function headersOf(token, accept) {
  return token ? { authorization: `Bearer ${token}`, accept } : { accept };
}

/**
 * Request a route with `method` and a JSON `body`. Return JSON or text. Throws Failed. `warned`
 * receives the warning of each successful read: why no pod can be released, or "".
 */
export async function ask(path, token, { method = "GET", body, signal, warned } = {}) {
  const headers = headersOf(token, "application/json");
  if (body !== undefined) headers["content-type"] = "application/json";
  const asked = Date.now();
  const answer = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal,
  });
  learn(answer, asked);
  if (answer.ok && method === "GET") warned?.(/^299 - "(.*)"$/.exec(answer.headers.get("warning") ?? "")?.[1] ?? "");
  const isJson = answer.headers.get("content-type")?.includes("json") && !answer.headers.get("content-type").includes("ndjson");
  if (answer.ok) return isJson ? answer.json() : answer.text();
  throw new Failed(answer.status, await problemOf(answer), Number(answer.headers.get("retry-after")) || 0);
}

/** Return the data of event `hello` or `state`, with its absent parts as empty ones. Throws TypeError. */
export function filled(name, data) {
  if (name === "hello") return { ...data, queues: [...(data.queues ?? [])] };
  for (const list of ["tenants", "queues", "pools", "problems"]) data[list] ??= [];
  for (const byName of ["users", "owed", "waiting"]) data[byName] ??= {};
  data.leftOut = { users: 0, queues: 0, nodes: 0, ...data.leftOut };
  for (const part of Object.values(data.owed)) part.users ??= {};
  for (const tenant of data.tenants) tenant.used ??= {};
  for (const queue of data.queues) queue.rules ??= {};
  return withoutPrototypes(data);
}

/**
 * Remove the prototypes of the objects of a state that have names as keys. The prototype has functions,
 * such as `toString`, which a user of that name would find.
 */
function withoutPrototypes(state) {
  const parts = Object.values(state.owed).map((part) => part.users);
  const amounts = [...state.tenants.map((tenant) => tenant.used), ...state.queues.map((queue) => queue.rules)];
  for (const byName of [state.waiting, state.users, state.owed, ...parts, ...amounts]) Object.setPrototypeOf(byName, null);
  return state;
}

/** The server, or a proxy before it, ended a connection that worked. A proxy limits its duration. */
class Ended extends Error {}

/** Some proxies cut a connection, without its last chunk. The browser's message for that is not helpful. */
function asEnded(error) {
  throw error instanceof TypeError ? new Ended("") : error;
}

/**
 * Yield {name, data} of each event in a stream. Call `heard` after each read. Throws Ended. It searches
 * each chunk of a large event once.
 */
async function* events(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let chunks = []; // of an event that has not ended, without its last character
  let last = "";
  for (;;) {
    const { value, done } = await reader.read().catch(asEnded);
    if (done) return;
    heard();
    const blocks = (last + value).split("\n\n");
    const rest = blocks.pop();
    if (blocks.length) {
      blocks[0] = chunks.join("") + blocks[0];
      chunks = [];
    }
    chunks.push(rest.slice(0, -1));
    last = rest.slice(-1);
    for (const block of blocks) {
      const event = { name: "message", data: "" };
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      if (event.data) yield event;
    }
  }
}

/**
 * Listen until the returned function is called. `told` receives {kind: "live"}, {kind: "lost",
 * why, heard: Date} and {kind: "event", name, data}. If it throws at an event, it receives {kind:
 * "unexpected", name}. {kind: "denied", status, why} with status 401 is the last one.
 */
export function listen(token, told) {
  const stopping = new AbortController();
  let wait = SOONEST;
  let last = null;

  async function once() {
    const ending = new AbortController();
    const end = () => ending.abort();
    stopping.signal.addEventListener("abort", end);
    let alarm = setTimeout(end, SILENT);
    const heard = () => {
      last = new Date(now());
      clearTimeout(alarm);
      alarm = setTimeout(end, SILENT);
    };
    try {
      const asked = Date.now();
      const answer = await fetch("/v1/stream", {
        headers: headersOf(token, "text/event-stream"),
        cache: "no-store",
        signal: ending.signal,
      });
      learn(answer, asked);
      if (!answer.ok) {
        const detail = await problemOf(answer);
        if (answer.status === 401 || answer.status === 403) throw new Denied(answer.status, detail);
        throw new Error(detail);
      }
      told({ kind: "live" });
      for await (const event of events(answer.body, heard)) {
        if (event.name === "end") {
          const data = JSON.parse(event.data);
          if (data.status === 401 || data.status === 403) throw new Denied(data.status, data.detail);
          throw new Error(data.detail);
        }
        if (stopping.signal.aborted) return;
        wait = SOONEST;
        try {
          told({ kind: "event", name: event.name, data: JSON.parse(event.data) });
        } catch (error) {
          console.error(error); // the connection works
          told({ kind: "unexpected", name: event.name });
        }
      }
      throw new Ended("The server ended the connection.");
    } finally {
      clearTimeout(alarm);
      stopping.signal.removeEventListener("abort", end);
      ending.abort();
    }
  }

  /** Wait about this time, or until the end. */
  function pause(milliseconds) {
    return new Promise((resume) => {
      const end = () => {
        clearTimeout(timer);
        stopping.signal.removeEventListener("abort", end);
        resume();
      };
      const timer = setTimeout(end, milliseconds * (0.75 + Math.random() / 2));
      stopping.signal.addEventListener("abort", end);
    });
  }

  async function run() {
    while (!stopping.signal.aborted) {
      const began = Date.now();
      try {
        await once();
      } catch (error) {
        if (stopping.signal.aborted) return;
        // After a connection that worked for a while, the next one begins at once, without a word.
        if (error instanceof Ended && Date.now() - began > LASTED) continue;
        if (error instanceof Denied) {
          told({ kind: "denied", status: error.status, why: error.message });
          if (error.status === 401) return;
          await pause(SELDOM);
          continue;
        }
        // The browser's own message for a broken connection is not helpful.
        const why = error instanceof TypeError || error.name === "AbortError" ? "" : error.message;
        told({ kind: "lost", why, heard: last });
        await pause(wait);
        wait = Math.min(LATEST, wait * 2);
      }
    }
  }

  run();
  return () => stopping.abort();
}
