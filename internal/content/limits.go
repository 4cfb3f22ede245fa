package content

// The caps on a tree. A publisher refuses what exceeds them, and so does a node, before it allocates anything.
//
// There is no cap on the compression ratio: an honest file of zeros would break one, and every frame states its raw
// size, which is capped, so a small object can't grow into a large allocation.
const (
	MaxEntries   = 100_000
	MaxTreeBytes = 1 << 30
	MaxFileBytes = 64 << 20

	maxPathBytes      = 1024
	maxComponentBytes = 255
	maxDepth          = 32
)

// The caps on what is stored. MaxStored keeps a value well below etcd's limit on one request (1.5 MiB), where reading it
// still has a low latency.
const (
	MaxStored = 512 << 10

	maxRaw           = 1 << 20  // of one frame; larger ones compress little better and cost the node memory
	maxManifestBytes = 16 << 20 // encoded; 100,000 entries with paths of 120 bytes
	maxObjects       = 4096     // packs or pieces of a manifest in one index, which itself has to fit one value
	maxWindow        = 8 << 20  // of a zstd frame
)

// The caps on deltas.
const (
	MaxDeltas = 256      // after a base
	MaxWeight = 24 << 20 // bytes of memory that decoding the deltas after a base may take, so that a node stays small

	maxDeltaWeight = 8 << 20 // of one delta
	maxDictionary  = 2 << 20 // earlier contents against which a delta's contents are compressed
	maxSeq         = 999_999_999
	maxSum         = 1 << 50 // of sizes along a whole line
	maxLineBytes   = 128
)
