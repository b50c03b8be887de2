"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const charts = [];
  const axes = [["epoch", "epochs"], ["gradients", "gradients"], ["seconds", "seconds"]].filter(([key]) => data.x[key]);

  const faded = (hex, alpha) =>
    `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},${alpha})`;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Plotly reads HTML and %{...} in what it shows; a policy's name is neither.
  const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%{", "%&#123;");
  const shown = (values, log) => values.map((v) => (v === null || (log && v <= 0) ? null : v));

  function traces(chart) {
    const dark = document.documentElement.dataset.theme === "dark";
    return data.policies.flatMap(({ name, colour }) => {
      const x = data.x[chart.x][name];
      const { low, middle, high } = chart.metric.curves[name];
      const [bottom, top, line] = [low, high, middle].map((v) => shown(v, chart.log));
      const known = x.map((_, at) => at).filter((at) => bottom[at] !== null && top[at] !== null);
      const back = [...known].reverse();
      const common = { name, legendgroup: name, visible: !hidden.has(name), showlegend: false };
      const number = chart.metric.percent ? ".2%" : ".4~g";
      return [
        {
          ...common, type: "scatter", mode: "none", fill: "toself", hoverinfo: "skip",
          fillcolor: faded(colour, dark ? 0.2 : 0.14),
          x: known.concat(back).map((at) => x[at]),
          y: known.map((at) => bottom[at]).concat(back.map((at) => top[at])),
        },
        {
          ...common, type: "scatter", mode: "lines", x, y: line, line: { color: colour, width: 2.2 },
          customdata: low.map((v, at) => [v, high[at]]),
          hovertemplate: `<b>${literal(name)}</b>  %{y:${number}}  (%{customdata[0]:${number}} – %{customdata[1]:${number}})<extra></extra>`,
        },
      ];
    });
  }

  // Whole decades where there are several; on a linear axis the first epochs would flatten all that follows.
  function scale(chart) {
    const all = data.policies.flatMap(({ name }) => {
      const { low, high } = chart.metric.curves[name];
      const skip = chart.log ? 0 : Math.ceil(low.length / 10);
      return low.slice(skip).concat(high.slice(skip));
    }).filter((v) => v !== null && (!chart.log || v > 0));
    const [least, most] = [Math.min(...all), Math.max(...all)];
    if (chart.log) return { type: "log", dtick: Math.log10(most / least) > 1.7 ? 1 : "D2", minor: { ticks: "outside", ticklen: 2, tickcolor: css("--line") } };
    const air = (most - least || Math.abs(most) || 1) * 0.06;
    return { type: "linear", range: all.length ? [least - air, most + air] : undefined, nticks: 7 };
  }

  function layout(chart) {
    const ticks = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, tickcolor: css("--line"), ticks: "outside", ticklen: 4, automargin: true };
    return {
      uirevision: `${chart.x}${chart.log}`,
      margin: { l: 12, r: 10, t: 14, b: 10 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--soft") },
      hovermode: "x unified",
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
      dragmode: matchMedia("(pointer: coarse)").matches || innerWidth < 760 ? false : "zoom",
      xaxis: { ...ticks, title: { text: data.words[chart.x], standoff: 8 }, hoverformat: ".4~g", rangemode: "tozero" },
      yaxis: {
        ...ticks, ...scale(chart), tickformat: chart.metric.percent ? ".1~%" : undefined, exponentformat: "power",
      },
    };
  }

  function draw(chart) {
    const options = { responsive: true, displayModeBar: false, displaylogo: false, scrollZoom: false, showTips: false };
    return Plotly.react(chart.plot, traces(chart), layout(chart), options);
  }

  function segment(parent, choices, current, pick, label) {
    const box = document.createElement("div");
    box.className = "segment";
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", label);
    for (const [key, word] of choices) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = word;
      button.setAttribute("aria-pressed", String(key === current));
      button.addEventListener("click", () => {
        for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
        pick(key);
      });
      box.append(button);
    }
    parent.append(box);
  }

  function addChart(metric, at) {
    const card = document.createElement("section");
    card.className = at === 0 ? "card chart wide" : "card chart";
    const top = document.createElement("div");
    top.className = "top";
    const words = document.createElement("div");
    const title = document.createElement("h2");
    title.textContent = metric.title;
    const about = document.createElement("p");
    about.textContent = metric.about;
    words.append(title, about);
    const controls = document.createElement("div");
    controls.className = "controls";
    const plot = document.createElement("div");
    plot.className = "plot";
    plot.dataset.metric = metric.column;
    top.append(words, controls);
    card.append(top, plot);
    document.getElementById("charts").append(card);
    const chart = { metric, plot, x: "epoch", log: metric.log };
    charts.push(chart);
    if (axes.length > 1) segment(controls, axes, "epoch", (key) => { chart.x = key; draw(chart); }, "horizontal axis");
    segment(controls, [["log", "log"], ["linear", "linear"]], metric.log ? "log" : "linear",
      (key) => { chart.log = key === "log"; draw(chart); }, "vertical axis");
  }

  function addChip({ name, colour }) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.dataset.policy = name;
    chip.style.setProperty("--colour", colour);
    chip.setAttribute("aria-pressed", "true");
    chip.title = "show or hide";
    chip.append(document.createElement("i"), name);
    chip.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      chip.setAttribute("aria-pressed", String(!hidden.has(name)));
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
    charts.forEach(draw);
  }
  theme.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    dress();
  });
  wish.addEventListener("change", dress);
  addEventListener("resize", () => charts.forEach((chart) => Plotly.Plots.resize(chart.plot)));

  data.policies.forEach(addChip);
  data.metrics.forEach(addChart);
  dress();
  document.documentElement.dataset.ready = "yes";
})();
