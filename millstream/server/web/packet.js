/**
 * Binary messages of the stream: a little-endian uint32, that many bytes of JSON header, then the payload.
 * Knows nothing of sockets or pictures.
 */

/** @returns {{header: object, payload: Uint8Array}} */
export function readPacket(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return { header, payload: new Uint8Array(buffer, 4 + length) };
}

/** Cuts a chunk's payload where its header says: one part a frame for stills, one fragment for mp4. */
export function splitParts(header, payload) {
  let begin = 0;
  return (header.sizes ?? []).map((size) => payload.subarray(begin, (begin += size)));
}

/** Of the control that says which keys are held: one applies at nearly every chunk, and is no change to be told of. */
export const ACTIONS_ID = "actions";

/** What the receipts of a chunk say: the ids of the controls that first show in it. */
export function controlsIn(header) {
  return (header.receipts ?? []).map((receipt) => receipt.control_id).filter((id) => id !== ACTIONS_ID);
}

export function showsActions(header) {
  return (header.receipts ?? []).some((receipt) => receipt.control_id === ACTIONS_ID);
}
