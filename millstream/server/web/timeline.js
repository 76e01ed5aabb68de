/**
 * The strip: a thumbnail for each chunk, grouped into runs of one prompt, with a mark where a change took effect.
 * Knows chunks and controls, nothing of sockets. There is a strip for each branch, one of them is shown; a branch's begins with
 * its parent's chunks. Keeps the last 120 chunks of each; older ones leave with their marks. A click on a chunk shows that
 * moment; from there one may go on.
 */

import * as strings from "./strings.js";

const MAX_CHUNKS = 120;
const MAX_PENDING = 16; // more changes than that on their way: the oldest is not shown any more
const THUMBNAIL_HEIGHT = 56;

export class Timeline {
  #strips = new Map(); // session → its chunks: index → {session, header, marks, canvas}, oldest first
  #shown = null; // the session whose strip it is
  #cells = new Map(); // of that: chunk index → its element
  #lastRun = null;
  #pending = new Map(); // control id → its element
  #current = null;
  #looking = null; // the chunk whose moment is shown

  /** `onFrom` is called with the chunk that a person wants to go on from, and the session that made it. */
  constructor(elements, onFrom) {
    Object.assign(this, { ...elements, onFrom });
    this.runs.addEventListener("keydown", (event) => this.#walk(event));
    this.moment.addEventListener("keydown", (event) => event.key === "Escape" && this.#lookAway());
    this.momentClose.addEventListener("click", () => this.#lookAway());
    this.momentFork.addEventListener("click", () => {
      const { header, session } = this.#looking;
      this.#lookAway();
      this.onFrom(header.index, session);
    });
  }

  /** This session's strip is seen from now on. */
  open(session) {
    if (session === this.#shown) return;
    this.#wipe();
    this.#shown = session;
    for (const chunk of this.#strip(session).values()) this.#append(chunk);
  }

  /** A branch: until its first chunk it is its parent. */
  branch(parent, session, first) {
    this.#strips.set(session, new Map([...this.#strip(parent)].filter(([index]) => index < first)));
  }

  /** Of these sessions; the others have ended. */
  keepOnly(sessions) {
    for (const session of [...this.#strips.keys()]) if (!sessions.includes(session)) this.#strips.delete(session);
  }

  /**
   * A chunk of a session has come. `marks` are the names of the controls that first show in it. One that was there is passed
   * over; where another had its number, the session has gone back and later ones are not part of it any more.
   */
  add(session, header, marks) {
    const strip = this.#strip(session);
    if (strip.get(header.index)?.header.media_s === header.media_s) return;
    if (header.index <= ([...strip.keys()].at(-1) ?? -1)) this.#dropFrom(session, header.index);
    const chunk = { session, header, marks, canvas: makeCanvas() };
    strip.set(header.index, chunk);
    if (strip.size > MAX_CHUNKS) this.#drop(session, strip.keys().next().value);
    if (session === this.#shown) this.#append(chunk);
  }

  picture(session, index, image) {
    const canvas = this.#strip(session).get(index)?.canvas;
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
    this.#strips.clear();
    this.#shown = null;
    this.#wipe();
  }

  /** One stop for Tab; from there the arrow keys go from chunk to chunk, beginning with the newest. */
  #walk(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...this.runs.querySelectorAll(".from")];
    const place = buttons.indexOf(document.activeElement);
    buttons.at(place < 0 ? -1 : Math.min(Math.max(place + step, 0), buttons.length - 1))?.focus();
  }

  #strip(session) {
    if (!this.#strips.has(session)) this.#strips.set(session, new Map());
    return this.#strips.get(session);
  }

  #append(chunk) {
    this.empty.hidden = true;
    const follows = this.#isAtEnd();
    const cell = makeCell(chunk, () => this.#look(chunk));
    this.#runOf(chunk.header).querySelector("ol").append(cell);
    this.#cells.set(chunk.header.index, cell);
    if (follows) this.runs.scrollLeft = this.runs.scrollWidth;
  }

  #look(chunk) {
    this.#looking = chunk;
    this.momentWords.textContent = strings.moment(chunk.header);
    const { momentPicture: picture } = this;
    [picture.width, picture.height] = [chunk.canvas.width, chunk.canvas.height];
    picture.getContext("2d").drawImage(chunk.canvas, 0, 0);
    this.moment.hidden = false;
    this.momentFork.focus();
  }

  /** Back to the strip, and to the chunk in it. */
  #lookAway() {
    const cell = this.#cells.get(this.#looking?.header.index);
    this.#looking = null;
    this.moment.hidden = true;
    cell?.querySelector(".from").focus();
  }

  #dropFrom(session, index) {
    for (const each of [...this.#strip(session).keys()].reverse()) if (each >= index) this.#drop(session, each);
    if (session !== this.#shown) return;
    for (const id of [...this.#pending.keys()]) this.settle(id);
    this.#lastRun = this.runs.lastElementChild;
  }

  #wipe() {
    this.#looking = null;
    this.moment.hidden = true;
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

  #drop(session, index) {
    this.#strip(session).delete(index);
    const cell = session === this.#shown ? this.#cells.get(index) : null;
    if (!cell) return;
    const run = cell.closest(".run");
    cell.remove();
    this.#cells.delete(index);
    if (!run.querySelector("ol").children.length) run.remove();
  }

  #isAtEnd() {
    return this.runs.scrollLeft + this.runs.clientWidth > this.runs.scrollWidth - 80;
  }
}

function makeCanvas() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [THUMBNAIL_HEIGHT, THUMBNAIL_HEIGHT];
  canvas.setAttribute("aria-hidden", "true");
  return canvas;
}

function makeCell({ header, marks, canvas }, onLook) {
  const cell = document.createElement("li");
  cell.className = "cell";
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
  const from = document.createElement("button");
  from.type = "button";
  from.className = "from";
  from.tabIndex = -1;
  from.title = strings.lookAt(header.index);
  from.setAttribute("aria-label", from.title);
  from.addEventListener("click", onLook);
  cell.append(from);
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
