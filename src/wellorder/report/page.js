"use strict";
/* The page around the charts: legend, switches, theme, and what the pointer is told. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const charts = [];
  const axes = [["epoch", "epochs"], ["gradients", "gradients"], ["seconds", "seconds"]].filter(([key]) => data.x[key]);

  function make(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function swatch({ colour, dash }) {
    const box = document.createElement("span");
    box.innerHTML = '<svg class="swatch" viewBox="0 0 26 6"><line x2="26" y1="3" y2="3"/></svg>';
    box.firstChild.style.setProperty("--colour", colour);
    box.firstChild.firstChild.setAttribute("stroke-dasharray", dash);
    return box.firstChild;
  }

  function draw(chart) {
    chart.drawn = Chart.draw(chart, data, hidden);
    chart.plot.append(chart.tip);
    chart.tip.hidden = true;
  }

  function point(chart, event) {
    const inside = chart.plot.getBoundingClientRect();
    const scale = chart.drawn ? chart.drawn.width / inside.width : 1;
    const told = chart.drawn && Chart.read(chart, data, hidden, (event.clientX - inside.left) * scale);
    chart.tip.hidden = !told;
    chart.drawn?.guide.setAttribute("visibility", told ? "visible" : "hidden");
    if (!told) return;
    for (const end of ["x1", "x2"]) chart.drawn.guide.setAttribute(end, told.guide);
    chart.tip.replaceChildren(make("b", "", told.title));
    for (const row of told.rows) {
      const line = make("div");
      line.append(swatch(row), make("span", "", row.name), make("span", "", row.text));
      chart.tip.append(line);
    }
    const at = told.guide / scale;
    const right = at + 14 + chart.tip.offsetWidth < inside.width;
    chart.tip.style.left = `${right ? at + 14 : Math.max(0, at - 14 - chart.tip.offsetWidth)}px`;
  }

  function segment(parent, choices, current, pick, label) {
    const box = make("div", "segment");
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", label);
    for (const [key, word] of choices) {
      const button = make("button", "", word);
      button.type = "button";
      button.setAttribute("aria-pressed", String(key === current));
      button.addEventListener("click", () => {
        for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
        pick(key);
      });
      box.append(button);
    }
    parent.append(box);
  }

  function addChart(metric, number) {
    const card = make("section", number === 0 ? "card chart wide" : "card chart");
    const [top, words, controls, plot] = [make("div", "top"), make("div"), make("div", "controls"), make("div", "plot")];
    plot.dataset.metric = metric.column;
    words.append(make("h2", "", metric.title), make("p", "", metric.about));
    top.append(words, controls);
    card.append(top, plot);
    document.getElementById("charts").append(card);
    const chart = { metric, plot, number, x: "epoch", log: metric.log && metric.range.log !== null, tip: make("div", "tip") };
    charts.push(chart);
    if (axes.length > 1) segment(controls, axes, "epoch", (key) => { chart.x = key; draw(chart); }, "horizontal axis");
    segment(controls, [["log", "log"], ["linear", "linear"]], chart.log ? "log" : "linear",
      (key) => { chart.log = key === "log"; draw(chart); }, "vertical axis");
    for (const kind of ["pointermove", "pointerdown"]) plot.addEventListener(kind, (event) => point(chart, event));
    plot.addEventListener("pointerleave", () => { chart.tip.hidden = true; chart.drawn?.guide.setAttribute("visibility", "hidden"); });
  }

  function addChip(policy) {
    const chip = make("button", "chip");
    chip.type = "button";
    chip.dataset.policy = policy.name;
    chip.setAttribute("aria-pressed", "true");
    chip.title = "show or hide";
    chip.append(swatch(policy), policy.name);
    chip.addEventListener("click", () => {
      if (!hidden.delete(policy.name)) hidden.add(policy.name);
      chip.setAttribute("aria-pressed", String(!hidden.has(policy.name)));
      charts.forEach(draw);
    });
    document.getElementById("legend").append(chip);
  }

  const theme = document.getElementById("theme");
  const wish = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  function dress() {
    const now = chosen || (wish.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now;
    theme.textContent = now === "dark" ? "light mode" : "dark mode";
  }
  theme.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    dress();
  });
  wish.addEventListener("change", dress);

  data.policies.forEach(addChip);
  data.metrics.forEach(addChart);
  dress();
  charts.forEach(draw);
  // Printing keeps the drawing and scales it: a page of paper sends no event in time to draw anew.
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) charts.forEach(draw);
    width = innerWidth;
  });
  document.documentElement.dataset.ready = "yes";
})();
