#!/bin/sh
# A provider whose machines are folders below DIR: files.sh DIR. The lock of a machine is its folder's name, which only one
# rename can take. DIR/quota, if it exists, is the number of permitted machines.
set -eu
dir=$1
request=$(cat)

# first KEY: the first string of that key. Orders have a machine's own words before its labels.
first() { printf %s "$request" | grep -o "\"$1\":\"[^\"]*\"" | head -n 1 | cut -d '"' -f 4; }

# Cut off, it leaves nothing that is half made.
new=
trap 'rm -rf "$new"' EXIT
trap 'exit 1' TERM

answer() { printf '%s\n' "$1" && exit 0; }
fail() { answer "{\"error\":{\"kind\":\"$1\",\"message\":\"$2\"}}"; }

# tell FOLDER: one machine as JSON. Its mark is where it is kept.
tell() {
	state=running
	[ -e "$1/seen" ] || state=building
	printf '{"name":"%s","id":"%s","state":"%s","flavor":"%s","image":"%s","created":"%s","mark":{"owner":"%s","fleet":"%s"}}' \
		"${1##*/}" "$(cat "$1/id")" "$state" "$(cat "$1/flavor")" "$(cat "$1/image")" "$(cat "$1/created")" "$owner" "$fleet"
}

what=$(first "do") owner=$(first owner) fleet=$(first fleet) name=$(first name)
place=$dir/$owner/$fleet
mkdir -p "$place"

case $what in
list)
	comma=
	printf '{"machines":['
	for m in "$place"/*; do
		[ -e "$m/id" ] || continue
		printf %s "$comma"
		tell "$m"
		: >"$m/seen"
		comma=,
	done
	printf ']}\n'
	;;
create)
	m=$place/$name
	[ -e "$m/id" ] && answer "{\"machine\":$(tell "$m")}"
	flavor=$(first flavor) image=$(first image)
	case $flavor in '' | small | large) ;; *) fail refused "there is no flavor $flavor" ;; esac
	case $image in '' | debian) ;; *) fail refused "there is no image $image" ;; esac
	if [ -e "$dir/quota" ] && [ "$(find "$dir" -name id | wc -l)" -ge "$(cat "$dir/quota")" ]; then
		fail quota "all $(cat "$dir/quota") machines are in use"
	fi
	new=$(mktemp -d "$dir/.new.XXXXXX")
	cat /proc/sys/kernel/random/uuid >"$new/id"
	date -u +%Y-%m-%dT%H:%M:%SZ >"$new/created"
	printf %s "$flavor" >"$new/flavor"
	printf %s "$image" >"$new/image"
	first userdata | base64 -d >"$new/userdata"
	mv -T "$new" "$m" 2>/dev/null || rm -rf "$new" # another create was faster
	answer "{\"machine\":$(tell "$m")}"
	;;
delete)
	m=$place/$name id=$(first id)
	if [ -e "$m/id" ] && { [ -z "$id" ] || [ "$id" = "$(cat "$m/id")" ]; }; then
		gone=$(mktemp -d "$dir/.gone.XXXXXX")
		mv "$m" "$gone/" && rm -rf "$gone"
	fi
	answer '{}'
	;;
*) fail refused "there is nothing called $what to do" ;;
esac
