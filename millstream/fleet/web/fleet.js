/** The fleet as its gateway knows it, asked for once a second. Shows, and changes nothing. */

const EVERY_MS = 1000;
const key = new URLSearchParams(location.hash.slice(1)).get("key");

const $ = (id) => document.getElementById(id);

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function replica(each) {
  const box = element("div", "", "replica");
  box.append(element("h3", each.id));
  const where = each.url ? `, ${each.node ?? "?"}, ${each.url}` : "";
  box.append(element("p", `${each.state}${where}${each.version ? `, version ${each.version}` : ""}`));
  const pressure = element("progress");
  pressure.max = 1;
  pressure.value = each.promised ?? 0;
  pressure.ariaLabel = "promised";
  box.append(pressure);
  const chunks = (each.chunk_ms ?? []).map(({ geometry, ms }) => `${geometry}: ${ms.toFixed(0)} ms`).join("; ");
  box.append(element("p", `${((each.promised ?? 0) * 100).toFixed(0)}% promised, ${each.misses ?? 0} late chunks. ${chunks}`));
  const sessions = element("ul");
  for (const { session, fps, chunk, viewers, can_move } of each.sessions ?? []) {
    const words = `${session}… chunk ${chunk}, ${fps.toFixed(1)} frames/s, ${viewers} watching`;
    sessions.append(element("li", can_move ? words : `${words}, cannot move`));
  }
  if (each.num_sessions) sessions.append(element("li", `${each.num_sessions} sessions`));
  box.append(sessions);
  return box;
}

function event({ at, kind, replica_id, words, seconds }) {
  const row = element("tr", "", kind.replace(" ", "-"));
  const time = new Date(at * 1000).toLocaleTimeString();
  for (const text of [time, kind, replica_id, words, seconds === null ? "" : seconds.toFixed(2)]) row.append(element("td", text));
  return row;
}

function summary(metrics) {
  const pools = Object.entries(metrics.pools).map(
    ([name, pool]) =>
      `${name}: ${pool.ready} ready, ${pool.starting} starting, ${pool.draining} draining, ${pool.sessions} sessions, ` +
      `${pool.waiting} waiting, ${(pool.promised * 100).toFixed(0)}% promised`,
  );
  return `${pools.join(" · ")} · ${metrics.moves} moves, ${metrics.deaths} deaths, ${metrics.restored} restored`;
}

async function look() {
  try {
    const answer = await fetch("/v1/fleet", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    const { replicas, waiting, metrics, events } = await answer.json();
    $("summary").textContent = summary(metrics);
    $("replicas").replaceChildren(...replicas.map(replica));
    $("line").replaceChildren(...waiting.map(({ session, reason }) => element("li", session ? `${session}… ${reason}` : "one")));
    $("timeline").tBodies[0].replaceChildren(...(events ?? []).reverse().map(event));
  } catch (error) {
    $("summary").textContent = `the gateway does not answer: ${error.message}`;
  }
  setTimeout(look, EVERY_MS);
}

look();
