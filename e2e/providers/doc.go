// Package providers checks the commands of docs/providers with the real command-line tools: the aws client against package
// ec2test, virsh against a libvirtd of its own. OpenStack's own client checks package novatest, which the tests of the
// openstack driver rely on.
package providers
