#!/usr/bin/env bash
# make deb: build/deb/ with pdrouter_VERSION-1_ARCH.deb alone of its kind, of the programs that
# `make` builds.  The environment has VERSION, SOURCE_DATE_EPOCH, and MAINTAINER if it is not the
# one below.
#
# dpkg-buildpackage works in build/deb/tree, which has debian/ alone: debian/rules has the Makefile
# install.
set -eu
cd "$(dirname "$0")/../.."
: "${MAINTAINER:=pdrouter authors <authors@pdrouter.invalid>}"
export SOURCE=$PWD VERSION SOURCE_DATE_EPOCH
tree=$PWD/build/deb/tree
rm -rf build/deb
mkdir -p "$tree"
cp -r etc/packages/debian "$tree/"
sed -i -e "s|@MAINTAINER@|$MAINTAINER|" \
	-e "s/@BUILD_DEPENDS@/$(tests/tools/deps.sh --list build | paste -sd, | sed 's/,/, /g')/" "$tree/debian/control"
cat >"$tree/debian/changelog" <<EOF
pdrouter ($VERSION-1) unstable; urgency=medium

  * Version $VERSION: changelog.gz beside this file has what changed.

 -- $MAINTAINER  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
EOF
log=build/deb/log
if ! (cd "$tree" && dpkg-buildpackage --build=binary --no-sign --no-pre-clean >"$SOURCE/$log" 2>&1); then
	tail -n 30 $log >&2
	exit 1
fi
deb=build/deb/pdrouter_$VERSION-1_$(dpkg --print-architecture).deb
lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$deb"
echo "$deb"
