/* Python in a worker of the page: the library's own files, and the dry runs that were kept for its labs. */

import { loadPyodide } from "./pyodide/pyodide.mjs";

async function start() {
  const { env, archives } = await (await fetch("made.json")).json();
  const fetched = archives.map(([name]) => fetch(name).then((answer) => answer.arrayBuffer()));
  const python = await loadPyodide({ env });
  for (const [at, [, extractDir]] of archives.entries()) python.unpackArchive(await fetched[at], archives[at][0].endsWith("xz") ? "xztar" : "zip", { extractDir });
  python.runPython("import sys; sys.path.insert(0, '/library')");
  const { answered } = python.pyimport("bigtrain_lab.view.live");
  postMessage({ ready: true });
  return answered;
}

const started = start();
onmessage = async ({ data: { lab, changed } }) => {
  try { postMessage({ answer: (await started)(lab, changed) }); } catch (error) { postMessage({ failed: String(error).trim().split("\n").at(-1) }); }
};
