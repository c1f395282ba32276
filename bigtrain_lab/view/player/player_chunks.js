/* The chunks of a collective at the playhead: a row a rank, a column a chunk, in each cell a slot for every rank, filled once that
 * rank's gradient is in the sum. What is on its way moves from its sender's row to its receiver's: + it will be added, = it replaces.
 */

const CHUNK_HEAD = 38, CHUNK_ROWS = [[2, 26], [4, 22], [8, 17]];

function readChunks(raw) {
  if (!raw) return null;
  const cells = raw.start.map((row) => row.map((mask) => [[-1, mask]]));
  for (const [tick, rank, chunk, mask] of raw.changes) cells[rank][chunk].push([tick, mask]);
  const moves = raw.moves.map(([src, dst, chunk, adds, start, end, mask]) => ({ src, dst, chunk, adds, start, end, mask }));
  const whole = raw.start[0].map((_, chunk) => raw.start.reduce((all, row) => all | row[chunk], 0));
  return { cells, moves, whole, rounds: raw.rounds, ranks: cells.length, count: whole.length };
}

function chunksLayout(chunks, top, width) {
  const row = pick(chunks.ranks, CHUNK_ROWS, 16), gap = chunks.ranks > 4 ? 4 : 7, column = Math.min(300, (width - LEFT - RIGHT) / chunks.count);
  return { top, row, gap, column, cell: column - Math.min(14, column / 6), height: CHUNK_HEAD + chunks.ranks * (row + gap),
    x: (chunk) => LEFT + chunk * column, y: (rank) => top + CHUNK_HEAD + rank * (row + gap) };
}

const cellAt = ({ chunks, end }, rank, chunk, t) => levelAt(chunks.cells[rank][chunk], t >= end ? Infinity : t)[1];

/** How many of all cells hold the whole sum, in words. */
function wholeText(scene, t) {
  const { chunks } = scene;
  let whole = 0;
  chunks.cells.forEach((row, rank) => row.forEach((_, chunk) => { whole += cellAt(scene, rank, chunk, t) === chunks.whole[chunk]; }));
  return `${whole} of ${chunks.ranks * chunks.count} chunks hold the whole sum`;
}

function roundText(scene, t) {
  return t >= scene.end ? (scene.unfinished ? `No more has happened${failedText(scene, ": ")}.` : "The last round is done.") : levelAt(scene.chunks.rounds, t)?.[1] ?? "Each rank has its own gradient.";
}

/** The slots that are filled: of a chunk on its way they fall into the empty ones of its receiver's. */
function paintSlots(c, v, x, y, mask) {
  const { theme, look, layout: { chunks: K }, scene: { chunks } } = v, slot = K.cell / chunks.ranks;
  c.font = `${Math.min(11, Math.floor(slot))}px ${theme.font}`; c.textAlign = "center"; c.textBaseline = "middle";
  for (let rank = 0; rank < chunks.ranks; rank++) if (mask >> rank & 1) {
    const [fill, ink] = look.versions[rank];
    c.fillStyle = fill; c.fillRect(x + rank * slot, y, slot, K.row);
    if (slot >= 8) { c.fillStyle = ink; c.fillText(rank, x + (rank + 0.5) * slot, y + K.row / 2 + 0.5); }
  }
}

function frameCell(c, K, x, y, colour, width) {
  c.strokeStyle = colour; c.lineWidth = width; c.strokeRect(x, y, K.cell, K.row);
}

function paintChunks(c, v) {
  const { scene, theme, layout: { chunks: K, width } } = v, { chunks } = scene;
  c.textBaseline = "alphabetic"; c.font = `bold 12px ${theme.font}`; c.fillStyle = theme.ink; c.textAlign = "left";
  c.fillText(spoken(roundText(scene, v.t)), LEFT, K.top + 13, width - LEFT - RIGHT);
  c.font = `11px ${theme.font}`; c.fillStyle = theme.soft; c.textAlign = "right"; c.fillText(spoken("chunk"), LEFT - 8, K.top + 33);
  for (let chunk = 0; chunk < chunks.count && K.column > 16; chunk++) { c.textAlign = "center"; c.fillText(chunk, K.x(chunk) + K.cell / 2, K.top + 33); }
  for (let rank = 0; rank < chunks.ranks; rank++) {
    c.font = `11px ${theme.font}`; c.textAlign = "right"; c.textBaseline = "middle"; c.fillStyle = nameColour(v, rank);
    c.fillText(`rank ${rank}`, LEFT - 8, K.y(rank) + K.row / 2);
    for (let chunk = 0; chunk < chunks.count; chunk++) {
      const mask = cellAt(scene, rank, chunk, v.t);
      const whole = mask === chunks.whole[chunk];
      paintSlots(c, v, K.x(chunk), K.y(rank), mask);
      frameCell(c, K, K.x(chunk), K.y(rank), whole ? theme.ink : theme.rule, whole ? 2 : 1);
    }
  }
  for (const m of chunks.moves) if (m.start <= v.t && v.t < m.end) {
    const part = (v.t - m.start) / (m.end - m.start), x = K.x(m.chunk), y = K.y(m.src) + (K.y(m.dst) - K.y(m.src)) * part;
    c.fillStyle = theme.bg; c.fillRect(x, y, K.cell, K.row);  // what it passes over does not seem to be its own
    paintSlots(c, v, x, y, m.mask);
    frameCell(c, K, x, y, theme.accent, 2);
    c.fillStyle = theme.accent; c.beginPath(); c.arc(x, y + K.row / 2, 7, 0, 7); c.fill();
    c.fillStyle = theme.bg; c.font = `bold 12px ${theme.font}`; c.fillText(m.adds ? "+" : "=", x, y + K.row / 2 + 0.5);
  }
}
