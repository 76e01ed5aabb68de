/**
 * Why a connection was not let in. Browsers tell a page nothing about a refused WebSocket, so the same door is knocked at
 * by HTTP, which may answer. Knows no streams.
 */

/** @returns {Promise<{status: number, message: string} | null>} null when nobody answers, or nothing is wrong */
export async function whyRefused(key) {
  try {
    const answer = await fetch("/v1/models", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (answer.ok) return null;
    const { error } = await answer.json();
    return { status: answer.status, message: error?.message ?? answer.statusText };
  } catch {
    return null;
  }
}
