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
gc.collect()
`);
fs.writeFileSync("snapshot", python.makeMemorySnapshot());
