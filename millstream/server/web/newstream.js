/**
 * What a new stream is asked to be besides its knobs: size, frame rate, source, picture, whether it may wait. Of a stream that one comes to,
 * as after a reload, it shows what that was asked to be, so that who starts over gets the same.
 */

import * as strings from "./strings.js";

export class NewStream {
  #follows = false;

  constructor({ size, fps, wait }, source, given) {
    Object.assign(this, { size, fps, wait, source, given });
  }

  /** What a server has where nothing else is said. */
  offer({ size }) {
    this.size.value ||= size;
  }

  /** Whether the stream that comes was begun with what stands here. */
  begin({ type }) {
    this.#follows = type !== "start";
  }

  /** Once: what is written here while it runs is for the next one. Older servers do not tell the rate that was asked for. */
  show({ height, width, fps, rate, asked_fps = fps, source }) {
    if (!this.#follows) return;
    this.#follows = false;
    this.size.value = `${height}x${width}`;
    this.fps.value = rate === "auto" ? rate : asked_fps;
    this.source.show(source);
  }

  get choices() {
    return {
      ...(this.size.value && { size: this.size.value }), // none before the greeting
      fps: strings.rate(this.fps.value),
      wait: this.wait.checked,
      input: this.source.sendsFrames,
      ...(this.source.named && { source: this.source.named }),
      ...this.given.choices,
    };
  }
}
