// Asks the site's own search, as a page does, without a browser or a network: node search_worker.js SITE WORD...
// Writes a line of JSON for each word: the pages that were found, the best first.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, ...words] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const file = fs.readdirSync(workers).find((name) => name.endsWith(".js"));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));

const handlers = [];
let answer;
const worker = {
  console,
  addEventListener: (type, handler) => type === "message" && handlers.push(handler),
  postMessage: (message) => (answer = message),
  fetch: (address) => {
    throw new Error(`the search asks ${address}`);
  },
  importScripts: (...scripts) => {
    throw new Error(`the search loads ${scripts}`);
  },
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(workers, file), "utf8"), worker);

const tell = async (message) => {
  for (const handler of handlers) await handler({ data: message });
};

(async () => {
  await tell({ type: 0, data: { ...index, options: { suggest: false } } });
  for (const word of words) {
    await tell({ type: 2, data: word });
    console.log(JSON.stringify(answer.data.items.map((page) => page[0].location.split("#")[0])));
  }
})();
