import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ApiError, getJson, post } from "./api.js";
import { nothingYet, PROTOCOLS } from "./protocols.js";

const FIRST_OPTIONS = {
  protocol: "chat", model: "", system: "", temperature: undefined, maxTokens: 256,
  thinking: false, tools: "", schema: "",
};
const EXAMPLE_TOOLS = `[{"name": "get_weather", "description": "Weather of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]`;
const EXAMPLE_SCHEMA = `{"type": "object", "properties": {"city": {"type": "string"},
  "population": {"type": "integer"}}, "required": ["city", "population"], "additionalProperties": false}`;
const MAX_RAW_CHARS = 200_000;

export function Chat({ apiKey }) {
  const [options, setOptions] = useState(FIRST_OPTIONS);
  const [models, setModels] = useState([]);
  const [turns, setTurns] = useState([]);
  const [problem, setProblem] = useState("");
  const [raw, setRaw] = useState({ request: "", response: "" });
  const running = useRef(null);
  const [isRunning, setIsRunning] = useState(false);
  const change = (part) => setOptions((known) => ({ ...known, ...part }));

  useEffect(() => {
    getJson("/v1/models")
      .then(({ data }) => {
        setModels(data.map((model) => model.id));
        change({ model: data[0]?.id ?? "" });
        setProblem("");
      })
      .catch((error) => setProblem(error.message));
  }, [apiKey]);

  async function send(text, image) {
    const protocol = PROTOCOLS[options.protocol];
    const asked = [...turns, { role: "user", text, image }];
    const answer = { role: "assistant", ...nothingYet(), startedMs: performance.now() };
    const show = () => setTurns([...asked, { ...answer, calls: [...answer.calls] }]);
    setProblem("");
    running.current = new AbortController();
    setIsRunning(true);
    try {
      const body = protocol.body(asked, options);
      const log = rawLog(protocol, body, setRaw);
      show();
      const events = post(protocol.path, body, {
        signal: running.current.signal,
        extraHeaders: protocol.headers,
        onResponse: (response) => {
          answer.requestId = response.headers.get("x-request-id") ?? "";
        },
      });
      for await (const event of events) {
        log(event);
        protocol.read(answer, event);
        answer.firstMs ??= answer.text || answer.thinking ? performance.now() - answer.startedMs : undefined;
        answer.tookMs = performance.now() - answer.startedMs;
        show();
      }
    } catch (error) {
      if (error.name === "AbortError") answer.ends = "stopped";
      else setProblem(error.message);
      if (error instanceof ApiError) setRaw((known) => ({ ...known, response: error.body }));
      if (answer.text || answer.thinking || answer.calls.length) show();
      else setTurns(turns);
    } finally {
      setIsRunning(false);
    }
    return true;
  }

  return html`
    <div class="chat">
      <section class="talk" aria-label="Conversation">
        <h1 class="quiet">Chat</h1>
        <div class="turns" role="log" aria-live="polite" aria-busy=${isRunning} tabindex="0">
          ${turns.length === 0 && html`<p class="hint">Ask the model something.</p>`}
          ${turns.map((turn) => html`<${Turn} turn=${turn} />`)}
        </div>
        ${problem && html`<p class="problem" role="alert">${problem}</p>`}
        <${Composer} isRunning=${isRunning} onSend=${send} onStop=${() => running.current?.abort()}
          onClear=${() => setTurns([])} />
      </section>
      <${Options} options=${options} models=${models} change=${change} />
      <${Raw} raw=${raw} />
    </div>
  `;
}

/** Shows the request at once, and the events as they come, a few times a second. */
function rawLog(protocol, body, setRaw) {
  const short = (_, value) =>
    typeof value === "string" && value.startsWith("data:") ? `${value.slice(0, 60)}...` : value;
  const request = `POST ${protocol.path}\n${JSON.stringify(body, short, 2)}`;
  let response = "";
  let timer;
  setRaw({ request, response });
  return ({ event, data }) => {
    if (response.length < MAX_RAW_CHARS) {
      response += `${event ? `event: ${event}\n` : ""}data: ${data}\n\n`;
    }
    timer ??= setTimeout(() => {
      timer = undefined;
      setRaw({ request, response });
    }, 200);
  };
}

