#!/bin/sh
# Turns this machine into node controller1_t42 of dev@t42. Written by `pulley userdata`; may be run again at any point.
# pulley-agent does the steps of /etc/pulley/first-boot.yaml, and then removes this.
set -eu
umask 022 # Puppet and packages inherit it
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
agent=/usr/local/bin/pulley-agent
self=/var/lib/pulley/first-boot.sh
state=/var/lib/pulley/first-boot.json
unit=pulley-first-boot.service
how=${1-} # "go": goes on

main() {
	[ "$how" = go ] || survive_a_power_cut
	one_at_a_time
	wrote '"finished":' || write_files
	{ [ -x "$agent" ] && wrote '"agent":{"state":"done"'; } || install_agent
	cd /
	"$agent" bootstrap </dev/null 9>&-
}

say() { printf 'pulley: %s\n' "$*"; }

die() { say "cannot $*" && exit 1; }

# wrote TEXT: the agent that this script started says so. What is on the machine may be newer than what is here.
wrote() {
	# shellcheck disable=SC3013
	[ "$how" = go ] && [ "$state" -nt "$self" ] && tr -d ' \n' <"$state" | grep -q "$1"
}

one_at_a_time() {
	command -v flock >/dev/null || die "find flock (util-linux)"
	exec 9>/run/pulley-first-boot.lock
	flock -n 9 || {
		[ $? = 1 ] || die "lock the first boot"
		say "another run is in progress" && exit 0
	}
}

# cloud-init runs this only once. The unit goes on after a reboot, and after a failure.
survive_a_power_cut() {
	grep -qs 'pulley userdata' "$0" || return 0 # read from standard input: a person is here
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
	sync # else a power cut leaves empty files
	say "it goes on in $unit"
	exec systemctl --no-block start $unit
}

# put PATH MODE: standard input becomes the file, whole or not at all.
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
hostname: controller1-t42
proxy: http://proxy.example:3128
puppet:
  package: openvox-agent
  version: 8.19.2-1+debian12
  repository: https://apt.example/openvox8-release-debian12.deb
schedule: '*/5 * * * *'
steps:
  hostname: "off"
  puppet: /usr/local/sbin/install-puppet
PULLEY
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
	put /etc/pulley/first-boot/pre.d/10-disks 755 <<'PULLEY'
#!/bin/sh
mount /srv
PULLEY
	put /etc/pulley/first-boot/post.d/10-tell 755 <<'PULLEY_'
#!/bin/sh
cat <<'PULLEY'
it's "done"
PULLEY
PULLEY_
}

install_agent() {
	case $(uname -m) in
	*) sha256=5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e ;;
	esac
	[ -x "$agent" ] && genuine "$agent" && return
	for pause in 0 2 5 10 20 40 60 60 60 60; do
		sleep $pause
		for url in \
			'https://downloads.example/pulley-agent?arch=amd64' \
			'https://pulley.example:8443/agent/'"$sha256" \
			'https://mirror.example/pulley/agent/'"$sha256"; do
			fetch "$url" && genuine "$agent.new" && finish "$agent" 755 && return
			say "no agent, or one with a wrong checksum, at $url"
		done
	done
	die "download pulley-agent"
}

genuine() { echo "$sha256  $1" | sha256sum -c >/dev/null 2>&1; }

# No certificate is looked at: the checksum says what is genuine.
fetch() (
	export http_proxy='http://proxy.example:3128' no_proxy='localhost,127.0.0.1,::1'
	export https_proxy="$http_proxy"
	mkdir -p "${agent%/*}"
	if command -v curl >/dev/null; then
		timeout 600 curl -kfsSLg --connect-timeout 20 --speed-time 30 -o "$agent.new" "$1"
	else
		timeout 600 wget -nv -t 1 -T 20 --no-check-certificate -O "$agent.new" "$1"
	fi
)

main "$@"
