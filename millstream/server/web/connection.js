/**
 * One person's line to one session: greets, starts, comes back after a loss, follows it to another server. Knows the
 * protocol, no page.
 *
 * Events: every message of the server under its type (`hello`, `live`, `receipt`, …), with the message as `detail`;
 * `packet` with {header, payload}; `line` with {state: "connecting" | "lost", retry_s}; `denied` with the
 * error that made the opening fail. After `ended`, `denied` or `close()` nothing is tried again. A session that a server has
 * kept when it stopped has not ended: the line is lost until there is a server again.
 */

import { readPacket } from "./packet.js";

export const VERSION = 1;
const ANSWERS = { save: "saved", fork: "forked", rewind: "rewound", keep: "kept", record: "recording", preview: "previews" };
const PATIENCE = 8; // how often a viewer asks, in about a minute, for a stream that was here and is not
const BACKOFF_S = [0.5, 1, 2, 4, 8, 15];
const PING_EVERY_S = 5;
const AT_ONCE_S = 0.05; // where others can take a session over, the first address knows at once where it is
const SILENT_FOR_S = 20; // a line that says nothing for so long is taken for dead, even if no close came
const FRAME_BACKLOG_BYTES = 1 << 20; // camera frames beyond this are left out, so that none is shown late

export class Connection extends EventTarget {
  #socket = null;
  #opening = null;
  #asked = null; // the start that stands in line; it is said again when its place there is gone
  #greeted = false;
  #live = false;
  #over = false;
  #losses = 0;
  #retry = 0;
  #pulse = 0;
  #heardAt = 0;
  #moves = false; // whether sessions can go on elsewhere
  #deadEnds = 0; // addresses in a row that could not be reached; after two, all comes through the first one
  #isElsewhere = false;
  #wasLive = false;
  #seen = -1;
  #saysAhead = true; // how much is yet to be played; servers older than this field refuse it
  #dryAt = 0; // when all that came is played, by performance.now()
  #unanswered = []; // controls and questions in the order they were asked: said again elsewhere
  #isEnding = false; // so is this

  constructor(url, key = "") {
    super();
    this.url = url;
    this.key = key;
  }

  /** Whether anything has been asked for yet. */
  get wanted() {
    return this.#opening !== null;
  }

  /** Open the line, to the first address or to where the session went; says nothing until `begin`. */
  connect(moved = null) {
    this.#hangUp();
    this.#isElsewhere = moved !== null;
    this.#tell("line", { state: "connecting" });
    const protocols = ["millstream.v1", ...(this.key && !moved ? [`millstream.key.${this.key}`] : [])];
    const url = moved ? `${moved.url.replace(/^http/, "ws")}/v1/stream?ticket=${moved.ticket}` : this.url;
    const socket = new WebSocket(url, protocols);
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => this.#hear(event.data);
    socket.onclose = () => socket === this.#socket && this.#lose();
    this.#socket = socket;
    this.#heardAt = performance.now();
    this.#pulse = setInterval(() => this.#feelPulse(), PING_EVERY_S * 1000);
  }

