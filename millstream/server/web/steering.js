/**
 * The knobs: seed, steps, window, noise. Each change goes to `onChange` as a control. Knows nothing of streams but their
 * configuration.
 */

const MAX_SEED = 2 ** 31;

export const randomSeed = () => Math.floor(Math.random() * MAX_SEED);

export class Steering {
  #schedule = [1000, 750, 500, 250];
  #sink = 0;

  constructor({ seed, dice, steps, stepsValue, window, noise, noiseValue }, onChange) {
    Object.assign(this, { seed, steps, stepsValue, window, noise, noiseValue });
    seed.value = randomSeed();
    seed.addEventListener("change", () => seed.reportValidity() && onChange({ type: "seed", seed: Number(seed.value) }));
    dice.addEventListener("click", () => this.rollSeed());
    steps.addEventListener("input", () => this.#showValues());
    steps.addEventListener("change", () => onChange({ type: "steps", steps: this.#levels() }));
    window.addEventListener("change", () => window.reportValidity() && onChange(this.#windowControl()));
    noise.addEventListener("input", () => this.#showValues());
    noise.addEventListener("change", () => onChange({ type: "noise_scale", noise_scale: Number(noise.value) }));
  }

  rollSeed() {
    this.seed.value = randomSeed();
    this.seed.dispatchEvent(new Event("change"));
  }

  /** Show what a stream has, or would start with. */
  show({ steps, window, sink, noise_scale, seed }, { takesInput = false } = {}) {
    this.#schedule = steps;
    this.#sink = sink;
    this.steps.value = steps.length;
    this.steps.max = Math.max(8, steps.length);
    this.window.value = window;
    if (noise_scale !== undefined) this.noise.value = noise_scale;
    if (seed !== undefined) this.seed.value = seed;
    this.noise.disabled = !takesInput;
    this.#showValues();
  }

  /** What a new stream should start with. */
  get choices() {
    return {
      seed: Number(this.seed.value),
      steps: this.#levels(),
      window: Number(this.window.value),
      noise_scale: Number(this.noise.value),
    };
  }

  #windowControl() {
    return { type: "window", window: Number(this.window.value), sink: this.#sink };
  }

  /** The schedule drawn with another number of steps: the same curve from its first level down to nothing. */
  #levels() {
    return resample(this.#schedule, Number(this.steps.value));
  }

  #showValues() {
    this.stepsValue.textContent = this.steps.value;
    this.noiseValue.textContent = `${Math.round(100 * this.noise.value)}%`;
  }
}

export function resample(levels, number) {
  const curve = [...levels, 0];
  return Array.from({ length: number }, (_, i) => {
    const place = (i * levels.length) / number;
    const below = Math.floor(place);
    return curve[below] + (place - below) * (curve[below + 1] - curve[below]);
  });
}
