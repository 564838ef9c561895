#!/usr/bin/env bash
# What `make install` puts in place, and the bill of materials: a check of `make test`, without
# building a package.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
B=build/${VARIANT:-release}
dir=$(mktemp -d)
checks_own "$dir"
doc=$dir/usr/share/doc/pdrouter

names_prefix() { ! grep -rnE '/usr/local/(bin/pd|libexec/|share/)' "$dir"; }
all_pages() {
	local page
	for page in etc/docs/*.md; do
		[ -e "$doc/${page##*/}" ] || { echo "no ${page##*/}"; return 1; }
	done
}
urls_exist() { # of the alerts
	local url
	while read -r url; do
		[ -e "$dir${url#file://}" ] || { echo "$url"; return 1; }
	done < <(grep -o 'file:///[^#"]*' "$doc/monitoring/alerts.yaml" | sort -u)
}
conffile_stays() {
	echo '# mine' >"$dir/etc/pdrouter/pdrouter.yaml"
	installs && grep -q mine "$dir/etc/pdrouter/pdrouter.yaml"
}
installs() { make -s install DESTDIR="$dir" PREFIX=/usr; }
materials() { # what a program loads is in it, and what was compiled in
	SOURCE_DATE_EPOCH=1 etc/packages/sbom.py 1.2.3 "$B" >"$dir/sbom.json" || return
	python3 - "$dir/sbom.json" <<-'E'
		import json, sys
		doc = json.load(open(sys.argv[1]))
		by = {p["SPDXID"]: p for p in doc["packages"]}
		assert doc["creationInfo"]["created"] == "1970-01-01T00:00:01Z"
		links = {(r["relationshipType"], by[r["relatedSpdxElement"]]["name"]) for r in doc["relationships"] if r["relatedSpdxElement"] in by}
		assert {("DYNAMIC_LINK", "libssl3"), ("DYNAMIC_LINK", "libzmq5"), ("DYNAMIC_LINK", "libc6"), ("STATIC_LINK", "libxxhash-dev"), ("STATIC_LINK", "liburcu-dev")} <= links, links
		assert all(p["versionInfo"] for p in by.values()) and [f["fileName"] for f in doc["files"]] == ["./bin/pdctl", "./bin/pdfleet", "./bin/pdrouter", "./bin/pdtop", "./libexec/pdrouter/pdsim"]
	E
}

check "make install" installs
check "... again: the configuration stays" conffile_stays
check "... names /usr, not /usr/local" names_prefix
check "... has each page" all_pages
check "... and those that alerts name" urls_exist
check "bill of materials" materials
checks_end
