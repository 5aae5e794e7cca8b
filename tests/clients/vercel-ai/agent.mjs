// A café's bill, worked out with the Vercel AI SDK.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs } from "ai";
import { tools } from "./cafe.mjs";

const openai = createOpenAI(); // reads OPENAI_BASE_URL and OPENAI_API_KEY
const { text } = await generateText({
  model: openai.chat("policy"),
  prompt: process.argv[2],
  tools,
  stopWhen: stepCountIs(10),
});
console.log(text);
