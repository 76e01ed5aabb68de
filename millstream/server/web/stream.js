/**
 * A stream as its person sees it: which phase it is in, what was asked of it and what became of that. Knows no page.
 *
 * Phases: connecting, idle (greeted, nothing wanted yet), waiting, live, paused, lost, refused, ended.
 * Events: `phase` {phase, …}; `packet`, `hello`, `live`, `rate`, `stats`, `recording`, `saved`, `forked`, `kept`, `previews` as the server
 * sent them; and
 * for each control `queued`, `applied`, `seen` or `rejected`, with {id, name, control, chunk, …}; of keys `acted` {seconds} and `untaken` {code, message}; `network` {ms}; `fault` {message}.
 */

import { Connection } from "./connection.js";
import { ACTIONS_ID, controlsIn, showsActions } from "./packet.js";
import * as strings from "./strings.js";

const FORWARDED = ["packet", "live", "rate", "stats", "recording", "saved", "outputs", "forked", "kept", "previews"];
const MAX_SENT = 64; // controls without a picture yet; the oldest is forgotten, its receipts are then nobody's
const GOODBYE_S = 3;

export class Stream extends EventTarget {
  #line = null;
  #sent = new Map();
  #count = 0;
  phase = "connecting";
  hello = null;
  live = null;
  place = ""; // in line: what to attach to; empty where a server does not say
  hasPicture = false;
  #paused = false;
  #newest = -1; // the number of the last chunk
  #actions = []; // {at, chunk} of keys that are not on the screen yet; at most MAX_SENT
  #noted = new Set(); // what was told
  #repeats = false; // whether notes that come now may have been told before

  constructor(url) {
    super();
    this.url = url;
    this.key = "";
  }

  get watching() {
    return this.live !== null && this.live.session === "";
  }

  get running() {
    return ["live", "paused"].includes(this.phase);
  }

  /** Hear the server's greeting; nothing is asked for yet. */
  greet() {
    this.#newLine().connect();
  }

