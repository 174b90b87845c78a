#!/usr/bin/env bash
# mcp: text for a parameter of the type `str | None` is read as JSON: the word null becomes None.
#
# A text is a text, whether a tool may be called without it or not. To `str` each of these arrives as
# it was sent. To `str | None` the word null arrives as no text at all, so a search for it searches
# for nothing, and a text that happens to be JSON, say a line of a settings file, is refused because
# it is "not a string". The schema that the client sees promises a string in both cases.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -qq --disable-pip-version-check mcp==2.3.0 || exit 2
cd "$dir"
"$dir/venv/bin/python" -I -W ignore - <<'PY'
import asyncio
import logging
import sys
from importlib.metadata import version

from mcp import Client
from mcp.server.mcpserver import MCPServer

server = MCPServer("search")
logging.disable(logging.INFO)


@server.tool()
def required(phrase: str) -> str:
    """Say what arrived."""
    return repr(phrase)


@server.tool()
def optional(phrase: str | None = None) -> str:
    """Say what arrived."""
    return repr(phrase)


async def main():
    seen = {}
    async with Client(server) as client:
        for tool in ("required", "optional"):
            for phrase in ("pump", "12", "null", '{"port": 80}'):
                done = await client.call_tool(tool, {"phrase": phrase})
                seen[tool, phrase] = "refused" if done.is_error else done.content[0].text
    return seen


seen = asyncio.run(main())
print("mcp", version("mcp"))
for (tool, phrase), arrived in seen.items():
    print(f"{tool}: sent {phrase!r}, arrived: {arrived}")
same = all(seen["required", phrase] == repr(phrase) for _, phrase in seen) and [
    arrived for (tool, _), arrived in seen.items() if tool == "optional"
] == ["'pump'", "'12'", "None", "refused"]
sys.exit(0 if same else "this version behaves otherwise")
PY
