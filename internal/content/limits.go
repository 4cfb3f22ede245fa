package content

// The limits of a tree. Publishers and nodes refuse a larger tree. Nodes do this before they allocate memory.
//
// The compression ratio has no limit, because a valid file of zeros would exceed it. Every frame declares its raw size,
// which is limited, so a small object can't cause a large allocation.
const (
	MaxEntries   = 100_000
	MaxTreeBytes = 1 << 30
	MaxFileBytes = 64 << 20

	maxPathBytes      = 1024
	maxComponentBytes = 255
	maxDepth          = 32
)

// The limits of stored values. MaxStored is well below etcd's limit of one request (1.5 MiB), so that reads stay fast.
const (
	MaxStored = 512 << 10

	maxRaw           = 1 << 20  // of one frame; larger frames compress little better and cost nodes memory
	maxManifestBytes = 16 << 20 // encoded; 100,000 entries with paths of 120 bytes
	maxObjects       = 4096     // packs or pieces of a manifest in one index, which must fit one value
	maxWindow        = 8 << 20  // of a zstd frame
)

// The limits of deltas.
const (
	MaxDeltas = 256      // after a base
	MaxWeight = 24 << 20 // bytes of memory for decoding the deltas after a base; keeps nodes small

	maxDeltaWeight = 8 << 20 // of one delta
	maxDictionary  = 2 << 20 // earlier contents used to compress the contents of a delta
	maxSeq         = 999_999_999
	maxSum         = 1 << 50 // of sizes along a line
	maxLineBytes   = 128
)
