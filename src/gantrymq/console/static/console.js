// What a page can't do without a script: times in the browser's zone, the live tail, charts, tables that are scrolled by
// keyboard. The rest is htmx, or works without.
"use strict";
(() => {
  const lang = document.documentElement.lang;
  // Days and months in the order that the visitor knows, where the page is in the visitor's language.
  const locale = navigator.languages.find((one) => one.slice(0, 2) === lang.slice(0, 2)) || lang;
  const format = new Intl.DateTimeFormat(locale, {dateStyle: "short", timeStyle: "medium"});
  const localize = (root) => {
    for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
      time.title = time.textContent;
      time.textContent = format.format(new Date(time.dateTime));
    }
  };

  // A table that is wider than the page is scrolled with the arrow keys: it has to be reached for that.
  const reachable = () => {
    for (const one of document.querySelectorAll(".scroll")) {
      if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
      else one.removeAttribute("tabindex");
    }
  };

  // Rows that are kept on the page; the rate is bounded by the server.
  const MAX_ROWS = 200;
  // Invisible and directional characters as code points, as the server writes them.
  const visible = (text) => String(text).replace(/[\p{C}\p{Z}]/gu, (one) =>
    one === " " ? one : "\\u" + one.codePointAt(0).toString(16).padStart(4, "0"));
  const cell = (row, text, name) => {
    const made = document.createElement("td");
    made.textContent = visible(text);
    if (name) made.className = name;
    row.append(made);
    return made;
  };
  const follow = (table) => {
    const state = document.getElementById("tail-state");
    const stream = new EventSource(table.dataset.stream);
    let leftOut = 0;
    stream.onmessage = (event) => {
      const round = JSON.parse(event.data);
      for (const message of round.rows) {
        const row = document.createElement("tr");
        cell(row, format.format(new Date(message.stored_ms)));
        cell(row, `${message.broker} ${message.queue_id}`);
        const link = document.createElement("a");
        link.href = "/message?" + new URLSearchParams(
          {topic: message.topic, broker: message.broker, queue: message.queue_id, offset: message.offset});
        link.textContent = message.offset;
        cell(row, "", "n").append(link);
        cell(row, message.tags, "name");
        cell(row, message.keys.join(" "), "name");
        cell(row, message.start, "name");
        table.tBodies[0].prepend(row);
      }
      while (table.rows.length > MAX_ROWS) table.deleteRow(-1);
      leftOut += round.left_out;
      if (round.problem) state.textContent = visible(round.problem);
      else if (leftOut) state.textContent = state.dataset.leftOut.replace("{count}", leftOut.toLocaleString());
    };
    // Without this the browser would begin again where the server has ended it.
    stream.addEventListener("over", () => { stream.close(); state.textContent = state.dataset.over; });
  };

  // The points are asked for apart from the page: a page that is drawn needs them once.
  const draw = async (holder) => {
    const answer = await fetch(holder.dataset.history);
    if (!answer.ok) return;
    const history = await answer.json();
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    for (const place of document.querySelectorAll("[data-series]")) {
      const chart = history.charts.find((one) => one.series === place.dataset.series);
      if (!chart || !history.times.length) continue;
      const axis = {stroke: colour("--soft"), grid: {stroke: colour("--line"), width: 1}, ticks: {stroke: colour("--line")}};
      const options = {
        width: Math.max(place.clientWidth - 12, 200), height: 200, legend: {show: false},
        cursor: {y: false}, scales: {x: {range: () => [history.begin, history.end]}, y: {range: (u, low, high) => [0, Math.max(high, 1e-9) * 1.1]}},
        axes: [axis, {...axis, size: 70}],
        series: [{}, {stroke: colour("--accent"), width: 2, fill: colour("--accent") + "22", spanGaps: false}],
      };
      place.replaceChildren();
      new uPlot(options, [history.times, chart.values], place);
    }
  };

  const whenReady = () => {
    const settled = () => { localize(document); reachable(); };
    settled();
    document.body.addEventListener("htmx:afterSettle", settled);
    window.addEventListener("resize", reachable);
    for (const table of document.querySelectorAll("table[data-stream]")) follow(table);
    for (const all of document.querySelectorAll("input[data-all]")) {
      all.addEventListener("change", () => {
        for (const one of document.getElementsByName(all.dataset.all)) one.checked = all.checked;
      });
    }
    for (const holder of document.querySelectorAll("[data-history]")) draw(holder);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", whenReady);
  else whenReady();
})();
