/** Where a stream stands, in words: over the picture while none moves, on the chip, beside the rate, and as news. */

import { whyRefused } from "./door.js";
import * as strings from "./strings.js";

const WARN_AGAIN_S = 60; // the same warning is not repeated sooner

export class Standing {
  #strained = false;
  #refusal; // the code of the error, where there was one
  #warnedAt = -Infinity;

  /** `view` is what one watches by a link, null for a stream of one's own; `startOver` may be given what to ask for instead. */
  constructor({ chip, rate, newStream }, stream, { stage, toast, view, startOver }) {
    Object.assign(this, { chip, rate, newStream, stream, stage, toast, view, startOver });
  }

  show({ phase, ...detail }) {
    this.#refusal = detail.code;
    this.#showChip();
    this.#explain(phase, detail);
    if (phase === "refused") this.newStream.open = true; // where a smaller one can be asked for
    if (phase === "lost" && this.stream.hello === null) this.#knock();
  }

  /** Whether the server has more to do than it can. */
  strain(isStrained) {
    this.#strained = isStrained;
    if (isStrained && this.stream.phase === "live") this.warn(strings.overloaded());
    this.#showChip();
  }

  /** Which rate the stream has, and why. */
  explainRate(note) {
    this.rate.hidden = !note;
    this.rate.textContent = strings.sentence(note);
  }

  warn(text) {
    if (performance.now() - this.#warnedAt < WARN_AGAIN_S * 1000) return;
    this.#warnedAt = performance.now();
    this.toast(text);
  }

  #showChip() {
    document.body.toggleAttribute("data-strained", this.#strained);
    const watching = this.view !== null;
    const text = strings.chip(this.stream.phase, { watching, strained: this.#strained, refusal: this.#refusal });
    if (this.chip.textContent !== text) this.chip.textContent = text;
  }

  /** Words for the phases in which there is no moving picture. */
  #explain(phase, detail) {
    const { stage, stream } = this;
    const own = { action: "Start your own", act: () => location.assign("/") };
    const again = this.view ? own : { action: "Start again", act: () => this.startOver() };
    const instead = detail.offer ? { action: strings.offer(detail.offer), act: () => this.startOver(detail.offer) } : again;
    const sayings = {
      waiting: () => stage.say(strings.waiting(detail), { action: "Leave the line", act: () => stream.greet() }),
      paused: () => (this.view === null ? stage.hush() : stage.say(strings.pausedByOwner())),
      lost: () => stage.say(strings.lost(stream.hasPicture, detail.retry_s), { action: "Try now", act: () => stream.reconnect() }),
      refused: () => stage.say(strings.denied(detail), instead),
      ended: () => stage.say(strings.ended(detail), again),
    };
    (sayings[phase] ?? (() => stage.hush()))();
  }

  /** Not once greeted: there may be a reason. */
  async #knock() {
    const refusal = await whyRefused(this.stream.key);
    if (refusal === null || this.stream.phase !== "lost") return;
    this.stage.say(strings.turnedAway(refusal, this.stream.key));
    this.newStream.open = true;
  }
}
