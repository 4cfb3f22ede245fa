// Package novatest is a fake cloud for tests. It models Keystone, Nova, Glance and Neutron to the extent needed to
// create, list and delete servers. It follows their API references and not the driver's requests: Debian's OpenStack
// client works with it too (e2e/providers). It answers 501 for everything that it does not model, to keep tests from
// relying on it.
//
// It owns the model of the cloud and its faults. It must never be linked into a program.
package novatest
