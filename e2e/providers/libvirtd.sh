#!/bin/sh
# libvirtd.sh FOLDER runs libvirtd in the namespaces of its caller, with its sockets in FOLDER. It reads no configuration or users
# of the host and leaves nothing there. It ends when its standard input closes.
set -eu

folder=$1
for hidden in /run /var/lib /var/cache /var/log /root; do
	mount -t tmpfs tmpfs "$hidden"
done
mkdir /run/upper /run/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc
mount -t sysfs sysfs /sys
mkdir -p /run/libvirt /etc/libvirt
echo 'libvirt-qemu:x:64055:64055::/:/bin/false' >>/etc/passwd
echo 'libvirt-qemu:x:64055:' >>/etc/group
ip link set lo up
ip link add pulleytest type bridge
ip link set pulleytest up

cat >/run/libvirtd.conf <<-END
	unix_sock_dir = "$folder"
	auth_unix_rw = "none"
END
cat >/etc/libvirt/qemu.conf <<-END
	user = "root"
	group = "root"
	security_driver = "none"
	cgroup_controllers = [ ]
	namespaces = [ ]
	remember_owner = 0
	stdio_handler = "file"
END
# libvirtd is not the first process: that one collects orphans.
libvirtd --config /run/libvirtd.conf --pid-file /run/libvirtd.pid </dev/null &
cat