  /** Say what is wanted: a `start`, `attach`, `view` or `restore`, now or as soon as the server has greeted. */
  begin(opening) {
    this.#opening = { version: VERSION, ...opening };
    this.#asked = null;
    this.#wasLive = this.#isEnding = false;
    this.#unanswered = [];
    this.#seen = -1;
    if (this.#greeted) this.#sayOpening();
    else if (this.#socket === null) this.connect();
  }

  /** False when there is no line to send it on. What is asked of a session that is coming back is said when it is live again. */
  send(message) {
    const isAsked = message.type in ANSWERS || (message.type === "control" && message.control.id);
    if (isAsked) this.#unanswered.push(message);
    this.#isEnding ||= message.type === "stop";
    if (this.#wasLive && !this.#live && (isAsked || this.#isEnding)) return true;
    return this.#say(message);
  }

  #say(message) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  /** Say what is of this moment alone: it is not said again elsewhere. */
  sendNow(message) {
    return this.#live && this.#say(message);
  }

  /** One camera frame; left out when the line is busy. */
  sendFrame(blob) {
    const ready = this.#live && this.#socket?.readyState === WebSocket.OPEN;
    if (ready && this.#socket.bufferedAmount < FRAME_BACKLOG_BYTES) this.#socket.send(blob);
  }

  close() {
    this.#over = true;
    this.#hangUp();
  }

  #hear(data) {
    this.#heardAt = performance.now();
    if (typeof data !== "string") {
      const packet = readPacket(data);
      if (packet.header.type === "chunk") this.#take(packet.header);
      this.#tell("packet", packet);
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "ended" && message.kept) {
      this.#lose();
      return;
    }
    if (this.#saysAhead && !this.#live && message.code === "bad_message" && message.message.includes("ahead_s")) {
      this.#saysAhead = false;
      this.#sayOpening();
      return;
    }
    this.#follow(message);
    this.#tell(message.type, message);
  }

  /** What a message means for the line itself. */
  #follow(message) {
    const isRefusal = message.type === "error" && !message.control_id && this.#live;
    const answered = this.#unanswered.findIndex(({ type, control }) =>
      type === "control"
        ? ["receipt", "error"].includes(message.type) && control.id === message.control_id
        : isRefusal || ANSWERS[type] === message.type,
    );
    if (answered >= 0) this.#unanswered.splice(answered, 1);
    switch (message.type) {
      case "hello":
        this.#greeted = true;
        this.#moves = message.moves === true;
        if (this.#isElsewhere) this.#deadEnds = 0;
        this.#feelPulse();
        if (this.#opening) this.#sayOpening();
        break;
      case "moved":
        this.connect(message);
        break;
      case "waiting":
        if (message.session && this.#opening.type === "start") {
          this.#asked = this.#opening;
          this.#opening = { type: "attach", version: VERSION, session: message.session, formats: this.#opening.formats };
        }
        break;
      case "rewound":
        this.#seen = Math.min(this.#seen, message.from_chunk - 1);
        this.#dryAt = 0;
        break;
      case "live":
        this.#live = true;
        this.#asked = null;
        this.#losses = 0;
        if (this.#wasLive) this.#sayAgain();
        this.#wasLive = true;
        if (this.#opening.type !== "view") {
          this.#opening = { type: "attach", version: VERSION, session: message.session, formats: this.#opening.formats };
        }
        break;
      case "error":
        if (!this.#live && !message.control_id) {
          const isGone = message.code === "not_found";
          if (isGone && this.#asked !== null) {
            this.begin(this.#asked); // it was away for longer than its place in line is kept
            break;
          }
          const mayReturn = isGone ? this.#opening.type === "view" && this.#losses < PATIENCE : this.#moves;
          if (this.#wasLive && mayReturn) {
            this.#lose(); // no place for it yet, or its owner has not come back to it yet
            break;
          }
          this.close();
          this.#tell("denied", message);
        }
        break;
      case "ended":
        this.close();
    }
  }

  #lose() {
    const unused = this.#greeted && this.#opening === null; // nothing was wanted yet: `begin` opens it again
    const atOnce = this.#moves && this.#losses === 0;
    if (this.#isElsewhere && !this.#greeted) this.#deadEnds++;
    this.#hangUp();
    if (this.#over || unused) return;
    const backoff_s = BACKOFF_S[Math.min(this.#losses++, BACKOFF_S.length - 1)] * (0.8 + 0.4 * Math.random());
    const retry_s = atOnce ? AT_ONCE_S : backoff_s;
    if (!atOnce) this.#tell("line", { state: "lost", retry_s });
    this.#retry = setTimeout(() => this.connect(), retry_s * 1000);
  }

  #sayOpening() {
    const follow = this.#moves && this.#deadEnds < 2;
    const seen = this.#wasLive && this.#seen >= 0 && { seen: this.#seen };
    const ahead_s = Math.max(0, this.#dryAt - performance.now()) / 1000;
    const ahead = seen && this.#saysAhead && this.#opening.type === "attach" && { ahead_s };
    this.#say({ ...this.#opening, ...(follow && { follow }), ...seen, ...ahead });
  }

  #sayAgain() {
    for (const asked of this.#unanswered) this.#say(asked.type === "control" ? { ...asked, again: true } : asked);
    if (this.#isEnding) this.#say({ type: "stop" });
  }

  #take(header) {
    this.#seen = header.index;
    this.#dryAt = Math.max(this.#dryAt, performance.now()) + (1000 * header.frames) / header.fps;
  }

  #hangUp() {
    clearTimeout(this.#retry);
    clearInterval(this.#pulse);
    const socket = this.#socket;
    this.#socket = null;
    this.#greeted = this.#live = false;
    if (this.#over && socket?.readyState === WebSocket.CONNECTING) {
      socket.onopen = () => socket.close(); // a browser complains of one that is closed before
    } else socket?.close();
  }

  #feelPulse() {
    if (performance.now() - this.#heardAt > SILENT_FOR_S * 1000) this.#lose();
    else if (this.#greeted) this.#say({ type: "ping", t: performance.now() });
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
