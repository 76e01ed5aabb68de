/**
 * The strip: a thumbnail for each chunk, grouped into runs of one prompt, with a mark where a change took effect.
 * Knows chunks and controls, nothing of sockets. Keeps the last 120 chunks; older ones leave with their marks.
 */

import * as strings from "./strings.js";

const MAX_CHUNKS = 120;
const MAX_PENDING = 16; // more changes than that on their way: the oldest is not shown any more
const THUMBNAIL_HEIGHT = 56;

export class Timeline {
  #cells = new Map(); // chunk index → its element, oldest first
  #lastRun = null;
  #pending = new Map(); // control id → its element
  #current = null;

  constructor({ runs, pending, empty }) {
    Object.assign(this, { runs, pending, empty });
  }

  /** A chunk has come. `marks` are the names of the controls that first show in it. */
  add(header, marks) {
    this.empty.hidden = true;
    const follows = this.#isAtEnd();
    const cell = makeCell(header, marks);
    this.#runOf(header).querySelector("ol").append(cell);
    this.#cells.set(header.index, cell);
    if (this.#cells.size > MAX_CHUNKS) this.#dropOldest();
    if (follows) this.runs.scrollLeft = this.runs.scrollWidth;
  }

  picture(index, image) {
    const canvas = this.#cells.get(index)?.querySelector("canvas");
    if (!canvas) return;
    const [width, height] = [image.videoWidth ?? image.width, image.videoHeight ?? image.height];
    canvas.height = THUMBNAIL_HEIGHT * 2;
    canvas.width = Math.round((canvas.height * width) / height);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  }

  /** The chunk that is on the screen now. */
  show(index) {
    this.#current?.removeAttribute("aria-current");
    this.#current = this.#cells.get(index) ?? null;
    this.#current?.setAttribute("aria-current", "true");
  }

  queue(id, name, chunk) {
    const item = this.#pending.get(id) ?? document.createElement("li");
    item.textContent = chunk === null ? `${name} · sent` : `${name} · queued for ${chunk}`;
    this.#pending.set(id, item);
    this.pending.append(item);
    if (this.#pending.size > MAX_PENDING) this.settle(this.#pending.keys().next().value);
  }

  /** A change is not on its way any more: it shows, or was refused. */
  settle(id) {
    this.#pending.get(id)?.remove();
    this.#pending.delete(id);
  }

  clear() {
    this.#cells.clear();
    this.#pending.clear();
    this.#lastRun = this.#current = null;
    this.runs.replaceChildren();
    this.pending.replaceChildren();
    this.empty.hidden = false;
  }

  #runOf(header) {
    const name = strings.mix(header.prompts);
    const last = this.#lastRun;
    if (last?.isConnected && last.dataset.name === name && last.dataset.epoch === String(header.epoch)) return last;
    const run = document.createElement("li");
    run.className = "run";
    Object.assign(run.dataset, { name, epoch: header.epoch });
    run.style.setProperty("--hue", hueOf(name));
    const [label, text] = [document.createElement("p"), document.createElement("span")];
    text.textContent = label.title = name;
    label.append(text);
    run.append(label, document.createElement("ol"));
    this.runs.append(run);
    return (this.#lastRun = run);
  }

  #dropOldest() {
    const [index, cell] = this.#cells.entries().next().value;
    const run = cell.closest(".run");
    cell.remove();
    this.#cells.delete(index);
    if (!run.querySelector("ol").children.length) run.remove();
  }

  #isAtEnd() {
    return this.runs.scrollLeft + this.runs.clientWidth > this.runs.scrollWidth - 80;
  }
}

function makeCell(header, marks) {
  const cell = document.createElement("li");
  cell.className = "cell";
  const canvas = document.createElement("canvas");
  canvas.height = THUMBNAIL_HEIGHT;
  canvas.width = THUMBNAIL_HEIGHT;
  canvas.setAttribute("aria-hidden", "true");
  const number = document.createElement("span");
  number.textContent = header.index;
  cell.append(canvas, number);
  const applied = marks.map((name) => strings.applied(name, header.index)).join("; ");
  if (applied) {
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = marks.join(", ");
    mark.title = applied;
    cell.append(mark);
  }
  const late = header.late_s > 0.05 ? `, ${header.late_s.toFixed(1)} s late` : "";
  cell.classList.toggle("late", Boolean(late));
  cell.title = `Chunk ${header.index} at ${strings.clock(header.media_s)}, ${Math.round(header.total_ms)} ms${late}`;
  cell.setAttribute("aria-label", applied ? `${cell.title}. ${applied}` : cell.title);
  return cell;
}

/** The same text has the same colour, in every tab. */
function hueOf(text) {
  let hash = 7;
  for (const letter of text) hash = (hash * 31 + letter.codePointAt(0)) % 3600;
  return hash / 10;
}
