/* Writes the memory of Python once all is imported that a page asks for: node runs this when a site is built. */

import fs from "node:fs";
import create from "./pyodide/pyodide.asm.mjs";
import { load, write } from "./python.mjs";

process.on("uncaughtException", ({ message }) => { process.exitCode = 1; console.error(message); });  // without its line, which has 1 MB

const read = (name) => JSON.parse(fs.readFileSync(name));
const python = await load(read("made.json"), create, { _makeSnapshot: true });
write(python, read("files.json"));
python.runPython(`
import gc, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "/library")
import bigtrain_lab.view.live
sys.path_importer_cache.clear()
gc.collect()
`);
fs.writeFileSync("snapshot", python.makeMemorySnapshot());
