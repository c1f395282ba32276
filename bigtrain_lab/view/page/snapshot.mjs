/* Writes the memory of Python once all is imported that a page asks for: node runs this when a site is built. */

import fs from "node:fs";
import create from "./pyodide/pyodide.asm.mjs";
import { load, write } from "./python.mjs";

process.on("uncaughtException", ({ message }) => { process.exitCode = 1; console.error(message); });  // without its line, which has 1 MB

const read = (name) => JSON.parse(fs.readFileSync(name));
const python = await load(read("made.json"), create, { _makeSnapshot: true });
write(python, read("files.json"));
const loaded = python.runPython(`
import gc, json, linecache, re, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "/library")
import warnings
warnings.simplefilter("ignore")  # of exercises that need torch
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.grading import in_page
from bigtrain_lab.view import live
for name in Experiment.all():  # what a first prediction imports
    live.answered(name, "{}")
for name in in_page.EXERCISES:
    in_page.Topic.named(name)
sys.path_importer_cache.clear()
linecache.clearcache()
re.purge()
gc.collect()
json.dumps([*sys.modules])
`);
fs.writeFileSync("loaded.json", loaded);

// What was freed still has its bytes. Zeros zip to nothing: fill all memory that is free, without growing it.
const { _malloc, _free, HEAPU8 } = python._module, held = [];
WebAssembly.Memory.prototype.grow = () => { throw new RangeError("No more memory is wanted."); };
for (let size = 1 << 22; size >= 32; size >>= 1)
  for (let at; (at = _malloc(size)); held.push(at)) HEAPU8.fill(0, at, at + size);
held.forEach((at) => _free(at));
fs.writeFileSync("snapshot", python.makeMemorySnapshot());
