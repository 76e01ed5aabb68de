/**
 * Branches of the stream: the tree they form, one of them playing beside the picture, and a click to steer, keep or end it.
 * Two play at a time, the one that is steered and the one beside it; the others stand still where they are until they are
 * looked at. Knows the protocol's words for it and the list of branches; the picture that is steered is the stage's.
 */

import { splitParts } from "./packet.js";
import { StillsPlayer } from "./stills.js";
import { Stream } from "./stream.js";
import * as strings from "./strings.js";

const STILLS = ["jpeg", "webp"];
const LOOK_EVERY_MS = 1000;
const THUMBNAIL_HEIGHT = 40;

export class Branches {
  #names = new Map(); // session → the letter it is called by
  #thumbnails = new Map(); // session → its canvas
  #rows = new Map(); // session → its line in the tree
  #nodes = [];
  #beside = null; // {session, stream, player}
  #timer = 0;
  #looking = null; // which of its looks counts

  /**
   * `picture` is the canvas of the stage, `timeline` has a strip for each branch; `onSteer` makes another branch the one that is
   * steered, and is told its prompt.
   */
  constructor(elements, stream, { toast, picture, timeline, onSteer }) {
    Object.assign(this, { ...elements, main: stream, toast, picture, timeline, onSteer });
    this.fork.addEventListener("click", () => this.forkAt(null));
    this.steer.addEventListener("click", () => this.#swap());
    this.keep.addEventListener("click", () => this.#keepBeside());
    this.end.addEventListener("click", () => this.#endBeside());
    stream.addEventListener("forked", ({ detail }) => this.#forked(this.main.live.session, detail));
    stream.addEventListener("phase", ({ detail: { phase } }) => phase === "ended" && setTimeout(() => this.#takeOver()));
  }

  /** A branch from before a chunk that the server keeps, or from now. What a branch was before it was one is its parent's. */
  async forkAt(chunk, session = this.main.live?.session) {
    const at = chunk === null ? {} : { at_chunk: chunk };
    if (session === this.main.live?.session) {
      this.main.ask({ type: "fork", ...at });
      return;
    }
    const isLive = this.#nodes.some((node) => node.session === session);
    const ask = { method: "POST", body: JSON.stringify(at) };
    const answer = isLive ? await this.#fetch(`/v1/sessions/${session}/forks`, ask) : this.toast(strings.branchGone(chunk));
    if (answer?.ok) this.#forked(session, await answer.json());
  }

  /** Another stream begins: the branches of this one end. */
  async clear() {
    const others = this.#others();
    clearTimeout(this.#timer);
    this.#looking = null;
    this.#putAway();
    this.#show([]);
    this.#names.clear();
    await Promise.all(others.map(({ session }) => this.#fetch(`/v1/sessions/${session}`, { method: "DELETE" })));
  }

  #others() {
    return this.#nodes.filter(({ session }) => session !== this.main.live?.session);
  }

  async #forked(parent, { session, chunk, from_chunk }) {
    const [, name] = [parent, session].map((each) => this.#name(each)); // before either is steered or ends
    this.timeline.branch(parent, session, from_chunk);
    this.#draw(session, this.picture); // all there is of it until it makes a chunk; one that is paused makes none
    this.#playBeside(session);
    await this.look();
    this.toast(strings.forked(name, chunk));
  }

  /** What branches there are by now. A page that was loaded again knows of none before it looks. */
  async look() {
    clearTimeout(this.#timer);
    const looking = (this.#looking = {});
    const session = (this.main.phase === "ended" ? this.#nodes[0] : this.main.live)?.session;
    const answer = session ? await this.#fetch(`/v1/sessions/${session}/branches`) : null;
    const nodes = answer?.ok ? (await answer.json()).branches : null;
    if (looking !== this.#looking) return; // another look is under way, or another stream
    if (nodes) this.#show(nodes);
    if (!this.tree.hidden) this.#timer = setTimeout(() => this.look(), LOOK_EVERY_MS);
  }

  #playBeside(session) {
    this.#putAway();
    const known = this.#thumbnail(session);
    [this.canvas.width, this.canvas.height] = [known.width, known.height];
    this.canvas.getContext("2d", { alpha: false }).drawImage(known, 0, 0);
    const stream = new Stream(this.main.url);
    stream.key = this.main.key;
    this.#beside = { session, stream, player: null };
    this.frame.hidden = false;
    this.stage.toggleAttribute("data-beside", true);
    stream.addEventListener("live", ({ detail: { config } }) => this.#prepare(stream, config));
    stream.addEventListener("packet", ({ detail: { header, payload } }) => {
      if (header.type !== "chunk" || this.#beside?.stream !== stream) return;
      stream.arrived(header);
      this.timeline.add(session, header, []);
      this.#beside.player?.push(header, splitParts(header, payload));
    });
    stream.addEventListener("phase", ({ detail }) => {
      if (["ended", "refused"].includes(detail.phase)) this.#lost(stream);
      else if (this.#beside?.stream === stream) this.label.textContent = strings.besideName(this.#name(session), detail.phase);
    });
    stream.open({ type: "attach", session, formats: STILLS });
  }

  #prepare(stream, { fps, lead_s }) {
    if (this.#beside?.stream !== stream) return;
    const { session } = this.#beside;
    this.#beside.player?.close();
    this.#beside.player = new StillsPlayer(this.canvas, {
      lead_s,
      fps,
      onFrame: () => {},
      onChunk: ({ prompts }) => this.#describe(session, prompts),
      onThumbnail: (header, image) => {
        this.#draw(session, image);
        this.timeline.picture(session, header.index, image);
      },
    });
  }

  #describe(session, prompts) {
    this.canvas.setAttribute("aria-label", `${strings.branch(this.#name(session))}: ${strings.mix(prompts)}`);
  }

  /** The branch beside has gone, by itself or because another was kept. */
  #lost(stream) {
    if (this.#beside?.stream !== stream) return;
    this.#putAway();
    this.look();
  }

  /** Nothing plays beside any more; its session stands still. */
  #putAway() {
    this.#beside?.player?.close();
    this.#beside?.stream.leave();
    this.#beside = null;
    this.frame.hidden = true;
    this.stage.removeAttribute("data-beside");
  }

  #swap() {
    const [before, after] = [this.main.live?.session, this.#beside?.session];
    if (!before || !after) return;
    this.#putAway();
    this.#steer(after);
    this.#playBeside(before);
  }

  #keepBeside() {
    const { session } = this.#beside;
    this.#swap();
    const said = strings.kept(this.#name(session));
    this.main.addEventListener("live", () => this.main.ask({ type: "keep" }), { once: true });
    this.main.addEventListener("kept", () => this.toast(said), { once: true }); // after what an attach is told again
  }

  async #endBeside() {
    const { session } = this.#beside;
    await this.#fetch(`/v1/sessions/${session}`, { method: "DELETE" });
  }

  /** The stream that was steered has ended, its branches have not: the one beside is steered now. */
  #takeOver() {
    if (!this.#beside) {
      this.#show(this.#others());
      return;
    }
    const { session } = this.#beside;
    this.#putAway();
    this.#steer(session);
  }

  #steer(session) {
    this.onSteer(session, this.#nodes.find((node) => node.session === session)?.prompt ?? "");
  }

  /** One that was kept still stands there: its path is all that is left of the others. */
  #show(nodes) {
    this.#nodes = nodes;
    this.#forget();
    if (nodes.length) this.timeline.keepOnly([...nodes.map(({ session }) => session), this.#beside?.session]);
    this.tree.hidden = nodes.length < 2 && !(nodes.length && this.#names.size > 1);
    const last = Math.max(1, ...nodes.map(({ chunk, chunk_index }) => Math.max(chunk ?? 0, chunk_index ?? 0)));
    const rows = this.tree.hidden ? [] : nodes.map((node) => this.#row(node, last));
    const isSame = rows.length === this.list.children.length && rows.every((row, i) => row === this.list.children[i]);
    if (!isSame) this.list.replaceChildren(...rows); // rows that stay where they are keep the focus
  }

  /** Pictures of those that have gone; their names are not given again. */
  #forget() {
    const there = new Set([...this.#nodes.map(({ session }) => session), this.#beside?.session]);
    for (const kept of [this.#rows, this.#thumbnails])
      for (const session of kept.keys()) if (!there.has(session)) kept.delete(session);
  }

  /** A line from the chunk where it was forked to the one it has come to, and its picture. */
  #row({ session, parent, chunk, chunk_index, prompt }, last) {
    const row = this.#rows.get(session) ?? this.#newRow(session);
    const begin = chunk ?? 0;
    const [steered, beside] = [session === this.main.live?.session, session === this.#beside?.session];
    row.style.setProperty("--begin", begin / last);
    row.style.setProperty("--length", Math.max(0, (chunk_index ?? begin) - begin) / last);
    row.toggleAttribute("data-steered", steered);
    const look = row.firstElementChild;
    look.setAttribute("aria-pressed", steered || beside);
    look.lastElementChild.textContent = strings.node(this.#name(session), { steered, beside, prompt });
    look.title = parent ? strings.forkedFrom(this.#name(parent), chunk) : strings.firstBranch();
    if (steered) this.#draw(session, this.picture);
    return row;
  }

  #newRow(session) {
    const [row, look, text] = ["li", "button", "span"].map((tag) => document.createElement(tag));
    look.type = "button";
    look.className = "branch";
    look.append(this.#thumbnail(session), text);
    look.addEventListener("click", () => this.#lookAt(session));
    row.append(look, this.#pathLink(session));
    this.#rows.set(session, row);
    return row;
  }

  #lookAt(session) {
    if ([this.main.live?.session, this.#beside?.session].includes(session)) return;
    this.#playBeside(session);
    this.look();
  }

  /** All that led here, as a journal: `millstream replay` makes the film of it. */
  #pathLink(session) {
    const link = document.createElement("button");
    link.type = "button";
    link.className = "quiet path";
    link.textContent = "Save path";
    link.title = strings.pathHint();
    link.setAttribute("aria-label", `Download the path of ${strings.branch(this.#name(session))}`);
    link.addEventListener("click", async () => {
      const answer = await this.#fetch(`/v1/sessions/${session}/path`);
      if (!answer?.ok) return;
      const file = document.createElement("a");
      file.href = URL.createObjectURL(await answer.blob());
      file.download = `branch-${this.#name(session)}.jsonl`;
      file.click();
      URL.revokeObjectURL(file.href);
    });
    return link;
  }

  #thumbnail(session) {
    if (!this.#thumbnails.has(session)) {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [THUMBNAIL_HEIGHT, THUMBNAIL_HEIGHT];
      canvas.setAttribute("aria-hidden", "true");
      this.#thumbnails.set(session, canvas);
    }
    return this.#thumbnails.get(session);
  }

  #draw(session, image) {
    const canvas = this.#thumbnail(session);
    canvas.height = THUMBNAIL_HEIGHT * 2;
    canvas.width = Math.round((canvas.height * image.width) / image.height);
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  }

  #name(session) {
    if (!this.#names.has(session)) this.#names.set(session, letters(this.#names.size));
    return this.#names.get(session);
  }

  async #fetch(path, options = {}) {
    const headers = {
      ...(this.main.key && { Authorization: `Bearer ${this.main.key}` }),
      ...(options.body && { "Content-Type": "application/json" }),
    };
    try {
      const answer = await fetch(path, { ...options, headers });
      if (!answer.ok && answer.status !== 404) this.toast((await answer.json()).error.message);
      return answer;
    } catch {
      return null; // the connection is lost, which the stream says
    }
  }
}

/** A, B, …, Z, AA, … */
function letters(number) {
  const rest = Math.floor(number / 26);
  return (rest ? letters(rest - 1) : "") + String.fromCharCode(65 + (number % 26));
}
