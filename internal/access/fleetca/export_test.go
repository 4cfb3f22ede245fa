package fleetca

// Count is count, for a test with an etcd: the package of that etcd imports this one.
var Count = count
