/**
 * The picture, large, and what is said over it. Chooses the player for the stream's format; knows nothing of sockets.
 */

import { FragmentPlayer } from "./fragments.js";
import { splitParts } from "./packet.js";
import { StillsPlayer } from "./stills.js";

const GLOW_EVERY_MS = 500;

export class Stage {
  #player = null;
  #format = "";
  #glowAt = 0;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  constructor({ frame, picture, video, glow, notice, noticeWords, noticeAction, noticeClose }) {
    Object.assign(this, { frame, picture, video, glow, notice, noticeWords, noticeAction });
    noticeClose.addEventListener("click", () => this.hush());
  }

  get ahead_s() {
    return this.#player?.ahead_s ?? 0;
  }

  /** What is on the screen, to be drawn. */
  get shown() {
    return this.#format === "mp4" ? this.video : this.picture;
  }

  /** Get ready for a stream. One that comes back keeps its picture and what it has buffered. */
  prepare({ format, width, height, fps, lead_s }, listeners) {
    this.frame.parentElement.style.setProperty("--ratio", width / height);
    if (this.#player && this.#format === format) {
      this.setPace({ fps, lead_s });
      return;
    }
    this.#player?.close();
    this.#format = format;
    const moving = format === "mp4";
    this.video.hidden = !moving;
    this.picture.hidden = moving;
    const heard = { ...listeners, lead_s, fps, onFrame: (at) => (this.#shine(), listeners.onFrame(at)) };
    this.#player = moving ? new FragmentPlayer(this.video, heard) : new StillsPlayer(this.picture, heard);
  }

  /** Chunks play at another rate, and as many of them wait. */
  setPace(pace) {
    this.#player?.setPace(pace);
  }

  /** Forget the stream before; its last picture stays until the next one comes. */
  reset() {
    this.#player?.close();
    this.#player = null;
  }

  receive({ header, payload }) {
    if (header.type === "init") this.#player.begin(payload);
    else this.#player.push(header, splitParts(header, payload));
  }

  /** Say something over the picture until it is no longer so. */
  say(text, { action = "", act = null } = {}) {
    this.notice.hidden = false;
    if (this.noticeWords.textContent !== text) this.noticeWords.textContent = text;
    this.noticeAction.hidden = !action;
    this.noticeAction.textContent = action;
    this.noticeAction.onclick = act;
  }

  hush() {
    this.notice.hidden = true;
    this.noticeWords.textContent = "";
  }

  /** Light from the picture on the wall behind it. */
  #shine() {
    const now = performance.now();
    if (this.#calm.matches || now - this.#glowAt < GLOW_EVERY_MS) return;
    this.#glowAt = now;
    const { width, height } = this.glow;
    this.glow.getContext("2d").drawImage(this.shown, 0, 0, width, height);
  }
}
