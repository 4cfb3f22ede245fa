#!/bin/sh
# Turns this machine into the next free node of role compute of dev. Written by `pulley userdata`; safe to repeat at any point.
# pulley-agent runs the steps of /etc/pulley/first-boot.yaml, then removes this file.
set -eu
umask 022 # Puppet and packages inherit it
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
agent=/usr/local/bin/pulley-agent
self=/var/lib/pulley/first-boot.sh
state=/var/lib/pulley/first-boot.json
unit=pulley-first-boot.service
how=${1-} # "go": resume

main() {
	[ "$how" = go ] || resume_after_reboot
	one_at_a_time
	wrote '"finished":' || write_files
	{ [ -x "$agent" ] && wrote '"agent":{"state":"done"'; } || install_agent
	cd /
	"$agent" bootstrap </dev/null 9>&-
}

say() { printf 'pulley: %s\n' "$*"; }

die() { say "cannot $*" && exit 1; }

# wrote TEXT: the state that pulley-agent wrote after this script contains TEXT. Its files may be newer than this script's.
wrote() {
	# shellcheck disable=SC3013
	[ "$how" = go ] && [ "$state" -nt "$self" ] && tr -d ' \n' <"$state" | grep -q "$1"
}

one_at_a_time() {
	command -v flock >/dev/null || die "find flock (util-linux)"
	umask 077 # keep others out
	exec 9>/run/pulley-first-boot.lock
	umask 022
	flock -n 9 || {
		[ $? = 1 ] || die "lock the first boot"
		say "another run is in progress" && exit 0
	}
}

# cloud-init runs this only once. The unit resumes after a reboot or a failure.
resume_after_reboot() {
	grep -qs 'pulley userdata' "$0" || return 0 # read from standard input, by a person
	put "$self" 700 <"$0"
	if [ ! -d /run/systemd/system ]; then
		echo "@reboot root sh $self go" | put /etc/cron.d/pulley-first-boot 644
		sync
		return 0
	fi
	put /etc/systemd/system/$unit 644 <<-PULLEY
		[Unit]
		Description=First boot of a node of Pulley
		Wants=network-online.target
		After=network-online.target
		[Service]
		ExecStart=/bin/sh $self go
		StandardOutput=journal+console
		Restart=on-failure
		RestartPreventExitStatus=2
		RestartSec=5min
		[Install]
		WantedBy=multi-user.target
	PULLEY
	systemctl -q enable $unit
	sync # otherwise a power cut leaves empty files
	say "continuing in $unit"
	exec systemctl --no-block start $unit
}

# put PATH MODE: write standard input to the file, atomically.
put() {
	mkdir -p "${1%/*}"
	(umask 077 && cat >"$1.new")
	finish "$1" "$2"
}

finish() {
	chmod "$2" "$1.new"
	sync "$1.new"
	mv -f "$1.new" "$1"
}

write_files() {
	put /etc/pulley/first-boot.yaml 600 <<'PULLEY'
role: compute
environment: dev
hostname: node
token: plt_01234567_efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef
servers:
  - https://10.0.0.1:8443
  - https://10.0.0.2:8443
ca:
  - sha256:abababababababababababababababababababababababababababababababab
  - sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
allowed_signers: /etc/pulley/allowed_signers
PULLEY
	put /etc/pulley/allowed_signers 644 <<'PULLEY'
operator@dev ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVcb9hHdGv0sqfRO6ql5CzLmEGbiF6bz9NLAaqfN9Pl
PULLEY
}

install_agent() {
	case $(uname -m) in
	x86_64) sha256=5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e ;;
	*) die "install pulley-agent: there is none for $(uname -m)" ;;
	esac
	[ -x "$agent" ] && genuine "$agent" && return
	for pause in 0 2 5 10 20 40 60 60 60 60; do
		sleep $pause
		for url in \
			https://10.0.0.1:8443/agent/"$sha256" \
			https://10.0.0.2:8443/agent/"$sha256"; do
			fetch "$url" && genuine "$agent.new" && finish "$agent" 755 && return
			say "no agent, or one with a wrong checksum, at $url"
		done
	done
	die "download pulley-agent"
}

genuine() { echo "$sha256  $1" | sha256sum -c >/dev/null 2>&1; }

# TLS is unchecked: the checksum protects.
fetch() (
	mkdir -p "${agent%/*}"
	if command -v curl >/dev/null; then
		timeout 600 curl --noproxy '*' -kfsSLg --connect-timeout 20 --speed-time 30 -o "$agent.new" "$1"
	else
		timeout 600 wget --no-proxy -nv -t 1 -T 20 --no-check-certificate -O "$agent.new" "$1"
	fi
)

main "$@"
