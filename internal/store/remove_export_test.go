package store

// ShutOut is the first part of a removal, after which a test cuts it off.
var ShutOut = (*Store).shutOut
