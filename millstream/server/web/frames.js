/**
 * A camera or a file, sampled as JPEG frames of the stream's size and
 * rate. Knows nothing of where the frames go.
 */

const QUALITY = 0.85;

export class FrameSource {
  #video;
  #stream = null;
  #url = "";
  #picture = null;
  #timer = 0;
  #opening = 0; // counts closings, so that what opens late is not kept

  /** @param {HTMLVideoElement} video shows the person what is sent */
  constructor(video) {
    this.#video = video;
  }

  async openCamera({ width, height, fps }) {
    const opening = this.#opening;
    const stream = await navigator.mediaDevices.getUserMedia({
      video: { width: { ideal: width }, height: { ideal: height }, frameRate: { ideal: fps } },
    });
    if (opening !== this.#opening) {
      stream.getTracks().forEach((track) => track.stop());
      throw new Error("closed before the camera opened");
    }
    this.#stream = stream;
    this.#video.srcObject = this.#stream;
    await this.#show();
  }

  async openFile(file) {
    if (file.type.startsWith("image/")) {
      const opening = this.#opening;
      const picture = await createImageBitmap(file);
      if (opening !== this.#opening) throw new Error("closed before the picture was read");
      this.#picture = picture;
      return;
    }
    this.#url = URL.createObjectURL(file);
    this.#video.src = this.#url;
    await this.#show();
  }

  /** Call `send` with a blob of each frame until `rest` or `close`. A frame that is not encoded in time is left out. */
  pump({ width, height, fps }, send) {
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { alpha: false });
    let busy = false;
    clearInterval(this.#timer);
    const timer = setInterval(async () => {
      if (busy) return;
      busy = true;
      drawCovering(context, this.#picture ?? this.#video, width, height);
      const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
      if (timer === this.#timer) send(blob); // the next stream may take no frames
      busy = false;
    }, 1000 / fps);
    this.#timer = timer;
  }

  get isOpen() {
    return this.#stream !== null || this.#picture !== null || this.#url !== "";
  }

  get isPumping() {
    return this.#timer !== 0;
  }

  /** Frames are no longer made; the camera or file is there for the next `pump`. */
  rest() {
    clearInterval(this.#timer);
    this.#timer = 0;
  }

  close() {
    this.#opening++;
    this.rest();
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#picture?.close();
    this.#video.srcObject = null;
    this.#video.removeAttribute("src");
    this.#video.hidden = true;
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#stream = this.#picture = null;
    this.#url = "";
  }

  async #show() {
    this.#video.hidden = false;
    await this.#video.play();
  }
}

/** Fill the whole canvas with the middle of a picture, without stretching it. */
function drawCovering(context, picture, width, height) {
  const from = { width: picture.videoWidth ?? picture.width, height: picture.videoHeight ?? picture.height };
  const scale = Math.max(width / from.width, height / from.height);
  const [w, h] = [from.width * scale, from.height * scale];
  context.drawImage(picture, (width - w) / 2, (height - h) / 2, w, h);
}
