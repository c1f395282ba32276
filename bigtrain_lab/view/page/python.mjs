/* Python with pydantic's core, started in one way when the site is built and in a browser: what lies where in its memory is then
 * the same, and the memory of one fits the other. `create` is Pyodide's own maker of its module; `more`: what loadPyodide is also told.
 */

import { loadPyodide } from "./pyodide/pyodide.mjs";

export function load({ env, lock, core }, create, more) {
  return loadPyodide({
    env, lockFileContents: lock, ...more,
    async createPyodideModule(settings) {
      const found = settings.locateFile;
      Object.assign(settings, { dynamicLibraries: [core], locateFile: (name) => found(name === core ? "core.so" : name) });
      const module = await create(settings);
      if (settings.INITIAL_MEMORY) module.growMemory(settings.INITIAL_MEMORY);  // of a snapshot
      return module;
    },
  });
}

export function write(python, files) {
  for (const [path, text] of Object.entries(files)) {
    python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    python.FS.writeFile(path, Uint8Array.from(text, (letter) => letter.charCodeAt(0)));
  }
}
