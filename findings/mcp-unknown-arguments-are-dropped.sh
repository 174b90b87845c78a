#!/usr/bin/env bash
# mcp: a tool runs with its defaults when a client misspells an argument.
#
# A tool made from a function publishes a schema of its parameters. A call with an argument that the
# function does not have is expected to be refused, as Python refuses it. The server drops the
# argument and runs the tool with the default: a model that asks for {"budget": 5} of a tool whose
# parameter is `budget_tokens` gets 1024 and never learns of it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check mcp==2.3.0 || exit 2
"$dir/venv/bin/python" -I - <<'PY'
import asyncio
import sys
from importlib.metadata import version

from mcp import Client
from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")


@server.tool()
def find(question: str, budget_tokens: int = 1024) -> str:
    """Find a text of at most so many tokens."""
    return f"budget {budget_tokens}"


async def main():
    async with Client(server) as client:
        done = await client.call_tool("find", {"question": "who?", "budget": 5})
        return done.content[0].text, bool(getattr(done, "is_error", getattr(done, "isError", False)))


text, failed = asyncio.run(main())
print("mcp", version("mcp"))
print("expected: an error that names the unknown argument 'budget'")
print(f"seen:     {text!r}, error: {failed}")
sys.exit(not (text == "budget 1024" and not failed))
PY
