/** The page: finds its elements and ties the parts together. Each part explains itself; what they say is in `strings.js`. */

import { Actions } from "./actions.js";
import { Branches } from "./branches.js";
import { Composer } from "./composer.js";
import { whyNotInstead } from "./door.js";
import { canPlayFragments } from "./fragments.js";
import { Elsewhere } from "./elsewhere.js";
import { Futures } from "./futures.js";
import { GivenPicture } from "./given.js";
import { Keeping } from "./keeping.js";
import * as memory from "./memory.js";
import { Midi } from "./midi.js";
import { Meters } from "./meters.js";
import { NewStream } from "./newstream.js";
import * as shortcuts from "./shortcuts.js";
import { SourceChoice } from "./source.js";
import { Stage } from "./stage.js";
import { Standing } from "./standing.js";
import { Steering } from "./steering.js";
import { Stream } from "./stream.js";
import { Timeline } from "./timeline.js";
import { toggleTheme } from "./theme.js";
import { toaster } from "./toast.js";
import * as strings from "./strings.js";

const $ = (id) => document.getElementById(id);
const REFRESH_MS = 500;
const MAX_STALL_S = 0.03; // of a second; more than that is seen
const KNOBS = ["steps", "seed", "noise_scale", "window", "kv_bias"]; // controls that change what a stream is
const STILLS = ["jpeg", "webp"]; // the quickest to encode first

