// Calls to this gateway. The key stays in this tab: it is asked for again in the next one.

const KEY = "rorqual-api-key";

export const apiKey = () => sessionStorage.getItem(KEY) ?? "";
export const setApiKey = (key) => sessionStorage.setItem(KEY, key);

/** An answer that is no success, in the server's own words. */
export class ApiError extends Error {
  constructor(status, body) {
    super(messageOf(body) ?? `HTTP ${status}`);
    this.status = status;
    this.body = body;
  }
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text ? text.slice(0, 500) : undefined;
  }
}

export function headers(extra = {}) {
  const key = apiKey();
  return key ? { ...extra, authorization: `Bearer ${key}` } : extra;
}

export async function getJson(path, signal) {
  const answer = await fetch(path, { headers: headers(), signal });
  if (!answer.ok) throw new ApiError(answer.status, await answer.text());
  return answer.json();
}

/** POST a body; yields {event, data} of an event stream, or one {data} of a plain answer. */
export async function* post(path, body, { signal, extraHeaders = {}, onResponse = () => {} } = {}) {
  const answer = await fetch(path, {
    method: "POST",
    headers: headers({ "content-type": "application/json", ...extraHeaders }),
    body: JSON.stringify(body),
    signal,
  });
  onResponse(answer);
  if (!answer.ok) throw new ApiError(answer.status, await answer.text());
  if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) {
    yield { data: await answer.text() };
    return;
  }
  yield* events(answer.body);
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const event = readEvent(part);
      if (event) yield event;
    }
  }
}

function readEvent(text) {
  const event = { event: "", data: "" };
  for (const line of text.split(/\r?\n/)) {
    if (line.startsWith("event:")) event.event = line.slice(6).trim();
    if (line.startsWith("data:")) event.data += line.slice(5).trim();
  }
  return event.data ? event : null;
}
