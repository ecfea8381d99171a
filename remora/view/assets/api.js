// What the page asks of the server.

export class Failed extends Error {
  constructor(status, answer) {
    super(answer.error);
    this.status = status;
    this.kind = answer.kind;
  }
}

async function read(response) {
  const text = await response.text();
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = { error: text || `the server answered ${response.status}`, kind: "" };
  }
  if (!response.ok) throw new Failed(response.status, answer);
  return answer;
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Failed(0, { error: "remora view does not answer: it was stopped, or cannot be reached", kind: "" });
  }
}

/** Ask; parameters that are null are left out. */
export async function ask(name, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  return read(await send(`/api/${name}?${query}`, { signal }));
}

/** Change something; needs `--allow-changes`. */
export async function change(name, body) {
  const headers = { "content-type": "application/json" };
  return read(await send(`/api/${name}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

/**
 * Calls `changed` when the memory has changed, and `live` with whether the page is told. Returns
 * when the page is told, or cannot be: what is asked from then on misses no change.
 */
export function listen(changed, live) {
  let retry = 0;
  return new Promise((begun) => {
    let first = true;
    function open() {
      const events = new EventSource("/api/events");
      events.addEventListener("change", () => {
        live(true);
        if (!first) changed();
        first = false;
        begun();
      });
      events.onerror = () => {
        live(false);
        first = false;
        begun();
        events.close();
        clearTimeout(retry);
        retry = setTimeout(() => {
          changed();
          open();
        }, 5000);
      };
    }
    open();
  });
}
