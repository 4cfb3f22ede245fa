#!/bin/sh
# image.sh TARGET SUITE MIRROR makes a Debian in the empty folder TARGET: systemd, cron, cloud-init, and in /srv/packages
# the packages of Puppet, of core types and of hiera-eyaml, so that machines need no network beyond their bridge. To be run
# in mount and PID namespaces of its own: what it mounts is gone when it ends.
set -eu
target=$1 suite=$2 mirror=$3
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

in_target() { chroot "$target" "$@" </dev/null; }

debootstrap --variant=minbase --include=systemd-sysv,dbus,udev,cron,iproute2,curl,ca-certificates "$suite" "$target" "$mirror"
mount -t proc proc "$target/proc"

# No service starts in the chroot, and dpkg need not flush: what a power cut spoils is made again.
printf '#!/bin/sh\nexit 101\n' >"$target/usr/sbin/policy-rc.d"
chmod 755 "$target/usr/sbin/policy-rc.d"
echo force-unsafe-io >"$target/etc/dpkg/dpkg.cfg.d/image"
echo 'APT::Install-Recommends "false";' >"$target/etc/apt/apt.conf.d/image"

# Not by debootstrap, which can't resolve cloud-init's virtual packages. With augeas-tools, Facter need not load all lenses of Augeas
# to learn its version.
in_target apt-get -qq update
in_target apt-get -qq install cloud-init augeas-tools
in_target apt-get clean

in_target apt-get -qq install --download-only puppet-agent hiera-eyaml \
	puppet-module-puppetlabs-cron-core puppet-module-puppetlabs-host-core puppet-module-puppetlabs-mount-core \
	puppet-module-puppetlabs-sshkeys-core puppet-module-puppetlabs-augeas-core puppet-module-puppetlabs-selinux-core
mkdir -p "$target/srv/packages"
mv "$target"/var/cache/apt/archives/*.deb "$target/srv/packages/"
(
	cd "$target/srv/packages"
	for deb in *.deb; do
		dpkg-deb -f "$deb"
		echo "Filename: ./$deb"
		echo "Size: $(stat -c %s "$deb")"
		echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)"
		echo
	done >Packages
)

# A machine knows no other repository, no name server, and nothing of this chroot.
rm "$target/usr/sbin/policy-rc.d" "$target/etc/dpkg/dpkg.cfg.d/image" "$target/etc/apt/apt.conf.d/image"
: >"$target/etc/apt/sources.list"
find "$target/var/lib/apt/lists" -type f -delete
rm -f "$target/etc/hostname" "$target/etc/resolv.conf" "$target/var/lib/dbus/machine-id"
: >"$target/etc/machine-id"
echo '127.0.0.1 localhost' >"$target/etc/hosts" # as Debian's installer does: Puppet's type host needs the file
mkdir -p "$target/var/log/journal" # a journal that outlives a power cut
in_target systemctl disable apt-daily.timer apt-daily-upgrade.timer

# cloud-init sees its seed only, has its network set up by networkd, and generates no locale, which takes half a minute.
# networkd does not wait for a router, as the bridge has none.
in_target systemctl enable systemd-networkd
echo 'datasource_list: [NoCloud]' >"$target/etc/cloud/cloud.cfg.d/90-image.cfg"
sed -i '/^ *- locale$/d' "$target/etc/cloud/cloud.cfg"
mkdir -p "$target/etc/systemd/network/10-cloud-init-host0.network.d"
printf '[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n' >"$target/etc/systemd/network/10-cloud-init-host0.network.d/no-router.conf"

umount "$target/proc"
