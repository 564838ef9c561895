// The same as calls.py with libraries of JavaScript: `node calls.mjs URL`.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const MODEL = "sim-model";
const V1 = process.argv[2] + "/v1";
const ASK = [{ role: "user", content: "What is 日本語?" }];
const oai = new OpenAI({ baseURL: V1, apiKey: "sk-test", maxRetries: 0 });
const ai = createOpenAICompatible({ name: "sim", baseURL: V1, apiKey: "sk-test" });

function plain(obj) {
  return JSON.parse(JSON.stringify(obj, (k, v) => (["id", "created", "permission"].includes(k) ? undefined : v)));
}

async function all(stream, take) {
  const out = [];
  for await (const x of stream) out.push(take(x));
  return out;
}

const chat = (more) => oai.chat.completions.create({ model: MODEL, messages: ASK, max_tokens: 9, ...more });

const calls = {
  openai_js_chat: async () => plain(await chat({})),
  openai_js_chat_stream: async () => all(await chat({ stream: true, stream_options: { include_usage: true } }), plain),
  openai_js_nine_prompts: async () =>
    plain(await oai.completions.create({ model: MODEL, prompt: [..."abcdefghi"], max_tokens: 2 })),
  openai_js_unknown_model: async () => plain(await chat({ model: "nope" })),
  openai_js_models: async () => plain((await oai.models.list()).data),
  ai_generate: async () => {
    const a = await generateText({ model: ai(MODEL), prompt: "hi", maxOutputTokens: 9, maxRetries: 0 });
    return [a.text, a.finishReason, a.usage];
  },
  ai_stream: async () =>
    all(streamText({ model: ai(MODEL), prompt: "hi", maxOutputTokens: 9, maxRetries: 0 }).textStream, (x) => x),
  ai_unknown_model: async () => (await generateText({ model: ai("nope"), prompt: "hi", maxRetries: 0 })).text,
};

const outcomes = {};
for (const [name, fn] of Object.entries(calls)) {
  try {
    outcomes[name] = { returns: await fn() };
  } catch (e) {
    outcomes[name] = { raises: e.name, status: e.status ?? e.statusCode ?? null, text: String(e.message), code: e.code ?? null };
  }
}
process.stdout.write(JSON.stringify(outcomes));
