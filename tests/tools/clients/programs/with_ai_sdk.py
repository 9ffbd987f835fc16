"""ai: the AI SDK of Vercel, with its providers of OpenAI's and Anthropic's APIs."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

_PACKAGES = Path(os.environ["SAX_CLIENTS_PACKAGES"])  # node_modules
VERSION = json.loads((_PACKAGES / "ai" / "package.json").read_text())["version"]
_PROGRAM = """
import { execSync } from "node:child_process";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
globalThis.AI_SDK_LOG_WARNINGS = false;
PROVIDER
const asked = {
  model,
  prompt: "Do the turns.",
  stopWhen: stepCountIs(25),
  tools: {
    bash: tool({
      description: "Runs a command of a shell.",
      inputSchema: z.object({ command: z.string() }),
      execute: async ({ command }) => execSync(command).toString(),
    }),
  },
};
console.log((await generateText(asked)).text);
console.log(await streamText(asked).text);
"""
_URL, _NAME = os.environ["SAX_CLIENTS_AGENT_URL"], os.environ["SAX_CLIENTS_AGENT_MODEL"]


def turns_by_openai_compatible() -> None:
    """`generateText` and `streamText` of `@ai-sdk/openai-compatible`: 20 turns, a scripted model"""
    _run(
        'import { createOpenAICompatible } from "@ai-sdk/openai-compatible";'
        f'const model = createOpenAICompatible({{ name: "sax", baseURL: "{_URL}/v1" }})("{_NAME}");'
    )


def turns_by_responses() -> None:
    """`generateText` and `streamText` of `@ai-sdk/openai`, responses: 20 turns, a scripted model"""
    _run(
        'import { createOpenAI } from "@ai-sdk/openai";'
        f'const model = createOpenAI({{ baseURL: "{_URL}/v1", apiKey: "none" }})("{_NAME}");'
    )


def turns_by_anthropic() -> None:
    """`generateText` and `streamText` of `@ai-sdk/anthropic`: 20 turns, a scripted model"""
    _run(
        'import { createAnthropic } from "@ai-sdk/anthropic";'
        f'const model = createAnthropic({{ baseURL: "{_URL}/v1", apiKey: "none" }})("{_NAME}");'
    )


def _run(provider: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "node_modules").symlink_to(_PACKAGES)
        program = Path(folder, "turns.mjs")
        program.write_text(_PROGRAM.replace("PROVIDER", provider))
        said = subprocess.run(
            ["node", program.name], cwd=folder, capture_output=True, text=True, timeout=600
        )
        assert said.stdout.split("\n")[:2] == ["All turns are done."] * 2, (
            said.stdout,
            said.stderr,
        )
        assert len(Path(folder, "turns.txt").read_text().split()) == 40
