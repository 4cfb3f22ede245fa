package content

import (
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// unpacker decodes objects one at a time into one reused buffer.
type unpacker struct {
	decoder *zstd.Decoder
	buffer  []byte
}

func newUnpacker() (*unpacker, error) { return newUnpackerFor(maxRaw, nil) }

// newUnpackerFor creates an unpacker for frames of up to limit bytes, optionally compressed with a dictionary.
func newUnpackerFor(limit uint64, dictionary []byte) (*unpacker, error) {
	options := []zstd.DOption{
		zstd.WithDecoderMaxMemory(limit), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true),
	}
	if len(dictionary) > 0 {
		options = append(options, zstd.WithDecoderDictRaw(dictionaryID, dictionary))
	}
	decoder, err := zstd.NewReader(nil, options...)
	if err != nil {
		return nil, err
	}
	return &unpacker{decoder: decoder}, nil
}

func (u *unpacker) close() { u.decoder.Close() }

// unpack returns the raw bytes of one stored frame. They are valid until the next call. The caller must have checked
// the hash of stored.
func (u *unpacker) unpack(stored []byte, raw int64) ([]byte, error) {
	return u.unpackUpTo(stored, raw, maxRaw)
}

func (u *unpacker) unpackUpTo(stored []byte, raw, limit int64) ([]byte, error) {
	if raw <= 0 || raw > limit {
		return nil, fmt.Errorf("declared as %d bytes once decoded, 1 to %d are allowed", raw, limit)
	}
	if err := checkFrame(stored, raw); err != nil {
		return nil, err
	}
	if int64(cap(u.buffer)) < raw {
		u.buffer = make([]byte, raw)
	}
	// The decoder writes at most up to the capacity.
	decoded, err := u.decoder.DecodeAll(stored, u.buffer[:0:raw])
	if err != nil {
		return nil, err
	}
	if int64(len(decoded)) != raw {
		return nil, fmt.Errorf("%d bytes once decoded instead of %d", len(decoded), raw)
	}
	return decoded, nil
}

var errTrailing = errors.New("is followed by something that does not belong to it")

// checkFrame verifies that stored is exactly one frame, that the frame declares raw as its size, and that no bytes
// follow. The decoder itself would accept further frames. Format: RFC 8878, sections 3.1.1 and 3.1.1.2.
func checkFrame(stored []byte, raw int64) error {
	var head zstd.Header
	if err := head.Decode(stored); err != nil {
		return err
	}
	if head.Skippable {
		return errTrailing
	}
	if !head.HasFCS || head.FrameContentSize != uint64(raw) {
		return fmt.Errorf("its frame does not state a size of %d bytes", raw)
	}
	rest := stored[head.HeaderSize:]
	for last := false; !last; {
		if len(rest) < 3 {
			return errTruncated
		}
		block := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16
		last = block&1 != 0
		size := int(block >> 3)
		if kind := block >> 1 & 3; kind == 1 { // RLE block: the size is the length of the run
			size = 1
		}
		if len(rest) < 3+size {
			return errTruncated
		}
		rest = rest[3+size:]
	}
	if head.HasCheckSum {
		if len(rest) < 4 {
			return errTruncated
		}
		rest = rest[4:]
	}
	if len(rest) != 0 {
		return errTrailing
	}
	return nil
}
