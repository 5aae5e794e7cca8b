// A café's bill, worked out with the Vercel AI SDK, streamed.

import { createOpenAI } from "@ai-sdk/openai";
import { stepCountIs, streamText } from "ai";
import { tools } from "./cafe.mjs";

const openai = createOpenAI(); // reads OPENAI_BASE_URL and OPENAI_API_KEY
const result = streamText({
  model: openai.chat("policy"),
  prompt: process.argv[2],
  tools,
  stopWhen: stepCountIs(10),
});
await result.consumeStream();
console.log(await result.text);
