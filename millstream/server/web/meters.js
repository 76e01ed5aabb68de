/**
 * How the stream is doing, in numbers: frame rate as drawn, continuity as the server counts it, the time from a change to
 * its picture, and where a chunk's time goes. Knows elements and numbers; measures nothing but what it is told.
 */

const RATE_OVER_S = 2;
const SMOOTHING = 0.3;
const MIN_SHARE = 0.01; // phases below this share of a chunk are counted as "other"
const ORDER = ["text", "encode", "anchor", "prompt", "noise", "recompute", "step", "commit", "decode", "convert"];

export class Meters {
  #drawn = [];
  #phases = {};
  #latencies = [];
  #key = null;
  #keyOnServer_ms = null; // its part of it

  constructor(elements) {
    this.elements = elements;
  }

  frame(now = performance.now()) {
    this.#drawn.push(now);
    while (this.#drawn[0] < now - RATE_OVER_S * 1000) this.#drawn.shift();
  }

  /** Frames drawn a second, lately. */
  rate(now = performance.now()) {
    const recent = this.#drawn.filter((at) => at > now - RATE_OVER_S * 1000);
    const gaps = recent.length - 0.5; // on average the next frame is half a gap away
    return recent.length < 2 ? 0 : (gaps * 1000) / (now - recent[0]);
  }

  latency(seconds) {
    this.#latencies.push(seconds);
    if (this.#latencies.length > 9) this.#latencies.shift();
    const median = [...this.#latencies].sort((a, b) => a - b)[this.#latencies.length >> 1];
    this.#write("latency", `${median.toFixed(2)} s`);
  }

  /** From a key to what it does on the screen. */
  key(seconds) {
    this.#key = seconds;
    this.#writeKey();
  }

  /** Twice a second or so. */
  refresh({ fps, ahead_s, playing }) {
    this.#write("fps", playing ? `${this.rate().toFixed(1)} of ${fps}` : "–");
    this.elements.hudFps.textContent = playing ? `${this.rate().toFixed(0)} fps` : "";
    this.#write("ahead", playing ? `${ahead_s.toFixed(1)} s` : "–");
  }

  stats({ continuity, viewers, key_ms }) {
    this.#keyOnServer_ms = key_ms ?? null;
    this.#writeKey();
    this.#write("continuity", continuity == null ? "–" : `${(100 * continuity).toFixed(1)} %`);
    this.#write("viewers", viewers ?? "–");
  }

  network(ms) {
    this.#write("network", `${Math.round(ms)} ms`);
  }

  /** The bar's full width is the time the chunk plays: what stays empty is what the machine has to spare. */
  chunk(header) {
    const plays_ms = (1000 * header.frames) / header.fps;
    this.#smooth(header);
    const spent = Object.values(this.#phases).reduce((sum, ms) => sum + ms, 0);
    const scale = Math.max(plays_ms, spent);
    const parts = this.#parts(spent);
    this.elements.phases.hidden = false;
    this.elements.phasesTotal.textContent = `${Math.round(spent)} ms of work for ${Math.round(plays_ms)} ms of stream`;
    this.elements.phasesBar.setAttribute("aria-label", `Where a chunk's time goes: ${parts.map(say).join(", ")}`);
    this.elements.phasesBar.replaceChildren(...parts.map((part, i) => segment(part, i, scale)));
    this.elements.phasesLegend.replaceChildren(...parts.map(legend));
  }

  clear() {
    this.#drawn = [];
    this.#phases = {};
    this.#latencies = [];
    this.#key = this.#keyOnServer_ms = null;
    this.elements.phases.hidden = true;
    for (const name of ["key", "fps", "continuity", "latency", "ahead", "viewers"]) this.#write(name, "–");
  }

  #smooth({ phases_ms, total_ms }) {
    const named = Object.values(phases_ms).reduce((sum, ms) => sum + ms, 0);
    const now = { ...phases_ms, other: Math.max(0, total_ms - named) };
    const first = Object.keys(this.#phases).length === 0;
    for (const name of new Set([...Object.keys(this.#phases), ...Object.keys(now)])) {
      const [before, ms] = [this.#phases[name] ?? 0, now[name] ?? 0];
      this.#phases[name] = first ? ms : before + SMOOTHING * (ms - before);
    }
  }

  #parts(spent) {
    const known = Object.entries(this.#phases).filter(([name]) => name !== "other");
    const large = known.filter(([, ms]) => ms >= MIN_SHARE * spent);
    const rest = spent - large.reduce((sum, [, ms]) => sum + ms, 0);
    large.sort(([one], [other]) => ORDER.indexOf(one) - ORDER.indexOf(other));
    return rest >= MIN_SHARE * spent ? [...large, ["other", rest]] : large;
  }

  #writeKey() {
    const server = this.#keyOnServer_ms === null ? "" : `, ${(this.#keyOnServer_ms / 1000).toFixed(2)} s of it there`;
    this.#write("key", this.#key === null ? "–" : `${this.#key.toFixed(2)} s${server}`);
  }

  #write(name, text) {
    this.elements[name].textContent = text;
  }
}

const say = ([name, ms]) => `${name} ${Math.round(ms)} ms`;

const tone = (name, i) => (name === "other" ? 5 : i % 5);

function segment([name, ms], i, scale) {
  const element = document.createElement("span");
  element.style.width = `${(100 * ms) / scale}%`;
  element.dataset.tone = tone(name, i);
  return element;
}

function legend([name, ms], i) {
  const element = document.createElement("li");
  element.dataset.tone = tone(name, i);
  element.textContent = `${name} ${Math.round(ms)}`;
  return element;
}