  /** Ask for a stream: {type: "start" | "attach" | "view" | "restore", …}. One that was asked for before is let go. */
  open(opening) {
    if (this.#line === null || this.#line.wanted) this.#newLine();
    this.#sent.clear();
    this.#newest = -1;
    this.#actions = [];
    this.#setPhase("connecting");
    this.#line.begin(opening);
  }

  /** Let go of the session without ending it. */
  leave() {
    this.#line?.close();
    this.#line = this.live = null;
    this.#paused = false;
  }

  /** Resolves when the server has ended a running session of one's own, or does not say so in time. */
  async stop() {
    if (!this.running || this.watching) return;
    await new Promise((resolve) => {
      this.addEventListener("ended", resolve, { once: true });
      setTimeout(resolve, GOODBYE_S * 1000);
      this.#line.send({ type: "stop" });
    });
  }

  /** Ask for a change; null when there is no line to ask on. */
  steer(control) {
    const id = `p${++this.#count}-${Math.random().toString(36).slice(2, 8)}`;
    if (!this.running || !this.#line.send({ type: "control", control: { ...control, id } })) return null;
    this.#sent.set(id, { id, control, name: strings.control(control), askedAt: performance.now(), applied: false });
    if (this.#sent.size > MAX_SENT) this.#sent.delete(this.#sent.keys().next().value);
    return this.#sent.get(id);
  }

  /** Keys, mouse and gamepad as they are now; what is lost with the line is not said again. */
  act(actions) {
    if (this.phase !== "live" || this.watching) return;
    this.#line.sendNow({ type: "control", control: { ...actions, type: "actions", id: ACTIONS_ID } });
    this.#actions.push({ at: performance.now(), chunk: null });
    if (this.#actions.length > MAX_SENT) this.#actions.shift();
  }

  /** What may be asked for next: an idle server makes it ahead. */
  draft(control) {
    if (this.running && !this.watching) this.#line.send({ type: "draft", ...(control && { control }) });
  }

  ask(message) {
    return this.#line.send(message);
  }

  sendFrame(blob) {
    this.#line.sendFrame(blob);
  }

  reconnect() {
    this.#line.connect();
  }

  /**
   * A chunk has come: its controls have taken effect. Returns their names. One that is paused goes on when it goes back; whoever
   * comes to it is shown its last chunk again, which is no going back.
   */
  arrived(header) {
    const controls = controlsIn(header);
    if (header.index <= this.#newest) this.#goOn();
    this.#newest = header.index;
    return controls.map((id) => {
      this.#applied(id, header.index);
      return this.#sent.get(id)?.name ?? strings.foreign(id);
    });
  }

  /** A chunk is on the screen: the person has seen what its controls did. */
  shown(header) {
    this.hasPicture = true;
    if (showsActions(header)) this.#showActions(header.index);
    for (const id of controlsIn(header)) {
      const sent = this.#sent.get(id);
      if (!sent) continue;
      this.#sent.delete(id);
      if (sent.control.type === "resume") continue; // no picture of its own
      this.#tell("seen", { ...sent, chunk: header.index, seconds: (performance.now() - sent.askedAt) / 1000 });
    }
  }

  /** Timed from the first of those that this chunk shows. */
  #showActions(index) {
    const shown = this.#actions.filter(({ chunk }) => chunk !== null && chunk <= index);
    this.#actions = this.#actions.filter((each) => !shown.includes(each));
    if (shown.length) this.#tell("acted", { seconds: (performance.now() - shown[0].at) / 1000 });
  }

  #newLine() {
    if (this.#line?.wanted && !this.watching) this.#line.send({ type: "stop" });
    this.#line?.close();
    this.live = null;
    this.#paused = false;
    const line = (this.#line = new Connection(this.url, this.key));
    const hear = (type, act) => line.addEventListener(type, ({ detail }) => line === this.#line && act(detail));
    hear("line", (detail) => this.#follow(detail));
    hear("hello", (detail) => this.#greeted(detail));
    hear("waiting", (detail) => this.#waits(detail));
    hear("live", (detail) => this.#begun(detail));
    hear("receipt", (detail) => this.#receipt(detail));
    hear("stats", ({ paused }) => this.#stands(paused));
    hear("pong", ({ t }) => this.#tell("network", { ms: performance.now() - t }));
    hear("error", (detail) => this.#error(detail));
    hear("note", ({ message }) => this.#note(message));
    hear("packet", () => (this.#repeats = false));
    hear("denied", (detail) => this.#setPhase("refused", detail));
    hear("ended", (detail) => this.#ended(detail));
    for (const type of FORWARDED) hear(type, (detail) => this.#tell(type, detail));
    return line;
  }

  #follow({ state, retry_s }) {
    if (state === "lost") this.#setPhase("lost", { retry_s });
  }

  #greeted(hello) {
    this.hello = hello;
    this.#tell("hello", hello);
    if (!this.#line.wanted) this.#setPhase("idle");
  }

  #waits(detail) {
    this.place = detail.session ?? "";
    this.#setPhase("waiting", detail);
  }

  #begun(live) {
    this.live = live;
    this.#repeats = true;
    this.#paused = live.paused ?? this.#paused;
    this.#setPhase(this.#paused ? "paused" : "live", live);
  }

  /** Whoever attaches hears the session's notes again, before the first picture. */
  #note(message) {
    if (!(this.#repeats && this.#noted.has(message))) this.#tell("fault", { message });
    this.#noted.add(message);
  }

  #ended(detail) {
    this.#setPhase("ended", detail);
    this.#tell("ended", detail);
  }

  #receipt({ control_id, state, chunk_index }) {
    if (control_id === ACTIONS_ID) {
      const asked = state === "queued" && this.#actions.find(({ chunk }) => chunk === null);
      if (asked) asked.chunk = chunk_index;
    } else if (state === "applied") this.#applied(control_id, chunk_index);
    else if (this.#sent.has(control_id)) this.#tell("queued", { ...this.#sent.get(control_id), chunk: chunk_index });
  }

  /** Said twice by the server, by itself and with the picture; told once. */
  #applied(id, chunk) {
    const sent = this.#sent.get(id);
    if (!sent || sent.applied) return;
    sent.applied = true;
    this.#tell("applied", { ...sent, chunk });
    if (sent.control.type === "pause") this.#rest();
    if (sent.control.type === "resume") this.#goOn();
    if (sent.control.type === "pause") this.#sent.delete(id); // no chunk brings it
  }

  #rest() {
    this.#paused = true;
    this.#setPhase("paused");
  }

  #goOn() {
    this.#paused = false;
    if (this.phase === "paused") this.#setPhase("live");
  }

  /** Whoever has not asked for a pause is told here of one and of its end; servers older than this do not say. */
  #stands(paused) {
    if (paused === true && this.phase === "live") this.#rest();
    if (paused === false && this.phase === "paused") this.#goOn();
  }

  #error({ code, message, control_id }) {
    const sent = this.#sent.get(control_id);
    this.#sent.delete(control_id);
    if (control_id === ACTIONS_ID) {
      this.#actions = this.#actions.filter((each, i, all) => i !== all.findIndex(({ chunk }) => chunk === null));
      this.#tell("untaken", { code, message });
    } else if (sent) this.#tell("rejected", { ...sent, code, message });
    else if (this.live) this.#tell("fault", { code, message });
  }

  #setPhase(phase, detail = {}) {
    this.phase = phase;
    this.#tell("phase", { ...detail, phase });
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
