// Package providers checks the commands of docs/providers, which drive the real command-line tools of three kinds of clouds:
// OpenStack's and Amazon's against servers that behave as their API references say, libvirt's against a libvirtd of its own.
package providers
