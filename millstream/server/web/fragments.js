/**
 * Shows a stream of fragmented MP4 in a video element by MediaSource. The same face as `stills.js`.
 * Fragments are played one after the other whatever their own times say, so that left-out chunks leave no hole.
 * At most sixteen fragments wait to be appended, one more is left out; of what was played ten seconds are kept.
 */

const MAX_WAITING = 16;
const MAX_UNSHOWN = 64;
const KEEP_PLAYED_S = 10;

export const canPlayFragments = () =>
  "MediaSource" in window && MediaSource.isTypeSupported('video/mp4; codecs="avc1.42E01E"');

/** `avc1.PPCCLL`, as the decoder configuration inside the init segment spells it. */
export function codecOf(init) {
  for (let i = 4; i + 8 < init.length; i++) {
    if (String.fromCharCode(...init.subarray(i, i + 4)) === "avcC") {
      return `avc1.${[...init.subarray(i + 5, i + 8)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    }
  }
  throw new Error("the first part of the video does not say how it is encoded");
}

export class FragmentPlayer {
  #source = new MediaSource();
  #init = null;
  #buffer = null;
  #waiting = [];
  #chunks = []; // {begin, header} by the video's own clock, not yet shown
  #end = 0;
  #watch = 0;

  constructor(video, { lead_s, onFrame, onChunk, onThumbnail }) {
    Object.assign(this, { video, lead_s, onFrame, onChunk, onThumbnail });
    this.url = URL.createObjectURL(this.#source);
    video.src = this.url;
    this.#source.addEventListener("sourceopen", () => this.#append(), { once: true });
    const seen = (_now, frame) => {
      this.#watch = video.requestVideoFrameCallback(seen);
      this.#show(frame.mediaTime);
    };
    this.#watch = video.requestVideoFrameCallback(seen);
  }

  get ahead_s() {
    return Math.max(0, this.#end - this.video.currentTime);
  }

  setPace({ lead_s }) {
    this.lead_s = lead_s;
  }

  /** What comes before the first fragment, and again after a lost connection. */
  begin(init) {
    if (this.#buffer) this.#waiting.push(init);
    else this.#init = init;
    this.#append();
  }

  push(header, parts) {
    if (parts.length === 0 || this.#waiting.length >= MAX_WAITING) return;
    this.#chunks.push({ begin: this.#end, header });
    if (this.#chunks.length > MAX_UNSHOWN) this.#chunks.shift();
    this.#end += header.frames / header.fps;
    this.#waiting.push(...parts);
    this.#append();
  }

  close() {
    this.video.cancelVideoFrameCallback(this.#watch);
    this.video.removeAttribute("src");
    this.video.load();
    URL.revokeObjectURL(this.url);
    this.#waiting = [];
  }

  #append() {
    if (this.#source.readyState !== "open" || this.#init === null) return;
    if (!this.#buffer) {
      this.#buffer = this.#source.addSourceBuffer(`video/mp4; codecs="${codecOf(this.#init)}"`);
      this.#buffer.mode = "sequence";
      this.#buffer.addEventListener("updateend", () => this.#append());
      this.#buffer.appendBuffer(this.#init);
    }
    if (this.#buffer.updating) return;
    this.#catchUp();
    if (this.#waiting.length) this.#buffer.appendBuffer(this.#waiting.shift());
    else if (this.#played() > 2 * KEEP_PLAYED_S) this.#buffer.remove(0, this.video.currentTime - KEEP_PLAYED_S);
  }

  /** Play as soon as there is something; never fall further behind than the server may be ahead. */
  #catchUp() {
    const { buffered } = this.#buffer;
    if (buffered.length === 0) return;
    const end = buffered.end(buffered.length - 1);
    if (end - this.video.currentTime > this.lead_s + 1) this.video.currentTime = end - this.lead_s;
    if (this.video.paused) this.video.play().catch(() => {}); // muted video may play; a closed one need not
  }

  #played() {
    return this.#buffer.buffered.length ? this.video.currentTime - this.#buffer.buffered.start(0) : 0;
  }

  #show(time) {
    let shown = null;
    while (this.#chunks.length && this.#chunks[0].begin <= time + 1e-3) shown = this.#chunks.shift();
    if (shown) {
      this.onThumbnail(shown.header, this.video);
      this.onChunk(shown.header);
    }
    this.onFrame(time);
  }
}
