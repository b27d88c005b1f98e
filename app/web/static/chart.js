// A chart of lines over time, with values on hover and by keyboard, as a table, and as a CSV file.

import uPlot from "/static/vendor/uplot/uPlot.esm.js";
import { clockTime, csvCell, day, decimal, lasting, moment, visible } from "./format.js";
import { Cell, Details, RowHead, Table } from "./components.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm/preact-standalone.js";

/** Most lines with a colour of their own. One more line is the sum of all others. */
export const MOST_LINES = 8;
const HEIGHT = 280;
const TABLE_ROWS = 24;
const NONE = [];
const HELP = "Point at the chart, or use Left and Right, to read values. Drag, or use Shift with Left and Right, to select a time.";

/** Least width of a selection by the mouse, in pixels. */
const LEAST_DRAG = 5;

/** Seconds from which the axis shows days. */
const LONG = 3 * 86400;
const DASHES = [undefined, [8, 4], [3, 3], [10, 3, 2, 3]];

/** Steps of an axis of durations in seconds, of which `lasting` rounds no two alike, and of numbers. */
export const SECONDS = [1, 5, 10, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

/**
 * `lines`: [{name, values}], a value is null if it is unknown. `levels`: constants [{name, note,
 * value}]. `say` formats a value. `name`: of the table. `file`: of the CSV file. `onSelect` receives
 * begin and end of a selected time in seconds.
 */
export function Chart(props) {
  const [held, setHeld] = useState(null); // new data would end a drag: the chart is drawn again
  const onPress = (event) => {
    if (event.button !== 0) return;
    setHeld(props);
    addEventListener("mouseup", () => setHeld(null), { once: true });
  };
  return html`<${Plot} ...${held ?? props} onPress=${onPress} />`;
}

function Plot({ title, name, file, times, lines, levels = NONE, say = decimal, theme, onSelect, onPress }) {
  const place = useRef(null);
  const drawn = useRef(null);
  const [pointed, setPointed] = useState(null); // times, because new data has other places
  const [anchor, setAnchor] = useState(null);
  const [at, mark] = [placeOf(pointed, times), placeOf(anchor, times)];
  const step = times[1] - times[0];
  const ends = mark === null || at === null ? null : [times[Math.min(mark, at)], times[Math.max(mark, at)] + step];
  const columns = useMemo(
    () => [times, ...levels.map((level) => times.map(() => level.value)), ...lines.map((line) => line.values)],
    [times, lines, ...[0, 1].map((index) => levels[index]?.value)],
  );
  useEffect(() => {
    const probe = document.createElement("span");
    place.current.append(probe);
    const resolved = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    const axis = { stroke: resolved("--soft"), grid: { stroke: resolved("--grid"), width: 1 }, ticks: { show: false } };
    const chart = new uPlot(
      {
        width: place.current.clientWidth || 300,
        height: HEIGHT,
        padding: [8, 36, 0, 0],
        legend: { show: false },
        cursor: { points: { size: 6 }, drag: { x: true, y: false, setScale: false } },
        scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
        axes: [
          { ...axis, size: 28, space: 90, values: (_, marks) => marks.map((mark, index) => label(mark, marks[index - 1], times)) },
          { ...axis, size: 60, label: title, labelSize: 24, incrs: say === lasting ? SECONDS : WHOLE, values: (_, marks) => marks.map(say) },
        ],
        series: [{}, ...levels.map((level, index) => levelOf(level, index, resolved)), ...lines.map((line, index) => lineOf(line, index, resolved))],
        hooks: {
          // A new chart also calls it, before its status is 1.
          setCursor: [({ status, cursor, data }) => status && setPointed(data[0][cursor.idx] ?? null)],
          setSelect: [({ select: { left, width }, posToVal }) => width >= LEAST_DRAG && onSelect(posToVal(left, "x"), posToVal(left + width, "x"))],
        },
      },
      columns,
      place.current,
    );
    probe.remove();
    drawn.current = chart;
    const watching = new ResizeObserver(() => chart.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    watching.observe(place.current);
    return () => {
      watching.disconnect();
      chart.destroy();
    };
  }, [columns, theme]);
  useEffect(() => {
    const chart = drawn.current;
    const select = () => {
      const [left, right] = ends ? ends.map((end) => chart.valToPos(end, "x")) : [0, 0];
      chart.setSelect({ left, width: right - left, top: 0, height: chart.over.clientHeight }, false);
    };
    queueMicrotask(select); // a new chart has its scales after the microtask that draws it
  }, [columns, theme, ends?.[0], ends?.[1]]);
  const move = (event) => {
    const last = times.length - 1;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      if (!event.shiftKey) setAnchor(null);
      else if (mark === null) setAnchor(times[at ?? last]);
      const to = times[Math.min(last, Math.max(0, (at ?? last) + by))];
      setPointed(to);
      const chart = drawn.current; // null before the first drawing
      chart?.setCursor({ left: chart.valToPos(to, "x"), top: chart.over.clientHeight / 2 }, false);
    } else if (event.key === "Enter" && ends) onSelect(...ends);
    else if (event.key === "Escape" && ends) setAnchor(null);
    else return;
    event.preventDefault();
  };
  const press = (event) => {
    setAnchor(null);
    onPress(event);
  };
  const words = at === null ? HELP : valuesAt(at, times, lines, levels, say);
  return html`
    <div class="chart" ref=${place} tabindex="0" role="group" aria-label=${`${title}. Left and Right read the values. With Shift they select a time, and Enter shows it.`} onKeyDown=${move} onMouseDown=${press}></div>
    <p class="values" role="status">${ends ? `Selected: ${moment(new Date(ends[0] * 1000))} to ${moment(new Date(ends[1] * 1000))}. Enter shows this time.` : words}</p>
    <ul class="legend lines" aria-label="Lines of the chart">
      ${lines.map((line, index) => html`<li key=${line.name}><svg class=${`key stroke line-${index + 1}`} viewBox="0 0 26 4" aria-hidden="true"><line x2="26" y1="2" y2="2" stroke-dasharray=${DASHES[index % DASHES.length]?.join(" ")} /></svg>${visible(line.name)}</li>`)}
      ${levels.map((level, index) => html`<li key=${level.name}><span class=${`key level-${index}`}></span>${level.note}</li>`)}
    </ul>
    <${Details} summary="As a table">${() => html`<${Numbers} name=${name} times=${times} lines=${lines} say=${say} />`}<//>
    <p><a download=${file} href=${csvOf(times, lines)}>Download as CSV</a></p>
  `;
}

/** Return the place of a time, or of the next one that is shown; null stays null. */
function placeOf(time, times) {
  if (time === null) return null;
  const place = times.findIndex((each) => each >= time);
  return place < 0 ? times.length - 1 : place;
}

/** Return values with null in place of 0 for the steps that ended before `since`: nothing was recorded. */
export function withGap(values, times, since) {
  const first = Date.parse(since) / 1000;
  return values.map((value, place) => (value === 0 && times[place + 1] <= first ? null : value));
}

function levelOf(level, index, resolved) {
  return { label: level.name, stroke: resolved("--text"), width: index ? 2 : 1, dash: index ? [12, 6] : [2, 4], points: { show: false } };
}

function lineOf(line, index, resolved) {
  const isAlone = (value, place) => value !== null && (line.values[place - 1] ?? null) === null && (line.values[place + 1] ?? null) === null;
  const isSparse = line.values.some(isAlone); // a value between two unknown ones has no line
  const stroke = resolved(`--line-${index + 1}`);
  return {
    label: line.name,
    stroke,
    width: 2,
    dash: DASHES[index % DASHES.length],
    // Every second line has hollow points, so that lines differ without colour.
    points: isSparse ? { show: true, size: 7, width: 2, fill: index % 2 ? resolved("--card") : stroke } : { show: false },
    paths: uPlot.paths.stepped({ align: 1 }),
  };
}

/** Return the text of a mark: a day, once, or the time of day. The first mark of another day has its date. */
export function label(at, before, times) {
  const date = new Date(at * 1000);
  const isOfSameDay = before !== undefined && new Date(before * 1000).toDateString() === date.toDateString();
  if (times[times.length - 1] - times[0] > LONG) return isOfSameDay ? "" : day(date);
  return isOfSameDay ? clockTime(date) : moment(date);
}

function valuesAt(at, times, lines, levels, say) {
  const values = lines.map((line) => `${visible(line.name)} ${shown(line.values[at], say)}`);
  return `${moment(new Date(times[at] * 1000))}: ${values.join(", ")}${levels.map((level) => `; ${level.name} ${say(level.value)}`).join("")}`;
}

function shown(value, say) {
  return value === null ? "unknown" : say(value);
}

function Numbers({ name, times, lines, say }) {
  const every = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  const rows = times.map((at, place) => ({ at, place })).filter(({ place }) => place % every === 0).reverse();
  const columns = [{ name: "Time", kind: "name" }, ...lines.map((line) => ({ name: visible(line.name), kind: "number" }))];
  return html`<${Table} name=${name} columns=${columns}>
    ${rows.map(({ at, place }) => html`<tr role="row" key=${at}>
      <${RowHead}>${moment(new Date(at * 1000))}<//>
      ${lines.map((line) => html`<${Cell} key=${line.name} kind="number" label=${visible(line.name)}>${shown(line.values[place], say)}<//>`)}
    </tr>`)}
  <//>`;
}

/** Return the data as a CSV file. */
function csvOf(times, lines) {
  const head = ["time", ...lines.map((line) => csvCell(line.name))].join(",");
  const rows = times.map((at, place) => [new Date(at * 1000).toISOString(), ...lines.map((line) => line.values[place])].join(","));
  return `data:text/csv;charset=utf-8,${encodeURIComponent([head, ...rows].join("\n"))}`;
}
