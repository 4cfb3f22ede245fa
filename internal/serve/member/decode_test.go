package member

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A request is decoded before anybody knows what it demands: a million empty guards in 2 MB have 150 MB in memory, in each of 32 calls.
func TestRequestsOfManyRecordsAreNotDecoded(t *testing.T) {
	t.Parallel()
	d := newDecoder(nil)
	empty := func(number protowire.Number, n int) []byte {
		return bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), nil), n)
	}
	deep := func(levels int) []byte { // transactions in transactions
		b := empty(1, 1)
		for range levels {
			b = protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), b) // of an operation
			b = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), b)
		}
		return b
	}
	packed := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), make([]byte, recordsAtMost))
	for name, c := range map[string]struct {
		m       proto.Message
		b       []byte
		refused bool
	}{
		"guards":                  {&pb.TxnRequest{}, empty(1, recordsAtMost+1), true},
		"operations":              {&pb.TxnRequest{}, empty(3, recordsAtMost+1), true},
		"unknown fields":          {&pb.TxnRequest{}, empty(99, recordsAtMost+1), true},
		"in another transaction":  {&pb.TxnRequest{}, append(deep(3), empty(1, recordsAtMost)...), true},
		"transactions":            {&pb.TxnRequest{}, deep(levelsAtMost), true},
		"filters of a watch":      {&pb.WatchCreateRequest{}, packed, true},
		"few":                     {&pb.TxnRequest{}, empty(1, recordsAtMost), false},
		"a transaction in others": {&pb.TxnRequest{}, deep(levelsAtMost/2 - 1), false},
	} {
		if err := d.Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.b)}, c.m); errors.Is(err, errRecords) != c.refused || !c.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("k"), Value: []byte(strings.Repeat("v", 4000)), Lease: 1, IgnoreValue: true}}}
	guard := &pb.Compare{Result: pb.Compare_GREATER, Target: pb.Compare_VALUE, Key: []byte("k"), TargetUnion: &pb.Compare_Value{Value: []byte("v")}, RangeEnd: []byte("l")}
	largest := &pb.TxnRequest{Compare: slices.Repeat([]*pb.Compare{guard}, 128), Success: slices.Repeat([]*pb.RequestOp{put}, 128), Failure: slices.Repeat([]*pb.RequestOp{put}, 128)}
	b, err := proto.Marshal(largest)
	if err != nil {
		t.Fatal(err)
	}
	got := &pb.TxnRequest{}
	if err := d.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, got); err != nil || !proto.Equal(got, largest) {
		t.Errorf("the largest transaction that etcd accepts: %v", err)
	}
}
