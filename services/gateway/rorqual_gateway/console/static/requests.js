import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { getJson } from "./api.js";

const POLL_MS = 3000;
const RETRY_MS = 700;
const MOST_TRIES = 15;
const STILL_TRIES = 4; // without a new span: then all services have written theirs

export function Requests({ isShown, detail, apiKey }) {
  const [requests, setRequests] = useState([]);
  const [problem, setProblem] = useState("");
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!isShown) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(() => setRound(round + 1), POLL_MS);
    getJson("/console-api/requests", stop.signal)
      .then((found) => {
        setRequests(found.requests);
        setProblem("");
      })
      .catch((error) => error.name === "AbortError" || setProblem(error.message));
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [isShown, apiKey, round]);
  return html`
    <h1>Requests</h1>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${detail && html`<${Trace} id=${detail} />`}
    <h2>Newest</h2>
    ${requests.length === 0 && html`<p class="hint">No request is kept here yet. Spans are written about a
      second after they end; with a collector set, they are there and not here.</p>`}
    ${requests.length > 0 && html`
      <div class="scroll" tabindex="0"><table>
        <thead><tr><th>When</th><th>What</th><th>Took</th><th>Request</th></tr></thead>
        <tbody>
          ${requests.map((request) => html`
            <tr>
              <td>${new Date(request.start_unix_ns / 1e6).toLocaleTimeString()}</td>
              <td>${request.name} ${request.is_error && html`<span class="bad">failed</span>`}</td>
              <td>${request.duration_ms.toFixed(1)} ms</td>
              <td><a href=${`#/requests/${request.trace_id}`}>${request.request_id}</a></td>
            </tr>`)}
        </tbody>
      </table></div>`}
  `;
}

function Trace({ id }) {
  const [spans, setSpans] = useState([]);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    let timer;
    const load = async (attempt, numKnown, numStill) => {
      try {
        const found = (await getJson(`/console-api/traces/${encodeURIComponent(id)}`, stop.signal)).spans;
        setSpans(found);
        setProblem("");
        const still = found.length > numKnown ? 0 : numStill + 1;
        const isWhole = still >= STILL_TRIES && !hasGaps(found);
        if (!isWhole && attempt < MOST_TRIES) timer = setTimeout(load, RETRY_MS, attempt + 1, found.length, still);
      } catch (error) {
        if (error.name === "AbortError") return;
        setProblem(error.message);
        setSpans([]);
        if (error.status === 404 && attempt < MOST_TRIES) timer = setTimeout(load, RETRY_MS, attempt + 1, 0, 0);
      }
    };
    load(0, 0, 0);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [id]);
  return html`
    <section class="trace" aria-label="Timeline">
      <h2>Timeline</h2>
      ${problem && html`<p class="problem" role="status">${problem}</p>`}
      ${spans.length > 0 && html`<${Timeline} spans=${spans} />`}
    </section>
  `;
}

function Timeline({ spans }) {
  const [chosen, setChosen] = useState(null);
  const begins = Math.min(...spans.map((span) => span.start_unix_ns));
  const whole = Math.max(1, Math.max(...spans.map((span) => span.end_unix_ns)) - begins);
  const rows = inTreeOrder(spans);
  return html`
    <p>${spans.length} spans, ${(whole / 1e6).toFixed(1)} ms, trace ${spans[0].trace_id}</p>
    <ol class="timeline">
      ${rows.map(({ span, depth }) => {
        const left = (100 * (span.start_unix_ns - begins)) / whole;
        const width = Math.max(0.3, (100 * (span.end_unix_ns - span.start_unix_ns)) / whole);
        const isChosen = chosen === span.span_id;
        return html`
          <li key=${span.span_id}>
            <button type="button" aria-expanded=${isChosen} onClick=${() => setChosen(isChosen ? null : span.span_id)}>
              <span class="name" style=${{ paddingLeft: `${depth * 12}px` }}>${span.name} <small>${span.service}</small></span>
              <span class="lane"><span class=${`span ${span.is_error ? "error" : span.service}`} style=${{ left: `${left}%`, width: `${width}%` }}></span></span>
              <span class="took">${((span.end_unix_ns - span.start_unix_ns) / 1e6).toFixed(2)} ms</span>
            </button>
            ${isChosen && html`
              <dl class="attributes">
                <div><dt>begins</dt><dd>${((span.start_unix_ns - begins) / 1e6).toFixed(2)} ms</dd></div>
                ${Object.entries(span.attributes).map(([name, value]) => html`<div><dt>${name}</dt><dd>${String(value)}</dd></div>`)}
              </dl>`}
          </li>`;
      })}
    </ol>
  `;
}

/** Every service writes its spans in its own time, about a second after they end. */
function hasGaps(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  return !spans.some((span) => span.service === "gateway" && !known.has(span.parent_id))
    || spans.some((span) => span.service !== "gateway" && !known.has(span.parent_id));
}

function inTreeOrder(spans) {
  const known = new Set(spans.map((span) => span.span_id));
  const below = new Map();
  for (const span of spans) {
    const parent = known.has(span.parent_id) ? span.parent_id : "";
    below.set(parent, [...(below.get(parent) ?? []), span]);
  }
  const rows = [];
  const stack = (below.get("") ?? []).map((span) => ({ span, depth: 0 })).reverse();
  while (stack.length) {
    const row = stack.pop();
    rows.push(row);
    for (const span of [...(below.get(row.span.span_id) ?? [])].reverse()) {
      stack.push({ span, depth: row.depth + 1 });
    }
  }
  return rows;
}
