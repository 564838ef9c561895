#!/usr/bin/env bash
# make dist-test: the same commit makes the same bytes, in two folders and under two users'
# settings, and so do the programs of the source tarball.  It takes three builds.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
dir=$(mktemp -d)
checks_own "$dir"

build() { # FOLDER TARGET...
	local at=$1
	shift
	env -u MAKEFLAGS -u MAKELEVEL -u SOURCE_DATE_EPOCH make -s -C "$at" "$@"
}
elsewhere() ( # as another user has set it up
	umask 077
	TZ=Asia/Tokyo LC_ALL=C.UTF-8 build "$dir/another-longer-name" dist deb
)
same_files() { # NAME...
	local name
	for name; do
		cmp "$dir/one/build/$name" "$dir/another-longer-name/build/$name" || return 1
	done
}
checksums() { (cd "$1/build/dist" && sha256sum --check SHA256SUMS); }
members() { # TARBALL: none is anywhere but in the folder of its name
	local top=${1##*/}
	top=${top%.tar.gz}
	! tar -tzf "$1" | grep -v "^$top/" | grep .
}

git clone -q . "$dir/one"
git clone -q . "$dir/another-longer-name"
check "a build" build "$dir/one" dist deb
check "a build elsewhere, at another time of day" elsewhere
mapfile -t made < <(cd "$dir/one/build" && ls dist/* deb/*.deb)
check "${#made[@]} files are the same: ${made[*]##*/}" same_files "${made[@]}"
check "... as many as there should be" [ ${#made[@]} -eq 6 ]
check "checksums" checksums "$dir/one"
programs=("$dir"/one/build/dist/*-*-*-*.tar.gz)
binary=${programs[0]##*/}
sources=${binary%-*-*}.tar.gz
for tarball in "$sources" "$binary"; do
	check "$tarball has one folder" members "$dir/one/build/dist/$tarball"
done
tar -C "$dir" -xzf "$dir/one/build/dist/$sources"
check "the source tarball builds" build "$dir/${sources%.tar.gz}" dist
check "... the same programs" cmp "$dir/one/build/dist/$binary" "$dir/${sources%.tar.gz}/build/dist/$binary"
mkdir "$dir/usr-local"
tar -C "$dir/usr-local" --strip-components=1 -xzf "$dir/one/build/dist/$binary"
check "the binary tarball unpacked runs" "$dir/usr-local/bin/pdrouter" -t -c "$dir/usr-local/share/doc/pdrouter/pdrouter-minimal.yaml"
check "... its units name /usr/local" grep -q '^ExecStart=/usr/local/bin/pdrouter ' "$dir/usr-local/lib/systemd/system/pdrouter.service"
checks_end
