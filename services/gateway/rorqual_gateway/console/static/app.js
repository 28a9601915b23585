import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { apiKey, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { Fleet } from "./fleet.js";
import { Requests } from "./requests.js";

const VIEWS = { chat: ["Chat", Chat], fleet: ["Fleet", Fleet], requests: ["Requests", Requests] };
const THEMES = { auto: "light dark", light: "light", dark: "dark" };

function place() {
  const [view, detail = ""] = location.hash.replace(/^#\/?/, "").split("/");
  return { view: view in VIEWS ? view : "chat", detail: decoded(detail) };
}

/** An address typed by hand may hold a percent sign that begins nothing. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function usePlace() {
  const [now, setNow] = useState(place());
  useEffect(() => {
    const moved = () => setNow(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return now;
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem("rorqual-theme") ?? "auto");
  useEffect(() => {
    localStorage.setItem("rorqual-theme", theme);
    document.documentElement.style.colorScheme = THEMES[theme] ?? THEMES.auto;
  }, [theme]);
  return [theme, setTheme];
}

function App() {
  const { view, detail } = usePlace();
  const [theme, setTheme] = useTheme();
  const [key, setKey] = useState(apiKey());
  const changeKey = (text) => {
    setApiKey(text.trim());
    setKey(text.trim());
  };
  return html`
    <a class="skip" href="#main" onClick=${focusMain}>Skip to content</a>
    <header>
      <strong class="brand"><img src="icon.svg" alt="" width="24" height="24" /> Rorqual</strong>
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([name, [label]]) => html`
            <a href=${`#/${name}`} aria-current=${name === view ? "page" : undefined}>${label}</a>
          `,
        )}
      </nav>
      <form onSubmit=${(event) => event.preventDefault()}>
        <label class="inline">
          API key
          <input type="password" value=${key} autocomplete="off" placeholder="if one is needed"
            onChange=${(event) => changeKey(event.target.value)} />
        </label>
      </form>
      <label class="inline">
        Theme
        <select value=${theme} onChange=${(event) => setTheme(event.target.value)}>
          ${Object.keys(THEMES).map((name) => html`<option value=${name}>${name}</option>`)}
        </select>
      </label>
    </header>
    <main id="main" tabindex="-1">
      ${Object.entries(VIEWS).map(
        ([name, [, View]]) => html`
          <div hidden=${name !== view}>
            <${View} isShown=${name === view} detail=${name === view ? detail : ""} apiKey=${key} />
          </div>
        `,
      )}
    </main>
  `;
}

function focusMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

render(html`<${App} />`, document.getElementById("app"));
