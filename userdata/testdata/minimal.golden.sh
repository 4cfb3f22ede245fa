#!/bin/sh
# Turns a bare machine into a node of Pulley. Written by `pulley userdata`; may be run again at any point.
set -eu

agent=/usr/local/bin/pulley-agent
config=/etc/pulley/agent.yaml
log=/var/log/pulley-bootstrap.log

main() {
	prepare
	one_at_a_time
	keep_log
	say "first boot of "'controller1'
	write_config
	install_agent
	bootstrap
}

say() { printf 'pulley: %s\n' "$*"; }

die() {
	say "cannot $*" >&2
	exit 1
}

prepare() {
	umask 022 # Puppet and packages inherit it
	cd /
	export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin
	export HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
	unset LC_ALL
	[ "$(id -u)" = 0 ] || die "set up this machine: not root"
}

one_at_a_time() {
	exec 9>/run/pulley-bootstrap.lock
	command -v flock >/dev/null || die "lock: this image has no flock (package util-linux)"
	flock -n 9 || { say "another run is in progress" && exit 0; }
}

# Log and console get the same, by a pipe that nobody waits for: a service that a package starts may keep it open.
keep_log() {
	(umask 077 && : >>"$log")
	pipe=/run/pulley-bootstrap.out
	rm -f "$pipe"
	mkfifo -m 600 "$pipe"
	tee -a "$log" <"$pipe" 9>&- &
	exec >"$pipe" 2>&1
	rm "$pipe"
}

# put PATH MODE: standard input becomes the file, whole or not at all.
put() {
	(umask 077 && cat >"$1.new")
	finish "$1" "$2"
}

finish() {
	chmod "$2" "$1.new"
	sync "$1.new" # without it, a power cut may leave an empty file
	mv -f "$1.new" "$1"
}

write_config() {
	mkdir -p /etc/pulley
	put "$config" 600 <<'PULLEY'
node: controller1
environment: dev
endpoints:
    - http://127.0.0.1:2379
PULLEY
}

install_agent() {
	[ -x "$agent" ] && return 0
	say "put it into the image, or give pulley userdata an address to download it from"
	die "start pulley-agent: this image has no $agent"
}

bootstrap() {
	set -- bootstrap --config "$config"
	for pause in 0 5 10 20 40 60 60 60 60 60; do
		sleep "$pause"
		status=0
		"$agent" "$@" </dev/null 9>&- || status=$?
		case $status in
		0) exit 0 ;;
		2 | 126 | 127) break ;; # wrong usage, or no program for this machine: the next try would end the same
		esac
		say "pulley-agent bootstrap ended with $status"
	done
	say "cannot bootstrap this machine: see above, or $log" >&2
	exit "$status"
}

main
