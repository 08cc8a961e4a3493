// llama.cpp through node-llama-cpp's prebuilt library: one model file, decode and prefill speed.
// Usage: node llama_cpp.mjs MODEL.gguf THREADS PROMPT_TOKENS DECODE_TOKENS ROUNDS; prints one JSON object.
import fs from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [path, threads, promptTokens, decodeTokens, rounds] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: path, gpuLayers: 0});
const context = await model.createContext({contextSize: promptTokens + decodeTokens + 64, batchSize: 512, threads});
const sequence = context.getSequence();
const prompt = Array.from({length: promptTokens}, (_, i) => 1000 + (i * 7919) % 20000);

const prefill = [], gaps = [];
for (let round = 0; round < rounds; ++round) {
  await sequence.clearHistory();
  const start = performance.now();
  await sequence.evaluateWithoutGeneratingNewTokens(prompt);
  prefill.push((performance.now() - start) / 1e3);
  let last = null, n = 0;
  for await (const token of sequence.evaluate([5], {temperature: 0, yieldEogTokens: true})) {
    const now = performance.now();
    if (last !== null) gaps.push((now - last) / 1e3);
    last = now;
    if (++n > decodeTokens) break;
  }
}
const status = fs.readFileSync("/proc/self/status", "utf8");
const kilobytes = (name) => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)[1]);
console.log(JSON.stringify({
  build: {release: llama.llamaCppRelease.release, features: llama.systemInfo.trim()},
  prefill_seconds: prefill, token_seconds: gaps, rss_bytes: kilobytes("VmRSS") * 1024,
}));
process.exit(0);
