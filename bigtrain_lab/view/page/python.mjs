/* Python with pydantic's core, started in one way when the site is built and in a browser: what lies where in its memory is then
 * the same, and the memory of one fits the other. `create` is Pyodide's own maker of its module; `more`: what loadPyodide is also told.
 */

import { loadPyodide } from "./pyodide/pyodide.mjs";

export async function load({ env, lock, core }, create, more) {
  let at, own;  // how this browser calls functions of other types: another one than that of a snapshot
  const python = await loadPyodide({
    env, lockFileContents: lock, ...more,
    async createPyodideModule(settings) {
      const found = settings.locateFile;
      Object.assign(settings, { dynamicLibraries: [core], locateFile: (name) => found(name === core ? "core.so" : name) });
      const module = await create(settings);
      at = (module.__PyRuntime + module.HEAP32[module.__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET / 4]) / 4;
      own = module.HEAP32[at];
      if (settings.INITIAL_MEMORY) module.growMemory(settings.INITIAL_MEMORY);  // of a snapshot
      return module;
    },
  });
  python._module.HEAP32[at] = own;
  return python;
}

export function write(python, files) {
  for (const [path, text] of Object.entries(files)) {
    python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
    python.FS.writeFile(path, bytes);
  }
}