function Turn({ turn }) {
  const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;
  const rate = turn.usage && turn.tookMs > turn.firstMs
    ? ((turn.usage[1] - 1) / ((turn.tookMs - turn.firstMs) / 1000)).toFixed(0)
    : null;
  return html`
    <article class=${`turn ${turn.role}`}>
      <h2>${turn.role === "user" ? "You" : "Model"}</h2>
      ${turn.image && html`<img src=${turn.image} alt="The image you attached" class="attached" />`}
      ${turn.thinking && html`<details open><summary>Thinking</summary><p>${turn.thinking}</p></details>`}
      <p>${turn.text}</p>
      ${(turn.calls ?? []).filter(Boolean).map(
        (call) => html`<pre class="call">${call.name}(${call.arguments})</pre>`,
      )}
      ${turn.role === "assistant" && turn.firstMs !== undefined && html`
        <p class="facts">
          first token ${seconds(turn.firstMs)}, whole ${seconds(turn.tookMs)}
          ${turn.usage && html`, ${turn.usage[0]} + ${turn.usage[1]} tokens`}
          ${rate && html`, ${rate} tokens/s`}${turn.ends && html`, ${turn.ends}`}
          ${turn.requestId && html`, <a href=${`#/requests/${encodeURIComponent(turn.requestId)}`}>trace</a>`}
        </p>`}
    </article>
  `;
}

function Composer({ isRunning, onSend, onStop, onClear }) {
  const [text, setText] = useState("");
  const [image, setImage] = useState(null);
  const picker = useRef(null);
  const send = () => {
    if (!text.trim() || isRunning) return;
    onSend(text, image ?? undefined);
    setText("");
    setImage(null);
    picker.current.value = "";
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  const pick = (event) => {
    const [file] = event.target.files;
    if (!file) return setImage(null);
    const reader = new FileReader();
    reader.onload = () => setImage(reader.result);
    reader.readAsDataURL(file);
  };
  return html`
    <form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
      <label for="message" class="quiet">Message</label>
      <textarea id="message" rows="3" value=${text} onKeyDown=${onKey} placeholder="Enter sends, Shift+Enter breaks the line"
        onInput=${(event) => setText(event.target.value)}></textarea>
      <div class="row">
        <label class="inline">Image <input ref=${picker} type="file" accept="image/*" onChange=${pick} /></label>
        <span class="spacer"></span>
        <button type="button" onClick=${onClear} disabled=${isRunning}>Clear</button>
        ${isRunning
          ? html`<button type="button" class="main" onClick=${onStop}>Stop</button>`
          : html`<button type="submit" class="main" disabled=${!text.trim()}>Send</button>`}
      </div>
    </form>
  `;
}

function Options({ options, models, change }) {
  const number = (name) => (event) =>
    change({ [name]: event.target.value === "" ? undefined : Number(event.target.value) });
  return html`
    <section class="options" aria-label="Options">
      <h2>Options</h2>
      <label>Protocol
        <select value=${options.protocol} onChange=${(event) => change({ protocol: event.target.value })}>
          ${Object.entries(PROTOCOLS).map(([name, { label }]) => html`<option value=${name}>${label}</option>`)}
        </select>
      </label>
      <label>Model
        <select value=${options.model} onChange=${(event) => change({ model: event.target.value })}>
          ${models.map((model) => html`<option value=${model}>${model}</option>`)}
        </select>
      </label>
      <label>System message
        <textarea rows="2" value=${options.system} onInput=${(event) => change({ system: event.target.value })}></textarea>
      </label>
      <label>Temperature
        <input type="number" min="0" max="2" step="0.1" value=${options.temperature ?? ""} placeholder="the model's own"
          onInput=${number("temperature")} />
      </label>
      <label>Most tokens
        <input type="number" min="1" step="1" value=${options.maxTokens ?? ""} onInput=${number("maxTokens")} />
      </label>
      <label class="inline">
        <input type="checkbox" checked=${options.thinking} onChange=${(event) => change({ thinking: event.target.checked })} />
        Think first
      </label>
      <details>
        <summary>Tools</summary>
        <label>JSON list of name, description, parameters
          <textarea rows="5" spellcheck="false" value=${options.tools} onInput=${(event) => change({ tools: event.target.value })}></textarea>
        </label>
        <button type="button" onClick=${() => change({ tools: EXAMPLE_TOOLS })}>Example</button>
      </details>
      <details>
        <summary>JSON schema of the answer</summary>
        <label>JSON Schema
          <textarea rows="5" spellcheck="false" value=${options.schema} onInput=${(event) => change({ schema: event.target.value })}></textarea>
        </label>
        <button type="button" onClick=${() => change({ schema: EXAMPLE_SCHEMA })}>Example</button>
      </details>
    </section>
  `;
}

function Raw({ raw }) {
  if (!raw.request) return null;
  return html`
    <section class="raw" aria-label="What was sent and what came back">
      <details><summary>Raw request</summary><pre tabindex="0">${raw.request}</pre></details>
      <details><summary>Raw response</summary><pre tabindex="0">${raw.response}</pre></details>
    </section>
  `;
}
