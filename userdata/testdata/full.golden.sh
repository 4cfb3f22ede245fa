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
	say "first boot of "'controller1_t42'
	name_machine 'controller1-t42'
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
	export http_proxy='http://proxy.example:3128' no_proxy='localhost,127.0.0.1,::1,169.254.169.254,etcd1.example,etcd2.example'
	export https_proxy="$http_proxy" HTTP_PROXY="$http_proxy" HTTPS_PROXY="$http_proxy" NO_PROXY="$no_proxy"
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

name_machine() {
	if [ "$(uname -n)" = "$1" ] && [ "$(cat /etc/hostname)" = "$1" ]; then return 0; fi
	if [ -d /run/systemd/system ] && hostnamectl set-hostname "$1"; then return 0; fi
	echo "$1" | put /etc/hostname 644
	hostname "$1"
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
	put /etc/pulley/ca.pem 644 <<'PULLEY'
-----BEGIN CERTIFICATE-----
MIIBiDCCAS+gAwIBAgIUPC/2gUFbFULOu8jHIkIE9BuP8scwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOUHVsbGV5IHRlc3QgQ0EwIBcNMjYxMTIwMjEyODAzWhgPMjEy
NjEwMjcyMTI4MDNaMBkxFzAVBgNVBAMMDlB1bGxleSB0ZXN0IENBMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAE/8San77MP+LqlsUV7i27EG3UP3onC4DOAHpPGiCA
azE93SiHrLHlc/hpe1soPq5w8ITK5/8rYygMHhkI/M5fbKNTMFEwHQYDVR0OBBYE
FLNJ3V/aN4ICvqVUM2KTPOfsaAc5MB8GA1UdIwQYMBaAFLNJ3V/aN4ICvqVUM2KT
POfsaAc5MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIgdS74joqp
8ZOOjYGoawXBBTUngtQva2SWNZrnMboLogMCIFcWHPSmdzPNFnw2TL781ss3GKvl
+qL8ji4QdMebuivG
-----END CERTIFICATE-----
PULLEY
	put /etc/pulley/allowed_signers 644 <<'PULLEY'
alice@* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEm8Y7cAjAOJKk1UyHSV1vTM9WKTVQkTNBXEdUDX9LBb alice's laptop
bob@dev namespaces="pulley-data",valid-before="20300101" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl
PULLEY
	put "$config" 600 <<'PULLEY'
node: controller1_t42
environment: dev@t42
endpoints:
    - https://etcd1.example:2379
    - https://etcd2.example:2379
prefix: /fleets/north
cacert: /etc/pulley/ca.pem
allowed_signers: /etc/pulley/allowed_signers
mirrors:
    - https://pulley.example:8443
    - https://mirror.example/pulley
PULLEY
}

install_agent() {
	url='https://downloads.example/pulley-agent?arch=amd64'
	if [ -x "$agent" ] && genuine "$agent"; then return 0; fi
	for pause in 0 5 10 20 40; do
		sleep "$pause"
		say "downloading $url"
		if ! fetch "$url" "$agent.new"; then
			say "download failed"
		elif ! genuine "$agent.new"; then
			say "wrong checksum: $(sha256sum <"$agent.new")"
		else
			finish "$agent" 755
			return 0
		fi
	done
	rm -f "$agent.new"
	die "download pulley-agent from $url"
}

genuine() { echo '5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e'"  $1" | sha256sum -c >/dev/null 2>&1; }

fetch() {
	if command -v curl >/dev/null; then
		timeout 600 curl -fsSL --globoff --connect-timeout 20 -o "$2" "$1"
	elif command -v wget >/dev/null; then
		timeout 600 wget -nv -t 1 -T 20 -O "$2" "$1"
	else
		die "download pulley-agent: this image has neither curl nor wget"
	fi
}

bootstrap() {
	set -- bootstrap --config "$config" \
		'--puppet-package=openvox-agent' \
		'--puppet-version=8.19.2-1+debian12' \
		'--package-repo=https://apt.example/openvox8-release-debian12.deb' \
		'--schedule=*/5 * * * *'
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
