"use strict";
/* One chart as SVG: axes, bands, lines, and what the pointer is at. Colours come from the page's style sheet. */
const Chart = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const POWERS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

  function add(parent, tag, attributes = {}, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  /* A number as readers like it: no e-5, and thousands apart. */
  function words(value, digits) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e-3 && size < 1e6) {
      return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "−");
    }
    const [front, power] = value.toExponential(digits - 1).split("e");
    const up = String(Number(power)).replace(/./g, (sign) => POWERS[sign]);
    return Number(front) === 1 ? `10${up}` : `${Number(front)}·10${up}`.replace("-", "−");
  }

  function evenTicks(low, high, most) {
    const rough = (high - low) / most;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((k) => k * unit).find((s) => s >= rough);
    const first = Math.ceil(low / step - 1e-9);
    const count = Math.floor(high / step + 1e-9) - first + 1;
    return Array.from({ length: Math.max(count, 0) }, (_, at) => Number(((first + at) * step).toPrecision(12)));
  }

  function logTicks(low, high, most) {
    const [from, to] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    if (to - from < 2) {
      const fine = [];
      for (let power = from - 1; power <= to; power += 1) for (const k of [1, 2, 5]) fine.push(Number(`${k}e${power}`));
      const inside = fine.filter((v) => v >= low && v <= high);
      return inside.length > 2 ? inside : evenTicks(low, high, most).filter((v) => v > 0);
    }
    const stride = Math.ceil((to - from + 1) / most);
    return Array.from({ length: Math.floor((to - from) / stride) + 1 }, (_, at) => Number(`1e${from + at * stride}`));
  }

  const joined = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

  /* Runs of neighbours that can all be drawn: what diverged, or is not positive on a log axis, leaves a gap. */
  function pieces(count, good) {
    const found = [[]];
    for (let at = 0; at < count; at += 1) {
      if (good(at)) found.at(-1).push(at);
      else if (found.at(-1).length) found.push([]);
    }
    return found.filter((piece) => piece.length);
  }

  /* Draw `chart` = {metric, x, log, number} into its plot; answers where things are, for the pointer. */
  function draw(chart, data, hidden) {
    const { plot, metric, log } = chart;
    const [width, height] = [Math.max(plot.clientWidth, 240), Math.max(plot.clientHeight, 200)];
    plot.replaceChildren();
    const range = metric.range[log ? "log" : "linear"];
    if (!range) {
      plot.append(log ? "No positive value to show on a log axis." : "No finite value to show.");
      return null;
    }
    const svg = add(plot, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": metric.title });
    const ticks = (log ? logTicks : evenTicks)(range[0], range[1], 6);
    const label = (value) => (metric.percent ? `${words(100 * value, 3)} %` : words(value, 3));
    const left = 14 + 7 * Math.max(...ticks.map((tick) => label(tick).length), 2);
    const box = { left, right: width - 12, top: 10, bottom: height - 42 };
    const most = Math.max(...data.policies.map(({ name }) => data.x[chart.x][name].at(-1) ?? 0)) || 1;
    const scale = log ? Math.log10 : Number;
    const [low, high] = range.map(scale);
    const toX = (value) => box.left + ((box.right - box.left) * value) / most;
    const toY = (value) => box.bottom - ((box.bottom - box.top) * (scale(value) - low)) / (high - low);

    for (const tick of ticks) {
      const y = toY(tick);
      add(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y });
      add(svg, "text", { x: box.left - 8, y: y + 4, "text-anchor": "end" }, label(tick));
    }
    for (const tick of evenTicks(0, most, width < 420 ? 4 : 7)) {
      add(svg, "line", { class: "axis", x1: toX(tick), x2: toX(tick), y1: box.bottom, y2: box.bottom + 4 });
      add(svg, "text", { x: toX(tick), y: box.bottom + 18, "text-anchor": "middle" }, words(tick, 3));
    }
    add(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom });
    add(svg, "text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, data.words[chart.x]);

    const clip = add(add(svg, "defs"), "clipPath", { id: `clip-${chart.number}` });
    add(clip, "rect", { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 6 });
    const inside = add(svg, "g", { "clip-path": `url(#clip-${chart.number})` });
    const shown = data.policies.filter(({ name }) => !hidden.has(name));
    const can = (value) => value !== null && (!log || value > 0);
    for (const { name, colour } of shown) {
      const { low: under, high: over } = metric.curves[name];
      const x = data.x[chart.x][name];
      for (const piece of pieces(x.length, (at) => can(under[at]) && can(over[at]))) {
        const there = piece.map((at) => [toX(x[at]), toY(over[at])]);
        const back = [...piece].reverse().map((at) => [toX(x[at]), toY(under[at])]);
        add(inside, "path", { class: "band", style: `--colour:${colour}`, d: `M${joined([...there, ...back])}Z` });
      }
    }
    for (const { name, colour, dash } of shown) {
      const x = data.x[chart.x][name];
      const { middle } = metric.curves[name];
      const d = pieces(x.length, (at) => can(middle[at])).map((p) => `M${joined(p.map((at) => [toX(x[at]), toY(middle[at])]))}`);
      const line = add(inside, "path", { class: "line", style: `--colour:${colour}`, "stroke-dasharray": dash, d: d.join("") });
      line.dataset.policy = name;
    }
    return { box, most, width, toX, guide: add(svg, "line", { class: "guide", y1: box.top, y2: box.bottom, visibility: "hidden" }) };
  }

  /* What every shown policy is at nearest to the pointer, the highest first; none outside the axes. */
  function read(chart, data, hidden, at) {
    const { box, most, toX } = chart.drawn;
    if (at < box.left - 6 || at > box.right + 6) return null;
    const wanted = (most * (at - box.left)) / (box.right - box.left);
    const value = (v) => (v === null ? "diverged" : chart.metric.percent ? `${(100 * v).toFixed(2)} %` : words(v, 4));
    const rows = data.policies.filter(({ name }) => !hidden.has(name)).map(({ name, colour, dash }) => {
      const x = data.x[chart.x][name];
      const near = x.reduce((best, v, i) => (Math.abs(v - wanted) < Math.abs(x[best] - wanted) ? i : best), 0);
      const { low, middle, high } = chart.metric.curves[name];
      const span = low[near] === high[near] ? "" : ` (${value(low[near])} – ${value(high[near])})`;
      return { name, colour, dash, x: x[near], key: middle[near] ?? Infinity, text: value(middle[near]) + span };
    });
    if (!rows.length) return null;
    rows.sort((a, b) => b.key - a.key);
    return { rows, guide: toX(rows[0].x), title: `${data.words[chart.x]} ${words(rows[0].x, 4)}` };
  }

  return { draw, read };
})();
