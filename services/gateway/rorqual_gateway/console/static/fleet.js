import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { getJson } from "./api.js";

const POLL_MS = 1000;
const ORDER = ["gateway", "recipe", "router", "vision", "prefill", "decode", "kvmeta", "grammar", "scaler"];
const COMMON = new Set(["service", "instance_id", "incarnation", "seq", "sent_unix_s", "draining", "age_s",
  "num_used_pages", "num_total_pages", "num_used_windows", "num_total_windows", "num_active_requests",
  "num_held_leases", "model_fingerprint", "max_context_tokens"]);

export function Fleet({ isShown, apiKey }) {
  const [fleet, setFleet] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (!isShown) return undefined;
    let timer;
    const stop = new AbortController();
    const poll = async () => {
      try {
        setFleet(await getJson("/console-api/fleet", stop.signal));
        setProblem("");
      } catch (error) {
        if (error.name === "AbortError") return;
        setProblem(error.message);
      }
      timer = setTimeout(poll, POLL_MS);
    };
    poll();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [isShown, apiKey]);

  const services = groups(fleet?.instances ?? []);
  return html`
    <h1>Fleet</h1>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${fleet && html`
      <p role="status">
        ${fleet.missing.length ? html`<span class="bad">Missing: ${fleet.missing.join(", ")}.</span>` : "Complete."}
        ${" "}${fleet.instances.length} instances of ${services.length} services, seen by ${fleet.gateway}.
      </p>
      <div class="services">
        ${services.map(([service, instances]) => html`<${Service} service=${service} instances=${instances} />`)}
      </div>
      <${Decisions} decisions=${fleet.decisions} />`}
  `;
}

function groups(instances) {
  const found = new Map();
  for (const instance of instances) {
    if (!found.has(instance.service)) found.set(instance.service, []);
    found.get(instance.service).push(instance);
  }
  const rank = (name) => (ORDER.indexOf(name) + ORDER.length) % ORDER.length;
  return [...found].sort(([a], [b]) => rank(a) - rank(b));
}

function Service({ service, instances }) {
  return html`
    <section class="service" aria-label=${service}>
      <h2>${service} <span class="count">${instances.length}</span></h2>
      ${instances.map((instance) => html`<${Instance} instance=${instance} />`)}
    </section>
  `;
}

function Instance({ instance }) {
  const detail = instance[instance.service] ?? {};
  const path = instance.hit_path ?? {};
  const slots = detail.max_running ? [detail.num_running, detail.max_running] : null;
  return html`
    <article class="instance">
      <h3>${instance.instance_id} ${instance.draining && html`<span class="bad">draining</span>`}</h3>
      <${Bar} label="KV pages" used=${instance.num_used_pages} total=${instance.num_total_pages} />
      <${Bar} label="Windows" used=${instance.num_used_windows} total=${instance.num_total_windows} />
      ${slots && html`<${Bar} label="Running" used=${slots[0]} total=${slots[1]} />`}
      <${Bar} label="Prompts that hit" used=${path.hits_total} total=${path.prompts_total} />
      <${Bar} label="Blocks found" used=${detail.matched_blocks_total} total=${detail.asked_blocks_total} />
      <dl>
        <div><dt>under way</dt><dd>${instance.num_active_requests}</dd></div>
        ${instance.num_held_leases > 0 && html`<div><dt>leases</dt><dd>${instance.num_held_leases}</dd></div>`}
        ${[...facts(instance, detail), ...tiers(path)].map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
      </dl>
      <${Heat} what="expert" byLayer=${instance.experts?.hottest} />
      <${Heat} what="rank" byLayer=${instance.experts?.imbalance} />
    </article>
  `;
}

