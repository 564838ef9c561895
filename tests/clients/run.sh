#!/usr/bin/env bash
# make clients: client libraries of Python and JavaScript through the router, compared with a direct call.  The libraries
# are installed into build/clients, once; remove that folder for newer ones.
set -eu
cd "$(dirname "$0")/../.."
at=$PWD/build/clients

# Each in an environment of its own, as a program has it: their demands on each other's versions may contradict.
python_library() { # NAME PACKAGE
	[ -e "$at/$1/stamp" ] && return
	echo "installing $2"
	rm -rf "${at:?}/$1"
	python3 -m venv "$at/$1"
	"$at/$1/bin/pip" install --disable-pip-version-check -q "$2"
	touch "$at/$1/stamp"
}
mkdir -p "$at"
python_library openai openai
python_library anthropic anthropic
python_library litellm litellm
python_library langchain langchain-openai
python_library pydantic_ai 'pydantic-ai-slim[openai]'
if ! cmp -s tests/clients/package.json "$at/package.json" || [ ! -e "$at/node_modules/stamp" ]; then
	echo "installing openai and the AI SDK for JavaScript"
	cp tests/clients/package.json "$at"
	(cd "$at" && npm install --silent --no-audit --no-fund)
	touch "$at/node_modules/stamp"
fi
cp tests/clients/of_javascript.mjs "$at" # its libraries are found beside it
exec build/venv/bin/python tests/clients/compare.py "$at"
