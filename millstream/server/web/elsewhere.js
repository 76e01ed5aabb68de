/** The stream in other people's tools: addresses for players to copy, and addresses to send it to. Knows the stream's messages. */

export class Elsewhere {
  constructor(elements, stream, { toast }) {
    Object.assign(this, { elements, stream, toast });
    elements.copyMjpeg.addEventListener("click", () => this.#copy(elements.mjpeg));
    elements.copyHls.addEventListener("click", () => this.#copy(elements.hls));
    elements.form.addEventListener("submit", (event) => this.#send(event));
    stream.addEventListener("live", () => this.#show());
    stream.addEventListener("outputs", ({ detail }) => this.#list(detail.outputs));
  }

  #show() {
    const folder = new URL(`/v1/views/${encodeURIComponent(this.stream.live.view)}/`, location).href;
    const { mjpeg, hls, copyMjpeg, copyHls, send, withKey, list } = this.elements;
    if (hls.value !== `${folder}live.m3u8`) list.replaceChildren(); // another stream's
    [mjpeg.value, hls.value] = [`${folder}live.mjpg`, `${folder}live.m3u8`];
    for (const button of [copyMjpeg, copyHls, send]) button.disabled = false;
    withKey.hidden = !this.stream.key;
  }

  /** A player can bring a key in its address alone; it is copied with it and not shown. */
  async #copy({ value }) {
    const address = this.stream.key ? `${value}?api_key=${encodeURIComponent(this.stream.key)}` : value;
    try {
      await navigator.clipboard.writeText(address);
      this.toast("Address copied. Open it in VLC, OBS or another player.");
    } catch {
      this.toast(`The clipboard is closed to this page; the address is ${address}`);
    }
  }

  #send(event) {
    event.preventDefault();
    this.stream.ask({ type: "output", url: this.elements.url.value.trim() });
  }

  #list(outputs) {
    this.elements.url.value = "";
    this.elements.list.replaceChildren(...outputs.map((output) => this.#item(output)));
  }

  #item({ output, url }) {
    const [item, name, stop] = ["li", "p", "button"].map((tag) => document.createElement(tag));
    name.textContent = url;
    Object.assign(stop, { type: "button", className: "quiet", textContent: "Stop" });
    stop.setAttribute("aria-label", `Stop sending to ${url}`);
    stop.addEventListener("click", () => this.stream.ask({ type: "stop_output", output }));
    item.append(name, stop);
    return item;
  }
}