/** What only this kind of service says: numbers, and numbers by kind. */
function facts(instance, detail) {
  const own = Object.entries(instance).filter(([name, value]) => !COMMON.has(name) && isNumber(value));
  const parts = Object.entries(detail).flatMap(([name, value]) => {
    if (name === "num_running" || name === "max_running") return [];
    if (isNumber(value) || typeof value === "boolean") return [[name, value]];
    if (value && typeof value === "object" && !Array.isArray(value)) {
      return Object.entries(value).filter(([, v]) => isNumber(v)).map(([kind, v]) => [`${name} ${kind}`, v]);
    }
    return [];
  });
  return [...own, ...parts].map(([name, value]) => [name.replaceAll("_", " "), number(value)]);
}

/** Where the blocks of prompts that hit came from, nearest first. */
const TIERS = [["host_blocks_total", "blocks from host memory"], ["fetched_blocks_total", "blocks from the store"],
  ["relayed_blocks_total", "of them through other hosts"], ["late_blocks_total", "blocks too late"]];

function tiers(path) {
  return Number(path.prompts_total) ? TIERS.map(([name, text]) => [text, number(path[name])]) : [];
}

const isNumber = (value) => value !== "" && value !== null && typeof value !== "boolean" && !Array.isArray(value) && Number.isFinite(Number(value));

function number(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  const n = Number(value);
  return Number.isInteger(n) || n >= 1000 ? Math.round(n).toLocaleString("en") : String(Number(n.toPrecision(3)));
}

function Bar({ label, used, total }) {
  if (!Number(total)) return null;
  const share = Math.min(1, used / total);
  return html`
    <div class="bar" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${total} aria-valuenow=${used}>
      <span class="fill" style=${{ width: `${(share * 100).toFixed(1)}%` }}></span>
      <span class="text">${label} ${used}/${total}</span>
    </div>
  `;
}

/** The most loaded of each layer over the mean of its layer: one cell a layer. */
function Heat({ what, byLayer }) {
  const layers = Object.entries(byLayer ?? {}).map(([layer, load]) => [Number(layer), Number(load)]);
  if (!layers.length) return null;
  layers.sort(([a], [b]) => a - b);
  const most = Math.max(1, ...layers.map(([, load]) => load));
  const text = `Most loaded ${what} by layer: up to ${most.toFixed(1)} times the mean`;
  return html`
    <figure class="heat">
      <figcaption>${text}</figcaption>
      <div class="heatrow" role="img" aria-label=${text}>
        ${layers.map(([layer, load]) => html`<span title=${`layer ${layer}: ${load.toFixed(2)}`}
          style=${{ opacity: (0.08 + 0.92 * load / most).toFixed(2) }}></span>`)}
      </div>
    </figure>
  `;
}

/** What was done about it: instances started or stopped, or nothing in a dry run. */
function change(target, decision) {
  if (!target.num_change) return "";
  const text = `${target.num_change > 0 ? "+" : "\u2212"}${Math.abs(target.num_change)}`;
  return decision.driver === "none" ? `${text} (dry run)` : text;
}

function Decisions({ decisions }) {
  return html`
    <section aria-label="Decisions of the scaler">
      <h2>Scaler</h2>
      ${decisions.length === 0 && html`<p class="hint">No decision since this gateway started.</p>`}
      ${decisions.length > 0 && html`
        <div class="scroll" tabindex="0"><table>
          <thead><tr><th>When</th><th>Service</th><th>Running</th><th>Starting</th><th>Wanted</th><th>Change</th><th>Why</th></tr></thead>
          <tbody>
            ${decisions.slice(0, 20).flatMap((decision) => decision.targets.map((target) => html`
              <tr>
                <td>${new Date(Number(decision.decided_unix_s) * 1000).toLocaleTimeString()}</td>
                <td>${target.service}</td><td>${target.num_running}</td><td>${target.num_pending}</td>
                <td>${target.num_desired}</td><td>${change(target, decision)}</td><td>${target.reason}</td>
              </tr>`))}
          </tbody>
        </table></div>`}
    </section>
  `;
}
