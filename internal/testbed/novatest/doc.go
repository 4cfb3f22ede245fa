// Package novatest is a cloud for tests: Keystone, Nova, Glance and Neutron as their API references describe them, as far as
// making, listing and deleting servers goes. It is made from those references and not from what the driver asks: Debian's
// OpenStack client works with it too (e2e/providers). What it does not model it answers with 501, so that no test relies on it.
//
// It owns the model of the cloud and its faults; it must never be linked into a program.
package novatest