const toast = toaster($("toast"));
const stream = new Stream(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/stream`);
const stage = new Stage({
  frame: $("frame"), picture: $("picture"), video: $("video"), glow: $("glow"),
  notice: $("notice"), noticeWords: $("notice-words"), noticeAction: $("notice-action"), noticeClose: $("notice-close"),
});
const timeline = new Timeline(
  {
    runs: $("runs"), pending: $("pending"), empty: $("strip-empty"),
    moment: $("moment"), momentPicture: $("moment-picture"), momentWords: $("moment-words"), momentFork: $("moment-fork"),
    momentClose: $("moment-close"),
  },
  (...from) => branches.forkAt(...from),
);
const meters = new Meters({
  fps: $("meter-fps"), continuity: $("meter-continuity"), latency: $("meter-latency"), ahead: $("meter-ahead"),
  network: $("meter-network"), viewers: $("meter-viewers"), key: $("meter-key"), hudFps: $("hud-fps"),
  phases: $("phases"), phasesTotal: $("phases-total"), phasesBar: $("phases-bar"), phasesLegend: $("phases-legend"),
});
const composer = new Composer(
  {
    form: $("composer"), prompt: $("prompt"), sendLabel: $("send-label"), status: $("prompt-status"),
    unknown: $("unknown"), understood: $("understood"), examples: $("examples"), modes: $("modes"), modeHint: $("mode-hint"), blend: $("blend"),
    blendField: $("blend-field"),
  },
  say,
  (typed) => stream.draft(typed && { type: "prompt", ...typed }),
);
const steering = new Steering(
  {
    seed: $("seed"), dice: $("dice"), steps: $("steps"), stepsValue: $("steps-value"),
    window: $("window"), noise: $("noise"), noiseValue: $("noise-value"), past: $("past"), pastValue: $("past-value"),
  },
  (control) => stream.running && change(control),
);
const keeping = new Keeping(
  {
    record: $("record"), recordLabel: $("record").querySelector("span"), recordingMark: $("recording-mark"),
    recordingTime: $("recording-time"), download: $("download"), save: $("save"), share: $("share"), shelf: $("shelf"),
    shelfDialog: $("shelf-dialog"), shelfList: $("shelf-list"), shelfEmpty: $("shelf-empty"),
  },
  stream,
  { toast, promptNow: () => promptInForce || composer.text, onRestore: goOnFrom },
);
new Elsewhere(
  {
    mjpeg: $("mjpeg"), hls: $("hls"), copyMjpeg: $("copy-mjpeg"), copyHls: $("copy-hls"), withKey: $("with-key"),
    form: $("output-form"), url: $("output-url"), send: $("output-send"), list: $("output-list"),
  },
  stream,
  { toast },
);
const branches = new Branches(
  {
    stage: $("stage"), frame: $("beside"), canvas: $("beside-picture"), label: $("beside-name"), tree: $("tree"), list: $("branches"),
    fork: $("fork"), steer: $("beside-steer"), keep: $("beside-keep"), end: $("beside-end"),
  },
  stream,
  { toast, picture: $("picture"), timeline, onSteer: steer },
);
const futures = new Futures({ box: $("futures-box"), list: $("futures"), close: $("futures-close"), button: $("preview") }, stream, {
  onChoose: (prompt) => composer.choose(prompt),
  onConsider: (prompt) => composer.consider(prompt),
  onNote: (text) => text && toast(text),
});
const source = new SourceChoice(
  { choice: $("sources"), file: $("file"), preview: $("source-preview") },
  {
    shape: () => geometry(stream.hello.defaults),
    onChoice: fromSource,
    onTrouble: (text) => stage.say(text),
  },
);
const given = new GivenPicture(
  {
    box: $("given"), thumb: $("given-thumb"), whole: $("given-whole"), remove: $("given-remove"), cut: $("given-cut"),
    blend: $("given-blend"), add: $("add-picture"), file: $("picture-file"), stills: $("stills"), camera: $("still-camera"), fromFrame: $("still-frame"),
    stage: $("stage"),
  },
  {
    onUse: (image, mode) => change({ type: "image", ...image, mode, chunks: composer.blendChunks }),
    onTrouble: toast,
    frameNow: () => stage.shown,
  },
);
const newStream = new NewStream({ size: $("size"), fps: $("fps"), wait: $("wait") }, source, given);
const actions = new Actions({ frame: $("frame"), pads: $("pads"), hint: $("look-hint") }, (now) => stream.act(now));

new Midi(
  { status: $("midi-status"), connect: $("midi-connect"), learn: $("midi-learn"), list: $("midi-bindings") },
  (prompt) => composer.choose(prompt),
);

const view = new URLSearchParams(location.search).get("view");
const standing = new Standing({ chip: $("chip"), rate: $("rate-note"), newStream: $("new-stream") }, stream, {
  stage, toast, view, startOver,
});
let promptInForce = "";
const NOTHING = { index: -1, media_s: 0 };
let newest = NOTHING;
let dropped = 0;
let lacksFrames = false; // a camera or a file that it restyles is gone, as after a reload
let stalled_s = 0;
let beginsFromPicture = false; // the stream that was asked for
let watched = null; // by a link: it may be moved to another branch

// What a person asks for.

/** A prompt changes the stream that runs, or starts one; what is only away or in line is not started twice. */
function say(said) {
  futures.clear(); // of a moment before this
  if (stream.phase === "waiting") composer.say(strings.inLine(), "bad");
  else if (stream.running || (stream.phase === "lost" && stream.live)) change({ type: "prompt", ...said });
  else start(said.prompt);
}

async function start(prompt, instead = {}) {
  const wrong = ["size", "fps", "seed", "window"].map($).find((field) => !field.checkValidity());
  if (wrong) {
    $("new-stream").open = true; // where a person can see it
    wrong.reportValidity();
    return;
  }
  const asked = { prompt, ...steering.choices, ...newStream.choices, ...instead };
  if (await staysAsItIs(asked)) return;
  open({ type: "start", ...asked });
}

/** A stream of one's own goes on where the server would refuse what is to come in its place. */
async function staysAsItIs(asked) {
  const own = stream.running && !stream.watching && stream.live.session;
  const { image: _, ...rest } = asked; // is no matter of room
  const obstacle = own && (await whyNotInstead(own, rest, stream.key));
  if (!obstacle || stream.live?.session !== own) return false;
  composer.say(strings.goesOn(obstacle), "bad");
  $("new-stream").open = true; // where something else can be asked for
  return true;
}

/** What was chosen to restyle is there: the stream that has lacked it goes on, or another one begins. */
function fromSource() {
  if (lacksFrames && source.sendsFrames) {
    lacksFrames = false;
    stage.hush();
    sendFrames();
  } else if (composer.text) start(composer.text);
  else composer.say("Now say what it should become.");
}

const sendFrames = () => source.pump(geometry(stream.live.config), (blob) => stream.sendFrame(blob));

/** With what is in the box or was shown last; where there is neither, as Start does. */
function startOver(instead) {
  const prompt = composer.text || promptInForce;
  if (prompt) start(prompt, instead);
  else $("composer").requestSubmit();
}

async function open(opening) {
  await branches.clear();
  await stream.stop(); // its place is free again before another is asked for
  timeline.clear();
  begin(opening);
}

function goOnFrom({ snapshot, prompt }) {
  composer.follow(prompt);
  open({ type: "restore", snapshot });
}

/** Another branch is the one that is steered; this one goes on without. */
function steer(session, prompt) {
  stream.leave();
  composer.follow(prompt);
  timeline.open(session);
  begin({ type: "attach", session });
}

function begin(opening) {
  newStream.begin(opening);
  stream.key = $("key").value;
  stage.reset();
  futures.clear();
  meters.clear();
  standing.explainRate("");
  composer.say("");
  source.rest();
  lacksFrames = false;
  promptInForce = opening.prompt ?? "";
  beginsFromPicture = opening.image !== undefined;
  [newest, dropped, stalled_s] = [NOTHING, 0, 0];
  stream.open({ ...opening, formats: formats() });
}

function change(control) {
  const sent = stream.steer(control);
  if (sent) timeline.queue(sent.id, sent.name, null);
  else composer.say(strings.notSent(), "bad");
  return sent !== null;
}

function preview() {
  if (!stream.running) return;
  futures.ask({ prompt: composer.text, mode: composer.mode, isNew: composer.text !== "" && composer.text !== promptInForce });
}

function pauseOrResume() {
  if (stream.running) change({ type: stream.phase === "paused" ? "resume" : "pause" });
}

const formats = () => ($("format").value === "mp4" && canPlayFragments() ? ["mp4", ...STILLS] : STILLS);

// What the server says.

stream.addEventListener("hello", ({ detail: { model, defaults, examples, sources, takes } }) => {
  $("model").textContent = model;
  composer.offer(examples);
  source.offer(sources ?? []);
  given.offer(view === null && takes?.image === true);
  actions.offer(view === null ? takes : undefined);
  $("meter-key").parentElement.hidden = !actions.takesKeys;
  shortcuts.describe($("keys"), actions.takesKeys ? strings.steeringKeys(takes.keys) : null);
  if (stream.live) return;
  const { seed, ...rest } = defaults; // each new stream has noise of its own
  steering.show(rest, source);
  newStream.offer(defaults);
});

stream.addEventListener("live", ({ detail: { format, config, note } }) => {
  const shape = geometry(config);
  if (view !== null && watched !== null && watched !== stream.live.view) {
    stage.reset();
    timeline.clear();
    newest = NOTHING;
    toast(strings.otherBranch());
  }
  watched = stream.live.view;
  timeline.open(stream.live.session);
  stage.prepare({ format, ...shape, lead_s: config.lead_s }, { onFrame, onChunk, onThumbnail });
  standing.explainRate(note);
  newStream.show(config);
  steering.show(config, source);
  composer.say(""); // of a connection that was lost
  if (beginsFromPicture) given.clear();
  beginsFromPicture = false;
  if (config.input && source.sendsFrames) sendFrames();
  lacksFrames = config.input && !source.sendsFrames && view === null;
  if (lacksFrames) stage.say(strings.lacksFrames(), { action: "Use the camera", act: () => source.useCamera() });
});

stream.addEventListener("rate", ({ detail: { fps, lead_s, note } }) => {
  Object.assign(stream.live.config, { fps, lead_s });
  stage.setPace({ fps, lead_s });
  if (source.isPumping) sendFrames();
  standing.explainRate(note);
});

stream.addEventListener("packet", ({ detail }) => {
  const { header } = detail;
  if (header.type === "chunk") {
    if (header.index === newest.index && header.media_s === newest.media_s) return; // sent again after a lost connection
    promptInForce = header.prompts.at(-1).text;
    if (newest === NOTHING && !composer.text) composer.text = promptInForce; // of a stream that one comes back to
    newest = header;
    timeline.add(stream.live.session, header, stream.arrived(header));
    meters.chunk(header);
    composer.explain(header);
    if (header.dropped > dropped) standing.warn(strings.slowReader(header.dropped));
    dropped = header.dropped;
  }
  stage.receive(detail);
});

stream.addEventListener("stats", ({ detail }) => {
  meters.stats(detail);
  const stalledNow = detail.stalled_s - stalled_s;
  stalled_s = detail.stalled_s;
  standing.strain(stalledNow > MAX_STALL_S && detail.utilisation >= 1);
});

stream.addEventListener("acted", ({ detail }) => meters.key(detail.seconds));
stream.addEventListener("untaken", ({ detail: { code, message } }) => (code === "too_fast" ? actions.sendAgain() : toast(message)));
stream.addEventListener("network", ({ detail }) => meters.network(detail.ms));
stream.addEventListener("fault", ({ detail }) => toast(detail.message));

stream.addEventListener("queued", ({ detail: { id, name, control, chunk } }) => {
  timeline.queue(id, name, chunk);
  const waits = stream.phase === "paused" && control.type !== "resume";
  composer.say(waits ? strings.waitsForResume(name) : strings.queued(name, chunk), "queued");
});
stream.addEventListener("applied", ({ detail: { id, name, chunk, control: { id: _, type, ...settings } } }) => {
  if (KNOBS.includes(type)) Object.assign(stream.live.config, settings);
  timeline.settle(id);
  composer.say(strings.applied(name, chunk), "applied");
});
stream.addEventListener("seen", ({ detail: { name, chunk, seconds } }) => {
  meters.latency(seconds);
  composer.say(strings.seen(name, chunk, seconds), "applied");
});
stream.addEventListener("rejected", ({ detail: { id, message } }) => {
  timeline.settle(id);
  if (stream.live) steering.show(stream.live.config, source); // as it is still
  composer.say(message, "bad");
});

stream.addEventListener("phase", ({ detail }) => {
  const { phase } = detail;
  if (phase === "refused" && left !== null && !stream.hasPicture && detail.code === "not_found") {
    stream.greet(); // what was left behind is gone: begin afresh, without a word
    return;
  }
  document.body.dataset.phase = phase;
  $("welcome").hidden = stream.hasPicture || phase !== "idle" || view !== null;
  $("soon").hidden = stream.hasPicture || !["connecting", "live"].includes(phase);
  $("pause-label").textContent = phase === "paused" ? "Resume" : "Pause";
  $("pause").setAttribute("aria-pressed", phase === "paused");
  $("pause-icon").setAttribute("href", `icons.svg#${phase === "paused" ? "play" : "pause"}`);
  actions.setRunning(phase === "live" && !stream.watching);
  given.setRunning({ running: stream.running, hasPicture: stream.hasPicture });
  for (const id of ["record", "save", "share", "fork", "cut", "pause", "stop"]) $(id).disabled = !stream.running;
  composer.setRunning(stream.running || phase === "lost");
  standing.show(detail);
  if (["refused", "ended"].includes(phase)) keeping.end();
  if (["refused", "ended"].includes(phase)) source.rest();
});

