// Enhancements that need a script: times in the browser's zone, messages that open in place, the live tail, charts, the
// key of the search, tables that scroll with the keyboard. Everything else works without a script.
"use strict";
(() => {
  // ISO 8601 with ms in the browser's zone, such as 2026-05-31 14:02:07.250+02:00.
  const pad = (number, digits = 2) => String(number).padStart(digits, "0");
  const isoOf = (at) => {
    const minutes = -at.getTimezoneOffset();
    const zone = minutes === 0 ? "Z"
      : (minutes < 0 ? "-" : "+") + pad(Math.floor(Math.abs(minutes) / 60)) + ":" + pad(Math.abs(minutes) % 60);
    return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:` +
      `${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}${zone}`;
  };
  const localize = (root) => {
    for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
      time.title = time.textContent;
      time.textContent = isoOf(new Date(time.dateTime));
    }
  };

  // Opens a message below its row. Without a script, or with a modifier key, the link leads to the page of the message.
  const openInPlace = async (event) => {
    const link = event.target.closest("a[data-open]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const row = link.closest("tr");
    if (link.getAttribute("aria-expanded") === "true") {
      link.setAttribute("aria-expanded", "false");
      row.nextElementSibling.remove();
      return;
    }
    link.setAttribute("aria-expanded", "true");
    const opened = document.createElement("tr");
    opened.className = "opened";
    const holder = opened.insertCell();
    holder.colSpan = row.cells.length;
    row.after(opened);
    let answer, page;
    try {
      answer = await fetch(link.href);
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      location.href = link.href;
      return;
    }
    const found = page.getElementById("message");
    // Errors, and the servers whose data is missing.
    const notes = page.querySelectorAll("main .note");
    if (!answer.redirected && (found || notes.length)) {
      if (found) found.removeAttribute("id");
      const actions = found && page.querySelector(".actions");
      if (actions) {
        for (const button of actions.querySelectorAll("button")) button.remove();
        const whole = document.createElement("a");
        whole.className = "button";
        whole.href = link.href;
        whole.textContent = page.querySelector("h1").textContent;
        actions.prepend(whole);
      }
      holder.replaceChildren(...[actions, ...notes, found].filter(Boolean).map((one) => document.adoptNode(one)));
      settled();
    } else location.href = link.href;
  };

  // A table that is wider than the page is scrolled with the arrow keys: it has to be reached for that.
  const reachable = () => {
    for (const one of document.querySelectorAll(".scroll")) {
      if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
      else one.removeAttribute("tabindex");
    }
  };

  // A screen reader reads which links open below their row.
  const collapsed = () => {
    for (const link of document.querySelectorAll("a[data-open]:not([aria-expanded])")) {
      link.setAttribute("aria-expanded", "false");
    }
  };

  const settled = () => { localize(document); reachable(); collapsed(); };

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
        cell(row, isoOf(new Date(message.stored_ms)));
        cell(row, `${message.broker} ${message.queue_id}`);
        const link = document.createElement("a");
        link.href = "/message?" + new URLSearchParams(
          {topic: message.topic, broker: message.broker, queue: message.queue_id, offset: message.offset});
        link.textContent = message.offset;
        cell(row, "", "n").append(link);
        cell(row, message.tags, "name");
        cell(row, message.keys.join(" "), "name");
        cell(row, message.start, "text");
        table.tBodies[0].prepend(row);
      }
      while (table.rows.length > MAX_ROWS) table.deleteRow(-1);
      leftOut += round.left_out;
      if (round.problem) state.textContent = visible(round.problem);
      else if (leftOut) state.textContent = state.dataset.leftOut.replace("{count}", leftOut.toLocaleString());
      else if (round.rows.length) state.textContent = state.dataset.following;
    };
    // Without this the browser would begin again where the server has ended it.
    stream.addEventListener("over", () => { stream.close(); state.textContent = state.dataset.over; });
  };

  // The time of day, or the date at midnight.
  const clockOf = (seconds) => {
    const at = new Date(seconds * 1000);
    if (at.getHours() || at.getMinutes()) return `${pad(at.getHours())}:${pad(at.getMinutes())}`;
    return `${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  };

  // The points come with a separate request, because a reload of the page does not need them.
  const draw = async (holder) => {
    const answer = await fetch(holder.dataset.history);
    if (!answer.ok) return;
    const history = await answer.json();
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    for (const place of document.querySelectorAll("[data-series]")) {
      const chart = history.charts.find((one) => one.series === place.dataset.series);
      if (!chart || !history.times.length) continue;
      const axis = {stroke: colour("--soft"), grid: {stroke: colour("--line"), width: 1}, ticks: {stroke: colour("--line")}};
      const isRatio = chart.series.endsWith("disk");
      const options = {
        width: Math.max(place.clientWidth - 16, 160), height: place.clientHeight - 16, legend: {show: false},
        cursor: {y: false}, scales: {x: {range: () => [history.begin, history.end]}, y: {range: (u, low, high) => [0, isRatio ? 1 : Math.max(high, 1) * 1.1]}},
        axes: [
          {...axis, size: 28, values: (u, ticks) => ticks.map(clockOf)},
          {...axis, size: 56, values: (u, ticks) => ticks.map((one) => isRatio ? `${Math.round(one * 100)}%` : one.toLocaleString())},
        ],
        series: [{}, {stroke: colour("--accent"), width: 2, fill: colour("--accent") + "22", spanGaps: false}],
      };
      place.replaceChildren();
      new uPlot(options, [history.times, chart.values], place);
    }
  };

  const whenReady = () => {
    settled();
    document.body.addEventListener("click", openInPlace);
    document.addEventListener("keydown", (event) => {
      const isTyping = event.target.closest("input, select, textarea, [contenteditable]");
      const find = document.querySelector(".find input");
      if (event.key !== "/" || !find || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      find.focus();
      find.select();
    });
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
