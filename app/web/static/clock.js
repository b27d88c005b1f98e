// The time of the server. The clock of the browser may be wrong.

/** The header Date has whole seconds, and a server makes it once a second. In milliseconds. */
const COARSE = 2000;

let offset = 0;

/** Return the time of the server in milliseconds. */
export function now() {
  return Date.now() + offset;
}

/**
 * Learn the time of the server from an answer to a request that began at `asked`, by the browser's clock.
 * The offset changes only if it cannot be right.
 */
export function learn(answer, asked) {
  const date = Date.parse(answer.headers.get("date"));
  if (Number.isFinite(date)) offset = Math.min(Math.max(offset, date - Date.now()), date + COARSE - asked);
}