// What is seen.

function onFrame(at) {
  meters.frame();
  $("hud-clock").textContent = strings.clock(at);
}

function onChunk(header) {
  $("still-frame").disabled = false;
  $("soon").hidden = true;
  timeline.show(header.index);
  stream.shown(header);
  $("picture").setAttribute("aria-label", `The stream: ${strings.mix(header.prompts)}`);
}

const onThumbnail = (header, image) => stream.live && timeline.picture(stream.live.session, header.index, image);

setInterval(() => {
  const fps = stream.live?.config.fps ?? 0;
  meters.refresh({ fps, ahead_s: stage.ahead_s, playing: stream.phase === "live" && stream.hasPicture });
  keeping.refresh();
}, REFRESH_MS);

// Small things.

function geometry({ size, height, width, fps }) {
  const [rows, columns] = size ? size.split("x").map(Number) : [height, width];
  return { height: rows, width: columns, fps };
}

function useKey() {
  stream.key = $("key").value;
  memory.key.set(stream.key);
  if (!stream.running) stream.greet();
}

const fullscreen = () => (document.fullscreenElement ? document.exitFullscreen() : $("frame").requestFullscreen());
const help = () => $("help-dialog").showModal();

const clicks = { theme: toggleTheme, help, fullscreen, pause: pauseOrResume, preview, cut: () => change({ type: "cut" }) };
for (const [id, act] of Object.entries(clicks)) $(id).addEventListener("click", act);
$("restart").addEventListener("click", () => startOver());
$("stop").addEventListener("click", () => stream.stop());
$("key").addEventListener("change", useKey);

shortcuts.listen({ theme: toggleTheme, help, fullscreen });
if (view === null) {
  shortcuts.listen({
    focusPrompt: () => $("prompt").focus(),
    pause: pauseOrResume,
    cut: () => $("cut").click(),
    fork: () => $("fork").click(),
    preview: () => $("preview").click(),
    mode: (key) => composer.chooseMode(Number(key)),
    seed: () => steering.rollSeed(),
    record: () => $("record").click(),
    save: () => $("save").click(),
  });
}

stream.key = $("key").value = memory.key.get();
document.body.toggleAttribute("data-watching", view !== null);
addEventListener("pagehide", () => {
  if (stream.phase === "waiting" && stream.place) memory.leftBehind.put(stream.place, composer.text);
  else if (stream.phase === "waiting") stream.ask({ type: "stop" });
  else if (stream.running && view === null) memory.leftBehind.put(stream.live.session);
});
const left = view === null ? memory.leftBehind.take() : null;
if (view !== null) open({ type: "view", view });
else if (left !== null) {
  stream.addEventListener("live", () => branches.look(), { once: true });
  composer.text = left.prompt;
  open({ type: "attach", session: left.session });
} else stream.greet();
