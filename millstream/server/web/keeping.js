/**
 * What outlives the moment: recordings, saved streams, a link to watch. Knows the stream's messages, not its pictures.
 *
 * A recording belongs to its session: over a lost connection or a reload it goes on, and `live` says so. One that has ended
 * is offered, also after a reload.
 */

import * as memory from "./memory.js";
import * as strings from "./strings.js";

export class Keeping {
  #recordingSince = null;

  constructor(elements, stream, { toast, onRestore, promptNow }) {
    Object.assign(this, { elements, stream, toast, onRestore, promptNow });
    elements.record.addEventListener("click", () => this.record());
    elements.save.addEventListener("click", () => this.save());
    elements.share.addEventListener("click", () => this.share());
    elements.shelf.addEventListener("click", () => this.#openShelf());
    elements.download.addEventListener("click", (event) => this.#fetchWithKey(event));
    stream.addEventListener("recording", ({ detail }) => this.#recording(detail));
    stream.addEventListener("live", ({ detail }) => this.#goOn(detail));
    const made = memory.recording.get();
    if (made) this.#offer(made);
    stream.addEventListener("saved", ({ detail }) => this.#saved(detail));
  }

  /** Start a recording, or end the one that runs. */
  record() {
    const on = this.#recordingSince === null;
    this.stream.ask({ type: "record", on });
    if (!on) this.#showRecording(false); // what was kept is offered when the server has it
  }

  save() {
    this.stream.ask({ type: "save" });
  }

  async share() {
    const link = new URL(`/?view=${encodeURIComponent(this.stream.live.view)}`, location).href;
    try {
      await navigator.clipboard.writeText(link);
      this.toast(strings.shared(link, { copied: true, key: this.stream.key }));
    } catch {
      this.toast(strings.shared(link, { copied: false, key: this.stream.key })); // no clipboard outside secure pages
    }
  }

  /** Once a second or so. */
  refresh() {
    if (this.#recordingSince === null) return;
    this.elements.recordingTime.textContent = strings.clock((performance.now() - this.#recordingSince) / 1000);
  }

  /** A recording ends with its session at the latest; what it has until then is kept. */
  end() {
    if (this.#recordingSince === null) return;
    this.#showRecording(false);
    this.#offer(memory.recording.get());
    this.toast("The recording ended here. It is ready to download.");
  }

  #recording({ on, url }) {
    if (on) this.#begin(url);
    else this.#showRecording(false);
    if (on || !url) return;
    this.#offer({ ...memory.recording.get(), url });
    this.toast("The recording is ready to download.");
  }

  /** The stream is there, or there again. */
  #goOn({ recording, recorded_s }) {
    if (!recording) this.end();
    else if (recording === memory.recording.get()?.url) this.#showRecording(true, recorded_s);
    else this.#begin(recording, recorded_s); // of another tab, or another browser
  }

  #begin(url, recorded_s = 0) {
    memory.recording.set({ url, name: strings.recordingName(this.promptNow(), new Date()) });
    this.#showRecording(true, recorded_s);
  }

  #offer({ url, name }) {
    this.elements.download.href = url;
    this.elements.download.download = name;
    this.elements.download.hidden = false;
  }

  #showRecording(on, recorded_s = 0) {
    this.#recordingSince = on ? performance.now() - 1000 * recorded_s : null;
    this.elements.record.setAttribute("aria-pressed", on);
    this.elements.recordLabel.textContent = on ? "Stop recording" : "Record";
    this.elements.recordingMark.hidden = !on;
    if (on) this.elements.download.hidden = true; // of the one before
  }

  /** A plain link cannot carry a key. */
  async #fetchWithKey(event) {
    if (!this.stream.key || this.elements.download.href.startsWith("blob:")) return;
    event.preventDefault();
    const answer = await fetch(this.elements.download.href, { headers: { Authorization: `Bearer ${this.stream.key}` } });
    if (!answer.ok) {
      this.toast(`The recording cannot be fetched: ${answer.status} ${answer.statusText}`);
      return;
    }
    this.elements.download.href = URL.createObjectURL(await answer.blob());
    this.elements.download.click();
  }

  #saved({ snapshot, bytes }) {
    memory.rememberSave({ snapshot, bytes, prompt: this.promptNow(), at: Date.now() });
    this.toast(`Saved, ${strings.bytes(bytes)}. Go on from here whenever you like, under Saved.`);
  }

  #openShelf() {
    const saves = memory.saves();
    this.elements.shelfEmpty.hidden = saves.length > 0;
    this.elements.shelfList.replaceChildren(...saves.map((save) => this.#shelfItem(save)));
    if (!this.elements.shelfDialog.open) this.elements.shelfDialog.showModal();
  }

  #shelfItem({ snapshot, bytes, prompt, at }) {
    const item = document.createElement("li");
    const text = document.createElement("p");
    const when = document.createElement("small");
    text.textContent = prompt;
    when.textContent = `${new Date(at).toLocaleString()}, ${strings.bytes(bytes)}`;
    text.append(when);
    const restore = button("Go on", `Go on from ${prompt}`, () => {
      this.elements.shelfDialog.close();
      this.onRestore({ snapshot, prompt });
    });
    const forget = button("Forget", `Forget ${prompt}`, () => {
      memory.forgetSave(snapshot);
      this.#openShelf();
    });
    item.append(text, restore, forget);
    return item;
  }
}

function button(text, label, act) {
  const element = document.createElement("button");
  element.type = "button";
  element.className = "quiet";
  element.textContent = text;
  element.setAttribute("aria-label", label);
  element.addEventListener("click", act);
  return element;
}
