// SPDX-License-Identifier: Apache-2.0
// open_trace.mjs WEB TRACE CHROMIUM [PICTURE]
// Opens TRACE in the Perfetto page whose files lie in WEB, with the browser CHROMIUM, and prints as
// JSON what the page understood of it. Nothing but 127.0.0.1 is asked for anything.
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { chromium } from "playwright-core";

const [web, trace, executablePath, picture] = process.argv.slice(2);
const TIMEOUT_MS = 300_000; // for what hangs: a busy machine may take any time
const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".wasm": "application/wasm",
  ".json": "application/json",
};
const QUESTION = `select
  (select count(*) from slice) slices,
  (select count(*) from counter) counters,
  (select count(*) from flow) flows,
  (select ifnull(group_concat(name), '') from stats
   where severity in ('error', 'data_loss') and value > 0) errors`;

function answer(request, response) {
  const asked = decodeURIComponent(request.url.split("?")[0]);
  const file = asked === "/trace" ? trace : path.join(web, asked === "/" ? "index.html" : asked);
  if (!fs.existsSync(file) || !fs.statSync(file).isFile()) {
    response.writeHead(404).end();
    return;
  }
  const type = TYPES[path.extname(file)] ?? "application/octet-stream";
  response.writeHead(200, { "content-type": type });
  fs.createReadStream(file).pipe(response);
}

// Runs in the page: the trace processor's answer to one row of SQL.
async function ask(sql) {
  const result = await globalThis.app.trace.engine.query(sql);
  const row = result.iter({});
  return Object.fromEntries(result.columns().map((name) => [name, String(row.get(name))]));
}

async function open(page, address) {
  await page.route(
    (url) => url.hostname !== "127.0.0.1",
    (route) => route.abort(),
  );
  await page.goto(`${address}/#!/?url=${address}/trace`);
  const isOpen = () => globalThis.app?.trace?.engine && !globalThis.app.isLoadingTrace;
  await page.waitForFunction(isOpen);
  await page.locator(".pf-track").first().waitFor();
  const understood = await page.evaluate(ask, QUESTION);
  const dialogs = await page.locator(".pf-modal-dialog").allInnerTexts();
  return { ...understood, tracks: await page.locator(".pf-track").count(), dialogs };
}

const server = http.createServer(answer);
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
// A container's root has no sandbox of its own to give.
const browser = await chromium.launch({
  executablePath,
  chromiumSandbox: process.getuid() !== 0,
  timeout: TIMEOUT_MS,
});
try {
  const page = await browser.newPage({ viewport: { width: 1600, height: 900 } });
  page.setDefaultTimeout(TIMEOUT_MS);
  const found = await open(page, `http://127.0.0.1:${server.address().port}`);
  if (picture) {
    await page.screenshot({ path: picture });
  }
  console.log(JSON.stringify(found));
} finally {
  await browser.close();
  server.close();
}
