/**
 * Shows a stream of still pictures on a canvas: decodes JPEG or WebP parts in order, plays them out by media time.
 * Knows what a chunk looks like; knows nothing of sockets. Decodes one chunk at a time; of chunks that wait to be
 * decoded at most eight are kept, the oldest goes.
 */

import { Playout } from "./playout.js";

const MAX_UNDECODED = 8;

export class StillsPlayer {
  #undecoded = [];
  #decoding = false;
  #loop = 0;
  #chunk = null;

  /**
   * `onFrame` is called for each frame drawn, `onChunk` when the first frame of a chunk is drawn, `onThumbnail` with a
   * bitmap of each chunk as soon as it is decoded, to be used at once.
   */
  constructor(canvas, { lead_s, fps, onFrame, onChunk, onThumbnail }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.playout = new Playout({ discard: (frame) => frame.bitmap.close() });
    this.setPace({ lead_s, fps });
    Object.assign(this, { onFrame, onChunk, onThumbnail });
    const turn = (now) => {
      this.#loop = requestAnimationFrame(turn);
      this.#draw(this.playout.due(now / 1000));
    };
    this.#loop = requestAnimationFrame(turn);
  }

  get ahead_s() {
    return this.playout.ahead(performance.now() / 1000);
  }

  setPace({ lead_s, fps }) {
    this.playout.maxAhead = lead_s + 1;
    this.playout.capacity = Math.ceil(fps * (lead_s + 2));
  }

  push(header, parts) {
    this.#undecoded.push({ header, parts });
    if (this.#undecoded.length > MAX_UNDECODED) this.#undecoded.shift();
    if (!this.#decoding) this.#decode();
  }

  close() {
    cancelAnimationFrame(this.#loop);
    this.#undecoded = [];
    this.playout.clear();
    this.onThumbnail = () => {};
  }

  async #decode() {
    this.#decoding = true;
    while (this.#undecoded.length) {
      const { header, parts } = this.#undecoded.shift();
      const bitmaps = await decodeAll(parts, `image/${header.format}`);
      if (bitmaps.length) this.onThumbnail(header, bitmaps[0]);
      const lasts = 1 / header.fps;
      bitmaps.forEach((bitmap, i) => this.playout.add({ at: header.media_s + i * lasts, lasts, bitmap, header }));
    }
    this.#decoding = false;
  }

  #draw(frame) {
    if (!frame) return;
    const { bitmap, header } = frame;
    if (this.canvas.width !== bitmap.width || this.canvas.height !== bitmap.height) {
      this.canvas.width = bitmap.width;
      this.canvas.height = bitmap.height;
    }
    this.context.drawImage(bitmap, 0, 0);
    bitmap.close();
    this.onFrame(frame.at);
    if (header.index !== this.#chunk) {
      this.#chunk = header.index;
      this.onChunk(header);
    }
  }
}

/** A chunk with a damaged picture is left out; the last one stays on the screen. */
async function decodeAll(parts, type) {
  try {
    return await Promise.all(parts.map((part) => createImageBitmap(new Blob([part], { type }))));
  } catch {
    return [];
  }
}
