/**
 * When each frame is shown: a small buffer played by media time. Plain logic over numbers; knows no canvas.
 *
 * Media time runs with the clock from the first frame on. When the buffer runs dry the last picture stays and time
 * waits; the next frame starts it again after a short cushion. A buffer that has got too far ahead is shortened, so
 * that a change is never seen later than it must be. Times are in seconds.
 */

const CUSHION_S = 0.08;

export class Playout {
  #frames = [];
  #offset = null; // media time minus clock time; null while time waits
  #end = 0; // media time at which the newest frame ends

  /** Frames beyond `capacity` push out the oldest; each frame that is left out goes to `discard`. */
  constructor({ capacity = 256, maxAhead = 3, discard = () => {} } = {}) {
    this.capacity = capacity;
    this.maxAhead = maxAhead;
    this.discard = discard;
    this.stalls = 0;
  }

  /** @param {{at: number, lasts: number}} frame in order of `at` */
  add(frame) {
    this.#frames.push(frame);
    this.#end = frame.at + frame.lasts;
    while (this.#frames.length > this.capacity) this.discard(this.#frames.shift());
  }

  /** The frame that has become due, or null when the picture stays as it is. */
  due(now) {
    if (this.#offset === null) {
      if (this.#frames.length === 0) return null;
      this.#offset = this.#frames[0].at - now - CUSHION_S;
    }
    if (this.#end - (now + this.#offset) > this.maxAhead) this.#offset = this.#end - now - this.maxAhead;
    const media = now + this.#offset;
    let shown = null;
    while (this.#frames.length && this.#frames[0].at <= media) {
      if (shown) this.discard(shown);
      shown = this.#frames.shift();
    }
    if (!shown && this.#frames.length === 0 && media > this.#end) {
      this.#offset = null;
      this.stalls += 1;
    }
    return shown;
  }

  /** Seconds of picture still to come. */
  ahead(now) {
    return this.#offset === null ? 0 : Math.max(0, this.#end - (now + this.#offset));
  }

  clear() {
    this.#frames.splice(0).forEach(this.discard);
    this.#offset = null;
  }
}
