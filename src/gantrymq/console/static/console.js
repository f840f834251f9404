// What a page can't do without a script: times in the browser's zone. The rest is htmx, or works without.
"use strict";
(() => {
  const format = new Intl.DateTimeFormat(document.documentElement.lang, {dateStyle: "short", timeStyle: "medium"});
  const localize = (root) => {
    for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
      time.title = time.textContent;
      time.textContent = format.format(new Date(time.dateTime));
    }
  };
  const whenReady = () => {
    localize(document);
    document.body.addEventListener("htmx:afterSettle", () => localize(document));
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", whenReady);
  else whenReady();
})();
