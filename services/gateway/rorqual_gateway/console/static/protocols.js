// The three families of APIs: a conversation to a request, and a stream's events to what is shown.
// A turn is {role, text, image?}; what is shown of an answer is {text, thinking, calls, usage, ends}.

const parsed = (text, what) => {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
};

export const nothingYet = () => ({ text: "", thinking: "", calls: [], usage: null, ends: "" });

const chat = {
  label: "Chat Completions",
  path: "/v1/chat/completions",
  headers: {},
  body(turns, options) {
    const messages = turns.map(({ role, text, image }) => ({
      role,
      content: image
        ? [{ type: "image_url", image_url: { url: image } }, { type: "text", text }]
        : text,
    }));
    if (options.system) messages.unshift({ role: "system", content: options.system });
    const schema = parsed(options.schema, "The schema");
    return {
      model: options.model,
      messages,
      stream: true,
      stream_options: { include_usage: true },
      temperature: options.temperature,
      max_tokens: options.maxTokens,
      thinking: options.thinking ? { type: "enabled" } : undefined,
      tools: parsed(options.tools, "The list of tools")?.map((tool) => ({
        type: "function",
        function: tool,
      })),
      response_format: schema && {
        type: "json_schema",
        json_schema: { name: "answer", schema, strict: true },
      },
    };
  },
  read(shown, { data }) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) shown.usage = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens];
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: thought, tool_calls: calls } = choice.delta ?? {};
    shown.text += content ?? "";
    shown.thinking += thought ?? "";
    for (const call of calls ?? []) {
      const known = (shown.calls[call.index] ??= { name: "", arguments: "" });
      known.name += call.function?.name ?? "";
      known.arguments += call.function?.arguments ?? "";
    }
    shown.ends = choice.finish_reason ?? shown.ends;
  },
};

const responses = {
  label: "Responses",
  path: "/v1/responses",
  headers: {},
  body(turns, options) {
    const schema = parsed(options.schema, "The schema");
    return {
      model: options.model,
      instructions: options.system || undefined,
      input: turns.map(({ role, text, image }) => ({
        role,
        content: [
          ...(image ? [{ type: "input_image", image_url: image }] : []),
          { type: role === "assistant" ? "output_text" : "input_text", text },
        ],
      })),
      stream: true,
      store: false,
      temperature: options.temperature,
      max_output_tokens: options.maxTokens,
      reasoning: options.thinking ? { effort: "high" } : undefined,
      tools: parsed(options.tools, "The list of tools")?.map((tool) => ({
        type: "function",
        ...tool,
      })),
      text: schema && { format: { type: "json_schema", name: "answer", schema, strict: true } },
    };
  },
  read(shown, { data }) {
    const event = JSON.parse(data);
    const calls = shown.calls;
    switch (event.type) {
      case "response.output_text.delta":
        shown.text += event.delta;
        break;
      case "response.reasoning_text.delta":
      case "response.reasoning_summary_text.delta":
        shown.thinking += event.delta;
        break;
      case "response.output_item.added":
        if (event.item.type === "function_call") calls.push({ name: event.item.name, arguments: "" });
        break;
      case "response.function_call_arguments.delta":
        calls[calls.length - 1].arguments += event.delta;
        break;
      case "response.completed":
      case "response.incomplete": {
        const { usage, status } = event.response;
        shown.usage = usage && [usage.input_tokens, usage.output_tokens];
        shown.ends = status;
        break;
      }
      case "response.failed":
        throw new Error(event.response.error?.message ?? "the response failed");
      case "error":
        throw new Error(event.message);
    }
  },
};

const messages = {
  label: "Messages",
  path: "/v1/messages",
  headers: { "anthropic-version": "2023-06-01" },
  body(turns, options) {
    if (options.schema.trim()) throw new Error("Messages has no JSON schema: use another protocol");
    return {
      model: options.model,
      system: options.system || undefined,
      messages: turns.map(({ role, text, image }) => ({
        role,
        content: image ? [imageBlock(image), { type: "text", text }] : text,
      })),
      stream: true,
      temperature: options.temperature === undefined ? undefined : Math.min(1, options.temperature),
      max_tokens: options.maxTokens ?? 1024,
      thinking: options.thinking ? { type: "enabled", budget_tokens: 1024 } : undefined,
      tools: parsed(options.tools, "The list of tools")?.map(({ name, description, parameters }) => ({
        name,
        description,
        input_schema: parameters,
      })),
    };
  },
  read(shown, { data }) {
    const event = JSON.parse(data);
    const calls = shown.calls;
    switch (event.type) {
      case "message_start":
        shown.usage = [event.message.usage.input_tokens, 0];
        break;
      case "content_block_start":
        if (event.content_block.type === "tool_use") {
          calls.push({ name: event.content_block.name, arguments: "" });
        }
        break;
      case "content_block_delta":
        shown.text += event.delta.text ?? "";
        shown.thinking += event.delta.thinking ?? "";
        if (event.delta.partial_json) calls[calls.length - 1].arguments += event.delta.partial_json;
        break;
      case "message_delta":
        shown.ends = event.delta.stop_reason ?? shown.ends;
        shown.usage = [shown.usage?.[0] ?? 0, event.usage?.output_tokens ?? 0];
        break;
      case "error":
        throw new Error(event.error.message);
    }
  },
};

function imageBlock(dataUrl) {
  const [, mediaType, data] = dataUrl.match(/^data:([^;]+);base64,(.*)$/s);
  return { type: "image", source: { type: "base64", media_type: mediaType, data } };
}

export const PROTOCOLS = { chat, responses, messages };
