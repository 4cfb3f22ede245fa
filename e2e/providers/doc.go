// Package providers checks the commands of docs/providers with the real command-line tools: the aws client against
// package ec2test, and virsh against a separate libvirtd. OpenStack's own client checks package novatest, on which the
// tests of the openstack driver rely. It must never contact a real cloud.
package providers
