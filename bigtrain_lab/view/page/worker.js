/* Python in a worker of the page, as it was when the site was built. The page asks for a function of a module, and gets what it
 * returns. The worker's name is that of the lab whose kept results it needs: its address is one for all, as what is kept offline is.
 */

import { load, write } from "./python.mjs";

const plain = fetch, lab = globalThis.name;
globalThis.fetch = async (name) => {  // what Python is made of lies zipped
  const answer = await plain(`${name}.gz`), type = `${name}`.endsWith("wasm") ? "application/wasm" : "text/javascript";
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  const zipped = !answer.headers.get("Content-Encoding");  // some servers have the browser unzip it
  return new Response(zipped ? answer.body.pipeThrough(new DecompressionStream("gzip")) : answer.body, { headers: { "Content-Type": type } });
};

async function start() {
  const snapshot = fetch("snapshot").then((answer) => answer.arrayBuffer());
  const files = ["library", ...(lab ? [`kept/${lab}`] : [])].map((name) => fetch(name).then((answer) => answer.json()));
  const [told, script] = await Promise.all([plain("made.json").then((answer) => answer.json()), fetch("pyodide/pyodide.asm.mjs").then((answer) => answer.blob())]);
  const { default: create } = await import(URL.createObjectURL(script));
  const python = await load(told, create, { _loadSnapshot: snapshot });
  for (const each of files) write(python, await each);
  postMessage({ ready: true });
  return python;
}

const started = start();
onmessage = async ({ data: { module, name, given } }) => {
  try { postMessage({ answer: (await started).pyimport(module)[name](...given) }); } catch (error) { postMessage({ failed: String(error).trim().split("\n").at(-1) }); }
};
