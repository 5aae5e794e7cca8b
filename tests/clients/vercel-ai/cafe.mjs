// The menu of the café, as tools of the Vercel AI SDK.

import { tool } from "ai";
import { z } from "zod";

const PRICES = { café: 3.85, croissant: 2.25 };

export const tools = {
  price: tool({
    description: "The price of an item on the menu.",
    inputSchema: z.object({ item: z.string() }),
    execute: async ({ item }) => PRICES[item],
  }),
  add: tool({
    description: "The sum of two numbers.",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async ({ a, b }) => a + b,
  }),
};
