// Records what the openai Node SDK sends, into tests/data/node/: as record.py does for Python.
//   node record.mjs FOLDER, FOLDER being one that has node_modules/openai; versions in README.md
import http from "node:http";
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const root = process.argv[2]; // a folder with node_modules/openai
const require = createRequire(pathToFileURL(path.join(root, "x.js")));
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));
const out = path.join(import.meta.dirname, "node");
const secret = ["authorization", "host", "content-length", "connection"]; // of the run, not of the client
let got;

const server = http.createServer((req, res) => {
	const parts = [];
	req.on("data", (d) => parts.push(d));
	req.on("end", () => {
		const body = Buffer.concat(parts);
		const headers = [];
		for (let i = 0; i < req.rawHeaders.length; i += 2)
			if (!secret.includes(req.rawHeaders[i].toLowerCase())) headers.push([req.rawHeaders[i], req.rawHeaders[i + 1]]);
		got = { meta: { method: req.method, path: req.url, headers }, body };
		const stream = JSON.parse(body).stream;
		res.setHeader("Content-Type", stream ? "text/event-stream" : "application/json");
		res.end(stream ? "data: [DONE]\n\n" : '{"id":"x","object":"x","created":1,"model":"m","choices":[]}');
	});
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));

const client = new OpenAI({ baseURL: `http://127.0.0.1:${server.address().port}/v1`, apiKey: "sk-test", maxRetries: 0 });
const model = "sim-model";
const user = [{ role: "user", content: "What is the weather in Köln?" }];
const unicode = 'naïve 日本語 🙂👨‍👩‍👧 \u2028 \\ " / \b\f\n\r\t \x7f \ud800'; // a lone surrogate: JavaScript escapes it
const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const pixels = Buffer.alloc(150000);
for (let i = 0, x = 1; i < pixels.length; i++) pixels[i] = (x = (x * 1103515245 + 12345) & 0x7fffffff) >> 16;
const image = (b) => [{ role: "user", content: [{ type: "text", text: "What is this?" }, { type: "image_url", image_url: { url: "data:image/png;base64," + b.toString("base64") } }] }];
const chat = (more, opts) => () => client.chat.completions.create({ model, messages: user, ...more }, opts);
const completion = (more) => () => client.completions.create({ model, prompt: "Once upon a time", ...more });
const calls = {
	chat: chat({}),
	chat_stream_usage: chat({ stream: true, stream_options: { include_usage: true }, max_tokens: 12 }),
	chat_max_completion_tokens: chat({ max_completion_tokens: 9, seed: 42, stop: "END" }),
	chat_logprobs: chat({ logprobs: true, top_logprobs: 2, max_tokens: 5 }),
	chat_tools: chat({ tools, tool_choice: { type: "function", function: { name: "get_weather" } } }),
	chat_tool_results: chat({ tools, messages: [...user, { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "get_weather", arguments: '{"city":"Köln"}' } }] }, { role: "tool", tool_call_id: "c1", content: "21 °C" }] }),
	chat_json_schema: chat({ response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } } }),
	chat_image_small: chat({ messages: image(pixels.subarray(0, 500)), max_tokens: 8 }),
	chat_image_200k: chat({ messages: image(pixels), max_tokens: 8 }),
	chat_unicode: chat({ messages: [{ role: "user", content: unicode }], max_tokens: 20 }),
	chat_undefined_members: chat({ temperature: undefined, user: null, max_tokens: 5 }),
	chat_headers: chat({ max_tokens: 5 }, { headers: { "X-Request-Id": "node-1", traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" } }),
	completion: completion({ max_tokens: 7 }),
	completion_stream: completion({ stream: true, max_tokens: 11 }),
	completion_tokens: completion({ prompt: [1, 15043, 3186], max_tokens: 6 }),
	completion_one_string_list: completion({ prompt: ["only one"], max_tokens: 6 }),
	completion_128k: completion({ prompt: "All work and no play. ".repeat(5958), max_tokens: 4 }),
};
fs.mkdirSync(out, { recursive: true });
for (const [name, call] of Object.entries(calls)) {
	const answer = await call();
	if (answer && answer[Symbol.asyncIterator]) for await (const _ of answer);
	fs.writeFileSync(path.join(out, name + ".body"), got.body);
	fs.writeFileSync(path.join(out, name + ".json"), `{"method": "${got.meta.method}", "path": "${got.meta.path}", "headers": [\n  ${got.meta.headers.map((h) => JSON.stringify(h)).join(",\n  ")}]}\n`);
	console.log(`${name}: ${got.body.length} bytes`);
}
server.close();
