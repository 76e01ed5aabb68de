/**
 * Why something would not be let in. Browsers tell a page nothing about a refused WebSocket, so the same door is knocked at
 * by HTTP, which may answer. Knows no streams.
 */

/** @returns {Promise<{status: number, message: string} | null>} null when nobody answers, or nothing is wrong */
export async function whyRefused(key) {
  const answer = await ask("/v1/models", key);
  return answer === null || answer.ok ? null : { status: answer.status, message: answer.said.error?.message ?? answer.words };
}

/** Why a stream cannot begin in the place of a session of one's own; empty where it can, or nobody says. */
export async function whyNotInstead(session, opening, key) {
  const answer = await ask(`/v1/sessions/${session}/check`, key, opening);
  return answer?.said.obstacle ?? "";
}

async function ask(path, key, body = null) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(body && { "Content-Type": "application/json" }) };
  try {
    const answer = await fetch(path, { headers, ...(body && { method: "POST", body: JSON.stringify(body) }) });
    return { ok: answer.ok, status: answer.status, words: answer.statusText, said: await answer.json() };
  } catch {
    return null;
  }
}
