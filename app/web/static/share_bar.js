// A bar of use, with marks for fair share, guarantee and limit that differ in shape.

import { Term } from "./components.js";
import { html } from "./vendor/htm/preact-standalone.js";

const WIDTH = 240;

/** A mark so far beyond the end is an arrow. Below it, the difference is rounding. */
const BEYOND = 1.0001;

/**
 * `part`: fractions `used`, `owed`, `guarantee`, `limit`. `end`: the fraction at the end of the bar.
 * Use beyond the fair share is hatched. A mark beyond the end is an arrow.
 */
export function ShareBar({ part, end }) {
  const at = (value) => WIDTH * Math.min(1, value / end);
  const within = at(Math.min(part.used, part.owed));
  return html`<svg class="bar" viewBox=${`0 0 ${WIDTH} 20`} preserveAspectRatio="none" aria-hidden="true">
    <rect class="ground" x="0.5" y="5.5" width=${WIDTH - 1} height="9" />
    <rect class="used" x="0" y="5" width=${within} height="10" />
    <rect class="over" x=${within} y="5" width=${Math.max(0, at(part.used) - within)} height="10" />
    <${Mark} kind="guarantee" value=${part.guarantee || null} end=${end} at=${at} />
    <${Mark} kind="limit" value=${part.limit} end=${end} at=${at} />
    <${Mark} kind="fair" value=${part.owed} end=${end} at=${at} />
  </svg>`;
}

/** Fair share: a full line. Guarantee: a triangle below. Limit: a bracket. */
const SHAPES = {
  fair: (x) => `M${x - 1.5} 0H${x + 1.5}V20H${x - 1.5}Z`,
  guarantee: (x) => `M${x} 11L${x + 5} 20H${x - 5}Z`,
  limit: (x) => `M${x - 6} 0H${x + 1.5}V20H${x - 6}V17H${x - 1.5}V3H${x - 6}Z`,
  beyond: (x) => `M${x - 8} 4L${x} 10L${x - 8} 16Z`,
};

function Mark({ kind, value, end, at }) {
  if (value === null || value === undefined) return null;
  const isBeyond = value > end * BEYOND;
  const x = Math.min(Math.max(at(value), 2), WIDTH - 2);
  return html`<path class=${`mark ${kind}${isBeyond ? " beyond" : ""}`} d=${isBeyond ? SHAPES.beyond(WIDTH) : SHAPES[kind](x)} />`;
}

/** The pattern of use beyond the fair share. All bars refer to it. */
function Hatch() {
  return html`<svg width="0" height="0" aria-hidden="true" class="unseen"><defs>
    <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect class="ground" width="6" height="6" fill="var(--free)" /><rect width="3" height="6" fill="var(--used)" />
    </pattern>
  </defs></svg>`;
}

/** Return the kinds of marks that a bar draws. Only a limit can be beyond the end: see `scaleEnd`. */
export function marksOf({ owed, guarantee, limit }, end) {
  const marks = Object.entries({ fair: owed, guarantee: guarantee || null, limit }).filter(([, value]) => value !== null && value !== undefined);
  return marks.map(([kind, value]) => (value > end * BEYOND ? "beyond" : kind));
}

/** The legend of the bars, with the kinds of marks that they draw. */
export function BarLegend({ marks }) {
  const key = (kind) => html`<svg class="key" viewBox="0 0 16 20" aria-hidden="true"><path class=${`mark ${kind}`} d=${SHAPES[kind](9)} /></svg>`;
  return html`<${Hatch} /><ul class="legend" aria-label="Meaning of the bars">
    <li><span class="key used"></span>used within the fair share</li>
    <li><span class="key over"></span>used beyond it</li>
    ${["fair share", "guarantee", "limit"].map((name) => (marks.has(name.split(" ")[0]) ? html`<li key=${name}>${key(name.split(" ")[0])}<${Term} name=${name}>${name}<//></li>` : null))}
    ${marks.has("beyond") ? html`<li key="beyond">${key("beyond")}limit beyond the bar</li>` : null}
    <li><${Term} name="weight">weight 1 if not shown<//></li>
  </ul>`;
}

/** Return the end of a scale: a round fraction that no used, fair or guaranteed part exceeds. */
export function scaleEnd(parts) {
  const most = Math.max(0.01, ...parts.flatMap((part) => [part.used, part.owed, part.guarantee ?? 0]));
  return [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1].find((end) => most <= end) ?? most;
}
