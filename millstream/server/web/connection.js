/**
 * One person's line to one session: greets, starts, comes back after a loss. Knows the protocol, no page.
 *
 * Events: every message of the server under its type (`hello`, `live`, `receipt`, …), with the message as `detail`;
 * `packet` with {header, payload}; `line` with {state: "connecting" | "lost", retry_s}; `denied` with the
 * error that made the opening fail. After `ended`, `denied` or `close()` nothing is tried again. A session that a server has
 * kept when it stopped has not ended: the line is lost until there is a server again.
 */

import { readPacket } from "./packet.js";

export const VERSION = 1;
const BACKOFF_S = [0.5, 1, 2, 4, 8, 15];
const PING_EVERY_S = 5;
const SILENT_FOR_S = 20; // a line that says nothing for so long is taken for dead, even if no close came
const FRAME_BACKLOG_BYTES = 1 << 20; // camera frames beyond this are left out, so that none is shown late

export class Connection extends EventTarget {
  #socket = null;
  #opening = null;
  #greeted = false;
  #live = false;
  #over = false;
  #losses = 0;
  #retry = 0;
  #pulse = 0;
  #heardAt = 0;

  constructor(url, key = "") {
    super();
    this.url = url;
    this.key = key;
  }

  /** Whether anything has been asked for yet. */
  get wanted() {
    return this.#opening !== null;
  }

  /** Open the line; says nothing until `begin`. */
  connect() {
    this.#hangUp();
    this.#tell("line", { state: "connecting" });
    const protocols = ["millstream.v1", ...(this.key ? [`millstream.key.${this.key}`] : [])];
    const socket = new WebSocket(this.url, protocols);
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
    if (this.#greeted) this.send(this.#opening);
    else if (this.#socket === null) this.connect();
  }

  /** False when there is no line to send it on. */
  send(message) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
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
      this.#tell("packet", readPacket(data));
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "ended" && message.kept) {
      this.#lose();
      return;
    }
    this.#follow(message);
    this.#tell(message.type, message);
  }

  /** What a message means for the line itself. */
  #follow(message) {
    switch (message.type) {
      case "hello":
        this.#greeted = true;
        this.#feelPulse();
        if (this.#opening) this.send(this.#opening);
        break;
      case "live":
        this.#live = true;
        this.#losses = 0;
        if (this.#opening.type !== "view") {
          this.#opening = { type: "attach", version: VERSION, session: message.session, formats: this.#opening.formats };
        }
        break;
      case "error":
        if (!this.#live && !message.control_id) {
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
    this.#hangUp();
    if (this.#over || unused) return;
    const retry_s = BACKOFF_S[Math.min(this.#losses++, BACKOFF_S.length - 1)] * (0.8 + 0.4 * Math.random());
    this.#tell("line", { state: "lost", retry_s });
    this.#retry = setTimeout(() => this.connect(), retry_s * 1000);
  }

  #hangUp() {
    clearTimeout(this.#retry);
    clearInterval(this.#pulse);
    const socket = this.#socket;
    this.#socket = null;
    this.#greeted = this.#live = false;
    socket?.close();
  }

  #feelPulse() {
    if (performance.now() - this.#heardAt > SILENT_FOR_S * 1000) this.#lose();
    else if (this.#greeted) this.send({ type: "ping", t: performance.now() });
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
