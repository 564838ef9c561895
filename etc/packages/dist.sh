#!/usr/bin/env bash
# make dist: build/dist/ with the sources, the programs, their bill of materials, and
# SHA256SUMS.  Anywhere on the same Debian the same commit makes the same bytes.  The environment
# has VERSION and SOURCE_DATE_EPOCH.
set -eu
cd "$(dirname "$0")/../.."
umask 022
export LC_ALL=C VERSION SOURCE_DATE_EPOCH
dist=$PWD/build/dist
stage=$dist/stage
# shellcheck source=/dev/null
system=$(. /etc/os-release && echo "$ID$VERSION_ID")-$(uname -m)
rm -rf "$dist"
mkdir -p "$stage"

pack() { # NAME: the folder stage/NAME
	tar -C "$stage" --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$1" |
		gzip -9n >"$dist/$1.tar.gz"
}

# Sources: of a checkout, the commit; .version is what the Makefile of the tarball reads
if [ -d .git ] || [ -f .git ]; then
	git diff --quiet HEAD || { echo "make dist: commit first: sources are packed as committed" >&2; exit 1; }
	mkdir "$stage/pdrouter-$VERSION"
	git archive HEAD | tar -C "$stage/pdrouter-$VERSION" -xf -
	echo "$VERSION" >"$stage/pdrouter-$VERSION/.version"
	pack "pdrouter-$VERSION"
fi

# Programs, for /usr/local: a folder to be unpacked there
binary=pdrouter-$VERSION-$system
make -s install DESTDIR="$stage/root" PREFIX=/usr/local UNITDIR=/usr/local/lib/systemd >"$dist/log" 2>&1 || {
	tail -n 20 "$dist/log" >&2
	exit 1
}
mv "$stage/root/usr/local" "$stage/$binary"
strip "$stage/$binary"/bin/* "$stage/$binary"/libexec/pdrouter/*
etc/packages/sbom.py "$VERSION" "$stage/$binary" >"$dist/$binary.spdx.json"
cp "$dist/$binary.spdx.json" "$stage/$binary/share/doc/pdrouter/pdrouter.spdx.json"
pack "$binary"
rm -rf "$stage" "$dist/log"
cd "$dist"
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
